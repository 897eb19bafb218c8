// Threads made when there is work and none is idle, up to a maximum, and kept for a moment for the
// next. One per open connection: an HTTP stream holds its thread for as long as it lasts.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace outrider {

class OnDemandThreads {
 public:
  explicit OnDemandThreads(size_t max_threads) : max_threads_(max_threads) {}

  // False, and nothing done, when all threads are taken: a job never waits behind another.
  bool submit(std::function<void()> job);
  // Waits for the jobs to end. Must be called before destruction.
  void shutdown();

 private:
  bool spawn();  // with the lock held
  void work();

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> jobs_;
  size_t num_threads_ = 0;
  size_t num_idle_ = 0;
  bool shutting_down_ = false;
};

}  // namespace outrider
