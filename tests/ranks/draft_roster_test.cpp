// Drafts that attach: what is said at the door over real sockets, and which of several serves, with
// links that the test plays and a clock of its own.
#include "runtime/ranks/coordinator/draft_roster.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/ranks/messages/draft_hello.h"

namespace outrider {
namespace {

using Clock = DraftRoster::Clock;

const DraftDemands kDemands{.key = "open sesame", .vocabulary = "these", .num_tokens = 100};
constexpr DraftTerms kTerms{.target_vocab_size = 128,
                            .num_candidates = 4,
                            .longest_draft_len = 5,
                            .max_model_len = 64,
                            .max_rows = 16,
                            .blocks_per_sequence = 8,
                            .num_blocks = 32,
                            .block_size = 8,
                            .max_num_seqs = 4};

DraftHello good_hello() {
  return {.key = "open sesame", .vocabulary = "these", .num_rows = 128, .name = "a draft\n"};
}

struct Door {
  TcpListener listener{{"127.0.0.1", 0}, ""};
  DraftServer server{listener, kDemands, kTerms};

  MessageSocket come() const { return MessageSocket(connect_tcp(listener.address(), 5, {})); }
  // What the one who says this hears; nothing when it is sent away without a word.
  std::optional<Bytes> answer_to(const Bytes& message) const {
    MessageSocket socket = come();
    socket.post(message);
    for (Backoff backoff; backoff.waited_s() < 30; backoff.pause()) {
      if (auto answer = socket.poll()) return answer;
      if (socket.closed()) return std::nullopt;
    }
    ADD_FAILURE() << "neither answered nor sent away";
    return std::nullopt;
  }
  std::string refusal_of(const DraftHello& hello) const {
    const auto answer = answer_to(encode(hello));
    return answer ? decode_draft_welcome(*answer).refusal : "no answer";
  }
  // The door welcomes a moment before it says who has come.
  std::vector<DraftServer::Arrival> next_arrivals() {
    for (Backoff backoff; backoff.waited_s() < 30; backoff.pause()) {
      auto arrivals = server.take_arrivals();
      if (!arrivals.empty()) return arrivals;
    }
    return {};
  }
};

TEST(DraftServer, WelcomesWhoBringsWhatIsAsked) {
  set_log_level(LogLevel::kError);
  Door door;
  const auto answer = door.answer_to(encode(good_hello()));
  ASSERT_TRUE(answer);
  const DraftWelcome welcome = decode_draft_welcome(*answer);
  EXPECT_EQ(welcome.refusal, "");
  EXPECT_EQ(welcome.terms, kTerms);
  const auto arrivals = door.next_arrivals();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].epoch, welcome.epoch);
  EXPECT_EQ(arrivals[0].name.substr(0, 21), "a draft? at 127.0.0.1");
  EXPECT_TRUE(door.server.take_arrivals().empty());
}

TEST(DraftServer, RefusesWithASentence) {
  set_log_level(LogLevel::kError);
  const Door door;
  DraftHello hello = good_hello();
  hello.vocabulary = "others";
  EXPECT_NE(door.refusal_of(hello).find("its tokens are not the target's"), std::string::npos);
  hello = good_hello();
  hello.num_rows = 99;
  EXPECT_EQ(door.refusal_of(hello), "its model has rows for 99 tokens where the target has 100");
  hello = good_hello();
  hello.key = "";
  EXPECT_NE(door.refusal_of(hello).find("asks for a key"), std::string::npos);
  for (const char* key : {"open sesam", "open sesamf", "open sesameopen sesame", "o"}) {
    hello.key = key;
    EXPECT_EQ(door.refusal_of(hello), "its key is not the job's draft_key") << key;
  }
  Bytes other_version = encode(good_hello());
  other_version[4] = std::byte{1};
  const auto answer = door.answer_to(other_version);
  ASSERT_TRUE(answer);
  EXPECT_NE(decode_draft_welcome(*answer).refusal.find("it speaks version 1"), std::string::npos);
}

// Each prefix of a good hello, and each with one byte changed: sent away or refused, never let in
// with less than it must bring.
TEST(DraftServer, GarbageIsSentAway) {
  set_log_level(LogLevel::kError);
  Door door;
  const Bytes good = encode(good_hello());
  for (size_t size = 0; size < good.size(); size += 3)
    EXPECT_EQ(door.answer_to(Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(size))),
              std::nullopt)
        << size;
  const size_t brings = good.size() - good_hello().name.size();  // the name may be any
  for (size_t at = 0; at < brings; at += 2) {
    Bytes damaged = good;
    damaged[at] ^= std::byte{0x40};
    const auto answer = door.answer_to(damaged);
    const bool only_more_rows = at >= brings - 8 && at < brings - 4;
    if (answer && !only_more_rows) {
      EXPECT_NE(decode_draft_welcome(*answer).refusal, "") << at;
    }
  }
  MessageSocket long_winded = door.come();
  long_winded.post(Bytes(kMaxDraftHelloBytes + 1));
  for (Backoff backoff; !long_winded.closed() && backoff.waited_s() < 4; backoff.pause())
    EXPECT_EQ(long_winded.poll(), std::nullopt);
  EXPECT_TRUE(long_winded.closed());
}

TEST(DraftServer, WhoIsSilentIsSentAwayAndKeepsNobodyOut) {
  set_log_level(LogLevel::kError);
  Door door;
  std::vector<std::unique_ptr<MessageSocket>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<MessageSocket>(connect_tcp(door.listener.address(), 5, {})));
  }
  // Before it a full house of silent ones gets five seconds; one by one they would get a hundred.
  MessageSocket socket = door.come();
  socket.post(encode(good_hello()));
  bool is_answered = false;
  for (Backoff backoff; !is_answered && backoff.waited_s() < 40; backoff.pause()) {
    is_answered = socket.poll().has_value();
    if (socket.closed()) break;
  }
  ASSERT_TRUE(is_answered);
  EXPECT_FALSE(socket.closed());
  EXPECT_EQ(door.next_arrivals().size(), 1u);
}

TEST(TcpAddress, IsReadAndWrittenWithBrackets) {
  EXPECT_EQ(text_of(parse_tcp_address("[::1]:7000", "x")), "[::1]:7000");
  EXPECT_EQ(parse_tcp_address("[::1]:7000", "x").host, "::1");
  EXPECT_EQ(text_of(parse_tcp_address("host:0", "x")), "host:0");
  for (const char* text : {"",
                           ":",
                           "host",
                           "host:",
                           ":1",
                           "::1:1",
                           "host:65536",
                           "host:-1",
                           "host:1x",
                           "[]:1",
                           "[a:1",
                           "h:o:1",
                           "[[a]]:1"})
    EXPECT_THROW(parse_tcp_address(text, "x"), Error) << text;
}

TEST(TcpListener, WithoutAReasonToTrustOnlyThisHostIsHeard) {
  EXPECT_THROW(TcpListener({"0.0.0.0", 0}, "there is no key"), Error);
  EXPECT_THROW(TcpListener({"::", 0}, "there is no key"), Error);
  EXPECT_GT(TcpListener({"127.0.0.1", 0}, "there is no key").address().port, 0);
  EXPECT_GT(TcpListener({"::1", 0}, "there is no key").address().port, 0);
}

// A pair of links: what the roster holds, and a test's end.
struct PlayedDraft {
  struct Link final : DraftLink {
    explicit Link(PlayedDraft& played) : draft(played) {}
    void post(Bytes frame) override {
      Frame decoded;
      ASSERT_TRUE(decode_frame(frame, &decoded));
      draft.heard.push_back(decoded.kind);
    }
    std::optional<Bytes> poll() override {
      if (draft.says.empty()) return std::nullopt;
      Bytes message = std::move(draft.says.front());
      draft.says.pop_front();
      return message;
    }
    size_t num_unsent_bytes() override { return 0; }
    bool is_closed() const override { return draft.closed; }
    PlayedDraft& draft;
  };
  void say(FrameKind kind, uint32_t epoch, Bytes payload = {}) {
    says.push_back(encode_frame({.kind = kind, .epoch = epoch, .payload = std::move(payload)}));
  }
  bool was_asked() const {
    return std::find(heard.begin(), heard.end(), FrameKind::kAlive) != heard.end();
  }
  std::deque<Bytes> says;
  std::vector<FrameKind> heard;
  bool closed = false;
};

struct RosterTest : ::testing::Test {
  RosterTest() { set_log_level(LogLevel::kError); }

  PlayedDraft rank;
  std::unique_ptr<DraftLink> rank_link = std::make_unique<PlayedDraft::Link>(rank);
  const DraftLink* const rank_as_link = rank_link.get();
  DraftClient client{rank_link.get(), 1};
  Door door;
  DraftRoster roster{client, &door.server};
  Clock::time_point now = Clock::now();

  struct Guest {
    explicit Guest(int descriptor) : socket(descriptor) {}
    MessageSocket socket;
    uint32_t epoch = 0;
  };
  std::vector<std::unique_ptr<Guest>> guests;

  Guest& come() {
    guests.push_back(std::make_unique<Guest>(connect_tcp(door.listener.address(), 5, {})));
    Guest& guest = *guests.back();
    guest.socket.post(encode(good_hello()));
    std::optional<Bytes> answer;
    for (Backoff wait; !answer && wait.waited_s() < 30; wait.pause()) answer = guest.socket.poll();
    guest.epoch = decode_draft_welcome(answer.value()).epoch;
    return guest;
  }

  // Attaches by the door, and says hello in a frame.
  Guest& attach(uint64_t step_us) {
    Guest& guest = come();
    say(guest, FrameKind::kHello, encode_draft_speed(step_us));
    return guest;
  }
  void say(Guest& guest, FrameKind kind, Bytes payload = {}) {
    guest.socket.post(
        encode_frame({.kind = kind, .epoch = guest.epoch, .payload = std::move(payload)}));
  }
  void pass(double seconds) {
    for (const auto end = now + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(seconds));
         now < end;
         now += std::chrono::milliseconds(25)) {
      client.receive(now);
      roster.look(now);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the sockets are real
    }
  }
  // The door and the sockets are real. The pauses grow: a slow machine may take 30 s of its own
  // time, and takes little of the roster's.
  bool comes_true(const std::function<bool()>& holds) {
    std::chrono::milliseconds rest(1);
    for (int look = 0; look < 25; ++look) {
      pass(0.025);
      if (holds()) return true;
      std::this_thread::sleep_for(rest);
      rest = std::min(2 * rest, std::chrono::milliseconds(2000));
    }
    return false;
  }
  bool stand_by(size_t count) {
    return comes_true([&] { return roster.num_standing_by() == count; });
  }
  bool comes_to_serve(const Guest& guest) {
    return comes_true([&] { return serves(guest); });
  }
  void ask() {
    DraftRequest request;
    request.commits.push_back({1, 0, 5, {7}, 4});
    client.send(std::move(request), now);
  }
  bool serves(const Guest& guest) const {
    return client.link() != rank_as_link && client.link() != nullptr &&
           client.epoch() == guest.epoch;
  }
};

TEST_F(RosterTest, OneStandsInForAnotherAndTheFastestIsAsked) {
  roster.add_rank(std::move(rank_link), 2, 1);
  Guest& slow = attach(4000);
  EXPECT_TRUE(stand_by(1));
  pass(0.2);
  EXPECT_EQ(client.link(), rank_as_link) << "nothing says that it is faster";
  rank.say(FrameKind::kGone, 1);
  pass(0.2);
  EXPECT_TRUE(serves(slow));
  EXPECT_NE(client.update(now), DraftClient::State::kDown);
  Guest& similar = attach(3900);
  EXPECT_TRUE(stand_by(1));
  pass(0.2);
  EXPECT_TRUE(serves(slow)) << "a change costs more than that brings";
  Guest& fast = attach(1000);
  EXPECT_TRUE(comes_to_serve(fast));
  EXPECT_EQ(roster.num_standing_by(), 2u) << "the rank has not come back";
  rank.say(FrameKind::kHello, 2);
  pass(0.2);
  EXPECT_EQ(roster.num_standing_by(), 3u);
  const uint32_t epoch = fast.epoch;
  guests.erase(guests.begin() + 2);
  EXPECT_TRUE(comes_true([&] { return client.epoch() != epoch; }));
  EXPECT_FALSE(serves(slow));
  EXPECT_TRUE(client.link() == rank_as_link || serves(similar));
}

TEST_F(RosterTest, ASilentOneIsNoStandIn) {
  roster.add_rank(std::move(rank_link), 2, 1);
  Guest& guest = attach(4000);
  EXPECT_TRUE(stand_by(1));
  pass(1.5);
  bool was_asked = false;
  for (Backoff wait; !was_asked && wait.waited_s() < 30; wait.pause()) {
    const auto bytes = guest.socket.poll();
    Frame frame;
    was_asked = bytes && decode_frame(*bytes, &frame) && frame.kind == FrameKind::kAlive;
  }
  EXPECT_TRUE(was_asked);
  say(guest, FrameKind::kAlive);
  pass(1);
  EXPECT_EQ(roster.num_standing_by(), 1u);
  // 3.5 s, and more where that word came late.
  for (int i = 0; i < 40 && roster.num_standing_by() > 0; ++i) pass(0.25);
  EXPECT_EQ(roster.num_standing_by(), 0u);
  rank.say(FrameKind::kGone, 1);
  pass(0.2);
  EXPECT_EQ(client.update(now), DraftClient::State::kDown) << "there is nobody";
  say(guest, FrameKind::kAlive);
  EXPECT_TRUE(comes_to_serve(guest));
}

TEST_F(RosterTest, ADownRankThatAnswersLaterStandsBy) {
  roster.add_rank(std::move(rank_link), 2, 1);
  Guest& guest = attach(4000);
  EXPECT_TRUE(stand_by(1));
  ask();
  pass(0.5);
  EXPECT_TRUE(serves(guest)) << "the rank's answer was overdue";
  EXPECT_EQ(roster.num_standing_by(), 0u);
  rank.say(FrameKind::kAlive, 1);
  pass(0.2);
  EXPECT_EQ(roster.num_standing_by(), 1u);
  EXPECT_TRUE(serves(guest));
}

TEST_F(RosterTest, ALoadingOneIsNotAsked) {
  client.attach(nullptr, 0);
  Guest& guest = come();
  pass(4);
  EXPECT_EQ(client.link(), nullptr);
  say(guest, FrameKind::kAlive);
  pass(0.2);
  EXPECT_EQ(client.link(), nullptr);
  EXPECT_EQ(guest.socket.poll(), std::nullopt);
  say(guest, FrameKind::kHello, Bytes(3));
  EXPECT_TRUE(comes_to_serve(guest));
}

TEST_F(RosterTest, TheEndIsToldToAll) {
  roster.add_rank(std::move(rank_link), 2, 1);
  Guest& guest = attach(4000);
  EXPECT_TRUE(stand_by(1));
  rank.say(FrameKind::kGone, 1);
  pass(0.2);
  rank.say(FrameKind::kShutdown, 1);
  EXPECT_TRUE(roster.shut_down());
  EXPECT_EQ(rank.heard.back(), FrameKind::kShutdown);
  FrameKind last = FrameKind::kAlive;
  Frame frame;
  for (Backoff wait; last != FrameKind::kShutdown && wait.waited_s() < 30; wait.pause()) {
    while (auto bytes = guest.socket.poll())
      if (decode_frame(*bytes, &frame)) last = frame.kind;
  }
  EXPECT_EQ(last, FrameKind::kShutdown);
}

}  // namespace
}  // namespace outrider
