// The watchdog over loopback, several in one process or in two: who is given up, and who is not.
#include "runtime/comm/world/watchdog.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/base/tries.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;
using test::in_one_of_three_tries;
using Watch = Watchdog::Watch;

constexpr milliseconds kTimeout{800};
constexpr milliseconds kLongEnough = 2 * kTimeout;

bool comes_true(const std::function<bool()>& condition, milliseconds limit = milliseconds(60000)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

std::vector<Watchdog::Member> members_of(const std::vector<WatchdogContact>& contacts,
                                         Watch watch = Watch::kStrict) {
  std::vector<Watchdog::Member> members;
  for (size_t rank = 0; rank < contacts.size(); ++rank) {
    members.push_back({.contact = contacts[rank],
                       .name = "target[" + std::to_string(rank) + "] on node",
                       .is_here = true,
                       .watch = watch});
  }
  return members;
}

// Ranks that watch each other, but not themselves.
struct Ranks {
  explicit Ranks(size_t count, const Watchdog::Events& events = {}) {
    std::vector<WatchdogContact> contacts;
    for (size_t i = 0; i < count; ++i) {
      dogs.push_back(std::make_unique<Watchdog>(kTimeout, 0, true));
      contacts.push_back(dogs.back()->contact());
      EXPECT_EQ(dogs.back()->problem(), "");
    }
    for (size_t i = 0; i < count; ++i) {
      auto members = members_of(contacts);
      members[i].watch = Watch::kNot;
      dogs[i]->start(static_cast<int>(i), members, events);
      dogs[i]->set_round(100 + i);
    }
  }
  // Until each has heard each other in its round.
  void meet() const {
    ASSERT_TRUE(comes_true([&] {
      for (const auto& dog : dogs) {
        for (size_t rank = 0; rank < dogs.size(); ++rank) {
          if (dog != dogs[rank] && dog->last_round_of(static_cast<int>(rank)) == 0) return false;
        }
      }
      return true;
    }));
  }
  std::vector<std::unique_ptr<Watchdog>> dogs;
};

// A socket that stands for a rank and says what the test wants.
struct Stranger {
  Stranger() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(socket_, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    contact.port = ntohs(address.sin_port);
  }
  ~Stranger() { close(socket_); }
  std::string receive() const {
    char bytes[256];
    const ssize_t size = recv(socket_, bytes, sizeof(bytes), 0);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(size, 0))};
  }
  void send(const std::string& bytes, uint16_t port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    sendto(socket_,
           bytes.data(),
           bytes.size(),
           0,
           reinterpret_cast<sockaddr*>(&address),
           sizeof(address));
  }
  WatchdogContact contact;

 private:
  const int socket_ = socket(AF_INET, SOCK_DGRAM, 0);
};

// Where the sender's rank and the lost rank stand in a datagram (watchdog.cpp, Datagram).
constexpr size_t kRankAt = 24;
constexpr size_t kLostAt = 32;
std::string with_rank(std::string datagram, size_t at, int32_t rank) {
  std::memcpy(datagram.data() + at, &rank, sizeof(rank));
  return datagram;
}

TEST(Silence, CountsTimeInWhichThisRankRan) {
  const Silence::Time begin{};
  Silence silence(2, milliseconds(100), begin);
  EXPECT_FALSE(silence.was_heard(0));
  silence.heard(0);
  EXPECT_TRUE(silence.was_heard(0));
  silence.look(begin + milliseconds(100));
  silence.look(begin + milliseconds(250));
  EXPECT_EQ(silence.of(0), milliseconds(250));
  EXPECT_EQ(silence.of(1), milliseconds(250));
  silence.heard(1);
  EXPECT_EQ(silence.of(1), milliseconds(0));
  // Stopped for an hour.
  silence.look(begin + std::chrono::hours(1));
  EXPECT_EQ(silence.of(0), milliseconds(450));
  EXPECT_EQ(silence.of(1), milliseconds(200));
  // A clock that goes back counts nothing.
  silence.look(begin);
  EXPECT_EQ(silence.of(1), milliseconds(200));
}

TEST(Watchdog, WhoSpeaksIsNotGivenUp) {
  EXPECT_TRUE(in_one_of_three_tries([] {
    const Ranks ranks(3);
    std::this_thread::sleep_for(kLongEnough);
    return std::ranges::none_of(ranks.dogs,
                                [](const auto& dog) { return dog->finding().has_value(); });
  }));
}

TEST(Watchdog, AllNameTheSameRankWithItsRound) {
  Ranks ranks(3);
  ranks.meet();
  ranks.dogs[1].reset();
  ASSERT_TRUE(comes_true([&] { return ranks.dogs[0]->finding() && ranks.dogs[2]->finding(); }));
  for (const size_t rank : {0, 2}) {  // both may find it in the same moment
    const Watchdog::Finding found = *ranks.dogs[rank]->finding();
    EXPECT_EQ(found.rank, 1);
    EXPECT_TRUE(found.reason.starts_with("rank 1 (target[1] on node) is lost: rank "))
        << found.reason;
    EXPECT_TRUE(found.reason.ends_with(" s; it was in round 101 then")) << found.reason;
  }
}

TEST(Watchdog, EventsComeOnceAndThenOverdue) {
  std::atomic<int> num_lost{0};
  std::atomic<int> num_overdue{0};
  std::atomic<int> num_lost_when_overdue{-1};
  std::chrono::steady_clock::time_point overdue_at;
  Ranks ranks(2,
              {.lost = [&](const std::string&) { ++num_lost; },
               .overdue =
                   [&] {
                     if (num_overdue == 0) {
                       num_lost_when_overdue = num_lost.load();
                       overdue_at = std::chrono::steady_clock::now();
                     }
                     ++num_overdue;
                   },
               .overdue_after = kTimeout});
  ranks.meet();
  const auto died_at = std::chrono::steady_clock::now();
  ranks.dogs[1].reset();
  ASSERT_TRUE(comes_true([&] { return num_overdue > 0; }));
  EXPECT_EQ(num_lost_when_overdue, 1);
  EXPECT_GE(overdue_at - died_at, kTimeout);
  EXPECT_EQ(num_lost, 1);
}

TEST(Watchdog, WhoLeavesInOrderIsNotGivenUp) {
  EXPECT_TRUE(in_one_of_three_tries([] {
    Ranks ranks(2);
    ranks.meet();
    ranks.dogs[1]->leave();
    ranks.dogs[1]->set_round(200);  // who has heard of this one has heard that it leaves
    if (!comes_true([&] { return ranks.dogs[0]->last_round_of(1) == 200; })) return false;
    ranks.dogs[1].reset();
    std::this_thread::sleep_for(kLongEnough);
    return !ranks.dogs[0]->finding().has_value();
  }));
}

TEST(Watchdog, WhoWasNeverHeardIsWarnedOfAndNotGivenUp) {
  Stranger mute;
  Watchdog dog(kTimeout, 0, true);
  ::testing::internal::CaptureStderr();
  dog.start(0, members_of({dog.contact(), mute.contact}), {});
  // One comes with each look, of which the 20th warns.
  for (int i = 0; i < 40; ++i) mute.receive();
  EXPECT_FALSE(dog.finding());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("never heard of rank 0 (target[0] on node), rank 1 (target[1] on node)"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("--watchdog-port"), std::string::npos) << log;
}

TEST(Watchdog, ForgedAndBrokenDatagramsAreIgnored) {
  Stranger stranger;
  Watchdog dog(kTimeout, 0, true);
  auto members = members_of({dog.contact(), stranger.contact, stranger.contact});
  members[0].watch = members[2].watch = Watch::kNot;
  members[2].counts = false;
  dog.start(0, members, {});
  const uint16_t port = dog.contact().port;
  const std::string own = stranger.receive();
  ASSERT_GE(own.size(), kLostAt + 8);
  const std::string good = with_rank(own, kRankAt, 1);
  std::string accusing = with_rank(with_rank(good, kLostAt, 0), kLostAt + 4, 1);
  std::string other_job = accusing;
  other_job[3] = static_cast<char>(other_job[3] + 1);
  const auto send_bad = [&] {
    stranger.send(other_job, port);
    stranger.send(accusing.substr(0, accusing.size() - 1), port);
    stranger.send(accusing + "x", port);
    stranger.send("", port);
    stranger.send(accusing.substr(0, 16), port);
    for (const int32_t rank : {-1, 0, 3, 1 << 30})
      stranger.send(with_rank(accusing, kRankAt, rank), port);
    for (const int32_t rank : {-1, 3, -7}) stranger.send(with_rank(accusing, kLostAt, rank), port);
    stranger.send(with_rank(accusing, kLostAt + 4, 3), port);
    stranger.send(with_rank(accusing, kRankAt, 2), port);  // whose word does not count
  };
  for (int i = 0; i < 20; ++i) {
    send_bad();
    stranger.send(good, port);
    std::this_thread::sleep_for(milliseconds(20));
  }
  // Of rank 1 there is one only where this thread was held up, so that the rank was silent indeed.
  const auto found = dog.finding();
  EXPECT_EQ(found ? found->rank : 1, 1);
  // Nor does what is forged keep a silent rank alive.
  const std::string no_good = with_rank(other_job, kLostAt, -1);
  ASSERT_TRUE(comes_true([&] {
    stranger.send(no_good, port);
    stranger.send(good.substr(0, 20), port);
    return dog.finding().has_value();
  }));
  EXPECT_EQ(dog.finding()->rank, 1);
}

TEST(Watchdog, AWordThatCountsIsBelieved) {
  Stranger stranger;
  Watchdog dog(kTimeout, 0, true);
  dog.start(0, members_of({dog.contact(), stranger.contact}, Watch::kNot), {});
  const std::string accusing =
      with_rank(with_rank(with_rank(stranger.receive(), kRankAt, 1), kLostAt, 0), kLostAt + 4, 1);
  stranger.send(accusing, dog.contact().port);
  ASSERT_TRUE(comes_true([&] { return dog.finding().has_value(); }));
  EXPECT_EQ(dog.finding()->rank, 0);
}

TEST(Watchdog, APortThatIsTakenIsAProblem) {
  const Watchdog first(kTimeout, 0, true);
  const Watchdog second(kTimeout, first.contact().port, true);
  EXPECT_EQ(second.contact().port, 0);
  EXPECT_NE(second.problem().find("UDP port " + std::to_string(first.contact().port)),
            std::string::npos);
}

// Rank 1 as another process, which says what it found when it is asked.
struct OtherProcess {
  explicit OtherProcess(Watch watch) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends_) != 0) abort();
    pid = fork();
    if (pid == 0) run(watch);
    read(ends_[0], &contact, sizeof(contact));
  }
  ~OtherProcess() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    for (const int end : ends_) close(end);
  }
  void start(const WatchdogContact& first) const {
    if (write(ends_[0], &first, sizeof(first)) < 0) abort();
  }
  int found() const {  // the rank, or -1
    int rank = 0;
    if (write(ends_[0], "?", 1) < 0) abort();
    read(ends_[0], &rank, sizeof(rank));
    return rank;
  }
  pid_t pid = 0;
  WatchdogContact contact;

 private:
  static void read(int descriptor, void* to, size_t size) {
    if (::read(descriptor, to, size) <= 0) _exit(1);
  }
  [[noreturn]] void run(Watch watch) {
    Watchdog dog(kTimeout, 0, true);
    if (write(ends_[1], &dog.contact(), sizeof(WatchdogContact)) < 0) _exit(1);
    WatchdogContact first;
    read(ends_[1], &first, sizeof(first));
    auto members = members_of({first, dog.contact()}, watch);
    members[1].watch = Watch::kNot;
    dog.start(1, members, {});
    if (!comes_true([&] { return dog.last_round_of(0) != 0; })) _exit(1);
    dog.set_round(2);  // who hears this has been heard
    while (true) {
      char question = 0;
      read(ends_[1], &question, 1);
      const auto finding = dog.finding();
      const int rank = finding ? finding->rank : -1;
      if (write(ends_[1], &rank, sizeof(rank)) < 0) _exit(1);
    }
  }
  int ends_[2];
};

struct TwoProcesses {
  TwoProcesses(Watch here, Watch there) : other(there), dog(kTimeout, 0, true) {
    auto members = members_of({dog.contact(), other.contact}, here);
    members[0].watch = Watch::kNot;
    other.start(dog.contact());
    dog.set_round(1);
    dog.start(0, members, {});
    EXPECT_TRUE(comes_true([&] { return dog.last_round_of(1) == 2; }));
  }
  OtherProcess other;  // forks, so before any thread
  Watchdog dog;
};

TEST(Watchdog, AStoppedProcessIsGivenUpAndHearsOfItWhenItGoesOn) {
  TwoProcesses two(Watch::kStrict, Watch::kNot);
  kill(two.other.pid, SIGSTOP);
  ASSERT_TRUE(comes_true([&] { return two.dog.finding().has_value(); }));
  EXPECT_EQ(two.dog.finding()->rank, 1);
  kill(two.other.pid, SIGCONT);
  EXPECT_TRUE(comes_true([&] { return two.other.found() == 1; }));
}

TEST(Watchdog, WhoWasStoppedItselfGivesNobodyUp) {
  EXPECT_TRUE(in_one_of_three_tries([] {
    TwoProcesses two(Watch::kNot, Watch::kStrict);
    kill(two.other.pid, SIGSTOP);
    std::this_thread::sleep_for(2 * kLongEnough);
    kill(two.other.pid, SIGCONT);
    if (two.other.found() != -1) return false;
    std::this_thread::sleep_for(kLongEnough);
    return two.other.found() == -1;
  }));
}

TEST(Watchdog, AddressesAreThoseOfTheNetworksNamed) {
  const std::vector<uint32_t> all = host_addresses("");
  EXPECT_EQ(host_addresses("0.0.0.0/0"), all);
  EXPECT_TRUE(host_addresses("no-such-device,256.0.0.0/8,240.0.0.0/4,,lo").empty());
  for (const uint32_t address : all) {
    EXPECT_NE(ntohl(address) >> 24, 127u);
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &address, text, sizeof(text));
    const auto one = host_addresses("nothing," + std::string(text) + "/32");
    EXPECT_EQ(one, std::vector<uint32_t>{address});
  }
}

}  // namespace
}  // namespace outrider
