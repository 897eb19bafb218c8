// See machine.h. Fibers are Boost.Context's.
#include "tests/emulated/machine.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"

namespace outrider::gpu::emulated {
namespace {

namespace context = boost::context;

constexpr uint32_t kLanes = 32;
constexpr uint32_t kMostThreads = 1024;
// An odd number of cache lines: stacks that begin at a power of two apart share a few sets of the
// caches, and switching between them took half of the time.
constexpr size_t kStackBytes = (256 << 10) + 9 * 64;
constexpr size_t kMostSharedBytes = 227 << 10;

struct Copy {
  std::byte* to;
  std::byte bytes[16];
};

enum class State : uint8_t { kReady, kAtBlock, kAtWarp, kEnded };

struct Thread {
  context::fiber fiber;
  State state = State::kReady;
  uint32_t num_together = 0;  // of kAtBlock: the threads of its group
  WarpAction action = nullptr;
  void* argument = nullptr;
  std::vector<Copy> open_copies;               // of the group not yet ended
  std::vector<std::vector<Copy>> copy_groups;  // ended, not yet waited for
};

void arrive(const Copy& copy) { std::memcpy(copy.to, copy.bytes, sizeof copy.bytes); }

uint64_t blocks_of(const LaunchShape& shape) {
  return uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
}

// Consecutive ones of a launch, the first again after the last.
struct Blocks {
  uint64_t first = 0;
  uint64_t count = 0;
};

// One block at a time; its memory is used again for the next.
class Machine {
 public:
  void run(const LaunchShape& shape, const std::function<void()>& body, const Blocks& blocks) {
    if (shape.threads == 0 || shape.threads % kLanes != 0 || shape.threads > kMostThreads ||
        shape.shared_bytes > kMostSharedBytes) {
      throw Error("a launch of " + std::to_string(shape.threads) + " threads and " +
                  std::to_string(shape.shared_bytes) + " bytes of shared memory cannot be");
    }
    if (running_) throw Error("a launch inside a launch");
    running_ = true;
    place_.grid = shape.grid;
    place_.num_threads = shape.threads;
    body_ = &body;
    failure_ = nullptr;
    shared_.resize((shape.shared_bytes + 127) / 128);
    for (uint64_t i = 0; i < blocks.count && failure_ == nullptr; ++i) {
      uint64_t block = (blocks.first + i) % blocks_of(shape);
      place_.block.x = static_cast<uint32_t>(block % shape.grid.x);
      block /= shape.grid.x;
      place_.block.y = static_cast<uint32_t>(block % shape.grid.y);
      place_.block.z = static_cast<uint32_t>(block / shape.grid.y);
      run_block(shape.threads);
    }
    running_ = false;
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

  void set_seed(uint64_t seed) { seed_ = seed; }
  void set_predecessor(std::function<void()> work) { predecessor_ = std::move(work); }
  void wait_for_predecessor() {
    if (predecessor_) std::exchange(predecessor_, nullptr)();
  }
  const Place& place() const { return place_; }
  std::byte* shared_bytes() { return reinterpret_cast<std::byte*>(shared_.data()); }

  void wait_as(State state) {
    current().state = state;
    scheduler_ = std::move(scheduler_).resume();
  }

  Thread& current() { return threads_[place_.thread]; }

  void wake_all() { sleepers_ = 0; }

  bool coin() { return (next_random() & 1) != 0; }
  uint64_t next_random() { return mix_seed(seed_, draws_++); }

 private:
  struct alignas(128) SharedLine {
    std::byte bytes[128];
  };

  void run_block(uint32_t num_threads) {
    if (!shared_.empty()) std::memset(shared_.data(), 0xff, shared_.size() * sizeof(SharedLine));
    threads_.clear();
    threads_.resize(num_threads);
    std::ranges::fill(num_waiting_, 0u);
    for (uint32_t t = 0; t < num_threads; ++t) begin_thread(t);
    std::vector<uint32_t> order(num_threads);
    for (uint32_t t = 0; t < num_threads; ++t) order[t] = t;
    size_t num_ended = 0;
    sleepers_ = next_random();
    while (num_ended < num_threads && failure_ == nullptr) {
      std::rotate(order.begin(),
                  order.begin() + static_cast<ptrdiff_t>(next_random() % num_threads),
                  order.end());
      if (coin()) std::reverse(order.begin(), order.end());
      bool moved = false;
      for (const uint32_t t : order) {
        if (threads_[t].state != State::kReady) continue;
        if ((sleepers_ >> (t / kLanes) & 1) != 0) continue;
        moved = true;
        place_.thread = t;
        threads_[t].fiber = std::move(threads_[t].fiber).resume();
        if (failure_ != nullptr) return;
        if (threads_[t].state == State::kEnded) ++num_ended;
        if (threads_[t].state != State::kAtWarp) continue;
        uint32_t& num_waiting = num_waiting_[t / kLanes];
        if (++num_waiting < kLanes) continue;
        num_waiting = 0;
        settle_warp(t / kLanes);
      }
      if (moved || num_ended == num_threads) continue;
      // Who is awake can go no further: now the others.
      if (sleepers_ == 0) {
        settle_groups(num_threads);
        sleepers_ = next_random();
      } else {
        sleepers_ = 0;
      }
    }
  }

  void begin_thread(uint32_t t) {
    threads_[t].fiber =
        context::fiber(std::allocator_arg, stacks_, [this, t](context::fiber&& scheduler) {
          scheduler_ = std::move(scheduler);
          try {
            (*body_)();
          } catch (const context::detail::forced_unwind&) {
            throw;
          } catch (...) {
            failure_ = std::current_exception();
          }
          threads_[t].state = State::kEnded;
          return std::move(scheduler_);
        });
  }

  // All its lanes wait.
  void settle_warp(uint32_t warp) {
    void* arguments[kLanes];
    const WarpAction action = threads_[warp * kLanes].action;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const Thread& thread = threads_[warp * kLanes + lane];
      if (thread.action != action) {
        failure_ =
            std::make_exception_ptr(Error("the lanes of a warp are at different warp operations"));
        return;
      }
      arguments[lane] = thread.argument;
    }
    if (action != nullptr) action(arguments);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      threads_[warp * kLanes + lane].state = State::kReady;
    }
  }

  // Nobody can go on: all of some group must stand at sync_group().
  void settle_groups(uint32_t num_threads) {
    bool has_settled = false;
    for (uint32_t first = 0; first < num_threads; first += kLanes) {
      if (threads_[first].state != State::kAtBlock) continue;
      const uint32_t together = threads_[first].num_together;
      if (first % together != 0 || first + together > num_threads) continue;
      uint32_t end = first;
      while (end < first + together && threads_[end].state == State::kAtBlock &&
             threads_[end].num_together == together) {
        ++end;
      }
      if (end < first + together) continue;
      for (uint32_t t = first; t < end; ++t) threads_[t].state = State::kReady;
      has_settled = true;
    }
    if (!has_settled) fail_to_settle(num_threads);
  }
  void fail_to_settle(uint32_t num_threads) {
    for (uint32_t t = 0; t < num_threads; ++t) {
      if (threads_[t].state == State::kAtBlock) continue;
      failure_ = std::make_exception_ptr(
          Error("thread " + std::to_string(t) +
                (threads_[t].state == State::kEnded ? " has ended" : " waits for its warp") +
                " while others wait for the block"));
      return;
    }
    failure_ = std::make_exception_ptr(Error("threads wait for groups of different sizes"));
  }

  context::pooled_fixedsize_stack stacks_{kStackBytes};
  std::vector<SharedLine> shared_;
  std::vector<Thread> threads_;
  context::fiber scheduler_;
  const std::function<void()>* body_ = nullptr;
  std::function<void()> predecessor_;
  std::exception_ptr failure_;
  Place place_;
  bool running_ = false;
  uint64_t seed_ = 1;
  uint64_t draws_ = 0;
  uint64_t sleepers_ = 0;                             // a bit for each warp
  uint32_t num_waiting_[kMostThreads / kLanes] = {};  // lanes of a warp, at an operation of it
};

Machine& machine() {
  thread_local Machine machine;
  return machine;
}

// OS threads that run one block each, kept by the thread that launches: a machine takes time to
// make.
class Helpers {
 public:
  ~Helpers() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // task(0) ... task(count - 1), each on a thread of its own; finish() must follow.
  void begin(uint64_t count, std::function<void(uint64_t)> task) {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    failure_ = nullptr;
    num_left_ = count;
    ++turn_;
    for (uint64_t i = threads_.size(); i < count; ++i) {
      threads_.emplace_back([this, i, before = turn_ - 1] { run_thread(i, before); });
    }
    num_wanted_ = count;
    changed_.notify_all();
  }
  // What a task threw, if one did.
  std::exception_ptr finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_left_ == 0; });
    return failure_;
  }

 private:
  void run_thread(uint64_t index, uint64_t turn) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || turn_ != turn; });
      if (is_over_) return;
      turn = turn_;
      if (index >= num_wanted_) continue;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task_(index);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure != nullptr) failure_ = failure;
      if (--num_left_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(uint64_t)> task_;
  std::exception_ptr failure_;
  uint64_t turn_ = 0;  // of begin()
  uint64_t num_wanted_ = 0;
  uint64_t num_left_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void run(const LaunchShape& shape, const std::function<void()>& body) {
  const uint64_t count = blocks_of(shape);
  const uint64_t drawn = machine().next_random();
  if (!shape.blocks_wait || count <= 1) {
    return machine().run(shape, body, {count == 0 ? 0 : drawn % count, count});
  }
  thread_local Helpers helpers;
  helpers.begin(count - 1, [&](uint64_t block) {
    machine().set_seed(mix_seed(drawn, block));
    machine().run(shape, body, {block, 1});
  });
  std::exception_ptr failure;
  try {
    machine().run(shape, body, {count - 1, 1});
  } catch (...) {
    failure = std::current_exception();
  }
  const std::exception_ptr of_helper = helpers.finish();
  if (failure == nullptr) failure = of_helper;
  if (failure != nullptr) std::rethrow_exception(failure);
}
void set_seed(uint64_t seed) { machine().set_seed(seed); }
void set_predecessor(std::function<void()> work) { machine().set_predecessor(std::move(work)); }
void wait_for_predecessor() { machine().wait_for_predecessor(); }
const Place& place() { return machine().place(); }
std::byte* shared_bytes() { return machine().shared_bytes(); }
// What is waited for may be another process's or thread's to do, which needs a core: one look of
// all of a block's threads is enough before this one goes to sleep.
void yield_thread() {
  constexpr uint32_t kLooksBetweenSleeps = 256;
  static thread_local uint32_t num_looks = 0;
  if (++num_looks % kLooksBetweenSleeps == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  } else {
    std::this_thread::yield();
  }
  machine().wake_all();  // what the thread waits for may be theirs to do
  machine().wait_as(State::kReady);
}
void sync_group(uint32_t num_threads) {
  machine().current().num_together = num_threads;
  machine().wait_as(State::kAtBlock);
}

void warp_together(WarpAction action, void* lane_argument) {
  Thread& thread = machine().current();
  thread.action = action;
  thread.argument = lane_argument;
  machine().wait_as(State::kAtWarp);
}

void copy_async_16(void* to, const void* from, bool valid) {
  Copy copy = {static_cast<std::byte*>(to), {}};
  if (valid) std::memcpy(copy.bytes, from, sizeof copy.bytes);
  if (machine().coin()) return arrive(copy);
  machine().current().open_copies.push_back(copy);
}

void end_copy_group() {
  Thread& thread = machine().current();
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void wait_copies(int most_under_way) {
  Thread& thread = machine().current();
  while (thread.copy_groups.size() > static_cast<size_t>(most_under_way)) {
    for (const Copy& copy : thread.copy_groups.front()) arrive(copy);
    thread.copy_groups.erase(thread.copy_groups.begin());
  }
}

}  // namespace outrider::gpu::emulated
