// How a rank notices that another is dead, stopped or cut off, whatever either of them is doing: a
// thread of its own sends every other rank a datagram ten times in the timeout, and gives a rank up
// of which it has heard and hears no more. It calls no MPI. The first that finds it tells the
// others, so all say the same sentence. A rank that was never heard of, as behind a firewall, is
// warned of and not watched. Used by world/mpi.cpp; everything but the thread's work is called on
// the round's thread.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace outrider {

// For how long nothing was heard of each rank, in time in which this rank itself ran: it may have
// been stopped, its machine paused, or the cores too busy, and then its own looks come late.
class Silence {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // interval: between looks that are on time.
  Silence(size_t num_ranks, Duration interval, Time now);
  // A look: what has come since the last one was told to heard() before.
  void look(Time now);
  void heard(size_t rank);
  bool was_heard(size_t rank) const { return ranks_[rank].was_heard; }
  Duration of(size_t rank) const { return ranks_[rank].silent; }

 private:
  struct Rank {
    Duration silent{0};
    bool was_heard = false;
  };
  const Duration interval_;
  Time last_look_;
  std::vector<Rank> ranks_;
};

// Where a rank's datagrams are to be sent; plain bytes, which the ranks exchange.
struct WatchdogContact {
  std::array<uint64_t, 2> job{};  // random; rank 0's is what all datagrams of the job begin with
  uint16_t port = 0;              // 0: it has no watchdog
  uint16_t num_addresses = 0;
  std::array<uint32_t, 8> addresses{};  // IPv4, in network order
};

class Watchdog {
 public:
  enum class Watch {
    kNot,
    kStrict,  // given up after the timeout
    kLong     // after twelve times as long
  };
  struct Member {
    WatchdogContact contact;
    std::string name;  // "target[1/2] on node-b"
    bool is_here = false;
    Watch watch = Watch::kNot;
    bool counts = true;  // what it says of others is believed
  };
  // Both are called on the watchdog's thread.
  struct Events {
    std::function<void(const std::string& reason)> lost;  // once
    std::function<void()> overdue;  // this process still lives so long after lost
    std::chrono::milliseconds overdue_after{2000};
  };

  // port: to listen on; 0 = any. only_here: all ranks are on this host, so no other may speak.
  // Without a socket contact().port is 0 and problem() says why.
  Watchdog(std::chrono::milliseconds timeout, int port, bool only_here);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  const WatchdogContact& contact() const { return contact_; }
  const std::string& problem() const { return problem_; }
  // members: by rank, this one included.
  void start(int rank, std::vector<Member> members, Events events);

  // What this rank does, for the sentence of those who lose it.
  void set_round(uint64_t round) { round_.store(round, std::memory_order_relaxed); }
  uint64_t last_round_of(int rank) const;
  // The rank that was given up, and the sentence. Cheap while there is none.
  struct Finding {
    int rank = 0;
    std::string reason;
  };
  std::optional<Finding> finding() const;
  // This rank is about to end in order: it gives nobody up any more, and nobody gives it up.
  void leave() { leaving_.store(true); }

 private:
  struct Datagram;
  struct Peer {
    Member member;
    std::vector<sockaddr_in> addresses;  // where it may be reached
    sockaddr_in answers_from{};          // where it was heard from
    bool is_leaving = false;
  };
  // What a finding says; travels in datagrams.
  struct LostRank {
    int32_t rank = -1;
    int32_t finder = -1;
    uint64_t silent_ms = 0;
    uint64_t round = 0;         // that it was last heard of in
    uint64_t finder_round = 0;  // then
  };
  void run(const std::stop_token& stop);
  void look(Silence::Time now);
  void take_datagrams();
  void take(const Datagram& datagram, const sockaddr_in& from);
  void judge();
  void find(const LostRank& lost);
  std::string sentence_of(const LostRank& lost) const;
  void warn_of_unheard() const;
  void send_to_all() const;

  const std::chrono::milliseconds interval_;
  const bool only_here_;
  int socket_ = -1;
  int wake_ = -1;  // an eventfd: the thread is to end
  std::string problem_;
  WatchdogContact contact_;
  int rank_ = 0;
  Events events_;
  std::vector<Peer> peers_;
  std::optional<Silence> silence_;
  std::array<uint64_t, 2> job_{};
  int num_looks_ = 0;
  std::chrono::steady_clock::time_point found_at_;
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> has_found_{false};
  mutable std::mutex mutex_;
  std::vector<uint64_t> rounds_;  // that the ranks were last heard of in; under mutex_
  Finding finding_;               // under mutex_
  LostRank lost_;                 // the thread's
  std::jthread thread_;           // last: it uses the others
};

// This host's IPv4 addresses but loopback's, 8 at most. included: names of interfaces or networks
// such as 10.0.0.0/8, separated by commas (Open MPI's btl_tcp_if_include); empty = all.
std::vector<uint32_t> host_addresses(const std::string& included);

}  // namespace outrider
