// See thread_pool.h. Hand-over: the caller writes the job, then raises round_ (release); a worker
// that sees the new round (acquire) runs it and lowers unfinished_. A worker goes to sleep only
// under the mutex and after looking at round_ once more, and the caller looks at sleepers_ after
// raising round_, both sequentially consistent: one of the two always sees the other.
#include "runtime/ops/cpu/threads/thread_pool.h"

#include <sched.h>

#include <chrono>
#include <string>
#include <system_error>

#include "runtime/base/error.h"

namespace outrider::ops {
namespace {

constexpr auto kPollTime = std::chrono::microseconds(40);
constexpr int kPausesPerLook = 64;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

const ThreadPlan& checked(const ThreadPlan& plan) {
  if (plan.num_threads < 1 || plan.num_threads > 1024) {
    throw Error("number of threads must be 1 to 1024, not " + std::to_string(plan.num_threads));
  }
  OUTRIDER_CHECK(plan.cpus.empty() || std::ssize(plan.cpus) == plan.num_threads);
  return plan;
}

// Polls until ready() or, when limited, until the poll time is over. Gives the core away between
// bursts.
template <typename Ready>
bool poll(const Ready& ready, bool limited) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
    if (std::chrono::steady_clock::now() - begin < kPollTime) continue;
    if (limited) return false;
    sched_yield();
  }
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPlan& plan) : plan_(checked(plan)), caller_(plan_, 0) {
  workers_.reserve(static_cast<size_t>(plan.num_threads - 1));
  try {
    for (int thread = 1; thread < plan.num_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error&) {
    stop();
    throw Error("the system lets this process have only " + std::to_string(workers_.size() + 1) +
                " of " + std::to_string(plan.num_threads) + " threads");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    round_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Erased function, const void* job) {
  const int count = num_threads();
  if (count > 1) {
    function_ = function;
    job_ = job;
    unfinished_.store(count - 1, std::memory_order_relaxed);
    round_.fetch_add(1);
    if (sleepers_.load() > 0) {
      const std::lock_guard lock(mutex_);
      wake_.notify_all();
    }
  }
  function(job, 0, count);
  if (count > 1) await_workers();
}

void ThreadPool::await_workers() {
  const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (!plan_.crowded) {
    poll(finished, false);
    return;
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, finished);
}

uint32_t ThreadPool::await_round(uint32_t seen) {
  const auto raised = [this, seen] { return round_.load() != seen; };
  if (plan_.crowded || !poll(raised, true)) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, raised);
    sleepers_.fetch_sub(1);
  }
  return seen + 1;
}

void ThreadPool::work(int thread) {
  const PinnedThread pinned(plan_, thread);
  uint32_t round = 0;
  for (;;) {
    round = await_round(round);
    if (stop_) return;
    function_(job_, thread, num_threads());
    const bool is_last = unfinished_.fetch_sub(1, std::memory_order_release) == 1;
    if (!is_last || !plan_.crowded) continue;
    // Once the mutex is free the caller either sleeps or has not looked yet.
    { const std::lock_guard lock(mutex_); }
    finished_.notify_one();
  }
}

}  // namespace outrider::ops
