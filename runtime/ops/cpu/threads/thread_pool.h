// The threads of one rank's forward pass. run() hands every thread the same job with its index and
// returns when all are done; who does what is a fixed partition, so nothing depends on timing. The
// caller is thread 0. Workers wait by polling for a moment (ops follow each other within
// microseconds) and then sleep, because several ranks may share the cores; where threads are known
// to be more than CPUs they sleep at once. One caller at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/ops/thread_plan.h"

namespace outrider::ops {

class ThreadPool {
 public:
  // num_threads - 1 workers; throws Error when below 1 or above 1024. With CPUs in the plan each
  // thread is held on its own, the calling one too, until the pool ends.
  explicit ThreadPool(const ThreadPlan& plan);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  const ThreadPlan& plan() const { return plan_; }
  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Jobs handed over so far, modulo 2^32.
  uint32_t num_rounds() const { return round_.load(std::memory_order_relaxed); }

  // Calls job(thread, num_threads) once per thread. The job must not throw.
  template <typename Job>
  void run(const Job& job) {
    run_erased(
        [](const void* erased, int thread, int count) {
          (*static_cast<const Job*>(erased))(thread, count);
        },
        &job);
  }

  // Cuts 0 .. count into one contiguous range per thread: body(begin, end), skipped when empty.
  // With inline_only the caller does it all: for work smaller than the hand-over.
  template <typename Body>
  void for_range(int64_t count, bool inline_only, const Body& body) {
    if (inline_only || workers_.empty() || count <= 1) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    run([&](int thread, int num) {
      const int64_t begin = count * thread / num;
      const int64_t end = count * (thread + 1) / num;
      if (begin < end) body(begin, end);
    });
  }

 private:
  using Erased = void (*)(const void*, int, int);
  void run_erased(Erased function, const void* job);
  void stop();
  void work(int thread);
  void await_workers();
  uint32_t await_round(uint32_t seen);

  const ThreadPlan plan_;
  const PinnedThread caller_;
  std::vector<std::thread> workers_;
  Erased function_ = nullptr;
  const void* job_ = nullptr;
  // The round number tells workers that function_ and job_ are set (or that stop_ is); unfinished_
  // counts back.
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  std::atomic<int> sleepers_{0};
  bool stop_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;  // crowded pools only
};

}  // namespace outrider::ops
