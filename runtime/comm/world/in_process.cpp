// The world as threads of one process: the embedded default, and the test double of the MPI form.
// Mailboxes are queues under one mutex per pair; the target group is arena_group.h's.
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/comm/group/arena_group.h"
#include "runtime/comm/world/wake_up.h"
#include "runtime/comm/world/world.h"

namespace outrider {
namespace {

struct Message {
  Bytes bytes;
  JobClock::time_point arrives_at;  // with a latency only
};

struct Mailbox {
  std::mutex mutex;
  std::deque<Message> messages;
  size_t num_bytes = 0;
};

struct alignas(64) ArenaLine {
  std::array<std::byte, 64> bytes = {};
};

// What the threads share. Lives until all of them have returned.
struct Shared {
  Shared(int ranks, const InProcessLink& messages)
      : num_ranks(ranks),
        link(messages),
        mailboxes(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)),
        wake_ups(static_cast<size_t>(ranks)) {}

  const int num_ranks;
  const InProcessLink link;
  std::vector<Mailbox> mailboxes;
  std::vector<WakeUpSocket> wake_ups;  // of each rank
  std::atomic<bool> aborted{false};
  std::mutex abort_mutex;
  std::string abort_reason;

  // Where the target group of so many ranks meets.
  std::mutex arenas_mutex;
  std::map<int, std::vector<ArenaLine>> arenas;

  std::byte* arena(int num_members) {
    std::lock_guard lock(arenas_mutex);
    std::vector<ArenaLine>& lines = arenas[num_members];
    if (lines.empty()) lines.resize(arena_bytes(num_members) / sizeof(ArenaLine));
    return reinterpret_cast<std::byte*>(lines.data());
  }
  Mailbox& mailbox(int from, int to) {
    return mailboxes[static_cast<size_t>(from) * static_cast<size_t>(num_ranks) +
                     static_cast<size_t>(to)];
  }
  std::chrono::microseconds latency(int from, int to) const {
    const bool all = link.only_rank < 0 || link.only_rank == from || link.only_rank == to;
    return all ? link.latency : std::chrono::microseconds(0);
  }
  void set_aborted(const std::string& reason) {
    std::lock_guard lock(abort_mutex);
    if (!aborted.exchange(true)) abort_reason = reason;
  }
  void throw_if_aborted() {
    if (!aborted.load(std::memory_order_acquire)) return;
    std::lock_guard lock(abort_mutex);
    throw Error(abort_reason);
  }
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_.num_ranks; }
  std::string host() const override { return "this process"; }
  int num_ranks_here(int num_ranks) const override { return num_ranks; }

  void post(int to, Bytes message) override {
    const std::chrono::microseconds latency = shared_.latency(rank_, to);
    {
      Mailbox& box = shared_.mailbox(rank_, to);
      std::lock_guard lock(box.mutex);
      box.num_bytes += message.size();
      box.messages.push_back({std::move(message), {}});
      if (latency.count() > 0) box.messages.back().arrives_at = JobClock::now() + latency;
    }
    JobClock::record_event(latency);
    if (!JobClock::is_virtual_here()) wake_up(rank_).ring(wake_up(to).name());
  }
  std::optional<Bytes> poll(int from) override {
    Mailbox& box = shared_.mailbox(from, rank_);
    std::lock_guard lock(box.mutex);
    if (box.messages.empty()) return std::nullopt;
    const bool takes_time = box.messages.front().arrives_at != JobClock::time_point{};
    if (takes_time && JobClock::now() < box.messages.front().arrives_at) return std::nullopt;
    Bytes message = std::move(box.messages.front().bytes);
    box.messages.pop_front();
    box.num_bytes -= message.size();
    return message;
  }
  void pause_watching(Backoff& backoff, int descriptor) override {
    backoff.pause(
        [&](std::chrono::microseconds time, auto) { wake_up(rank_).wait(time, descriptor); });
  }
  size_t num_unsent_bytes(int to) override {
    Mailbox& box = shared_.mailbox(rank_, to);
    std::lock_guard lock(box.mutex);
    return box.num_bytes;
  }
  [[noreturn]] void abort(const std::string& reason) override {
    shared_.set_aborted(reason);
    throw Error(reason);
  }
  void check_alive(int) override { shared_.throw_if_aborted(); }
  std::unique_ptr<TargetGroup> make_target_group(int num_ranks) override {
    OUTRIDER_CHECK(rank_ < num_ranks && num_ranks <= shared_.num_ranks);
    if (num_ranks == 1) return make_solo_group();
    const int num_cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return make_arena_group({.rank = rank_,
                             .size = num_ranks,
                             .memory = shared_.arena(num_ranks),
                             .hot_time = hot_time_for(num_ranks, num_cores),
                             .check_alive = [this] { shared_.throw_if_aborted(); }});
  }
  void end_unresponsive(int) override {}
  void finish(int) override {}

 private:
  WakeUpSocket& wake_up(int rank) { return shared_.wake_ups[static_cast<size_t>(rank)]; }

  Shared& shared_;
  const int rank_;
};

}  // namespace

void run_in_process(int num_ranks,
                    const std::function<void(World&)>& body,
                    const InProcessLink& link) {
  Shared shared(num_ranks, link);
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::vector<int> seats(static_cast<size_t>(num_ranks));
  for (int& seat : seats) seat = ClockSeat::reserve();
  const auto run_rank = [&](int rank) {
    const ClockSeat seat(seats[static_cast<size_t>(rank)]);
    try {
      ThreadWorld world(shared, rank);
      body(world);
    } catch (const std::exception& error) {
      {
        std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
      }
      shared.set_aborted(error.what());
    }
  };
  // Rank 0 runs on the caller's thread: it holds the coordinator and meets the signals.
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks; ++rank) threads.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace outrider
