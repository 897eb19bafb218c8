// Work of an emulated stream, in order: done at once, as late as may be, or by a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/ops/gpu/device.h"

namespace outrider::gpu::emulated {

using Work = std::function<void()>;

// Does the work, or records it. `stream` is one of an emulated device.
void enqueue(Stream& stream, Work work);

enum class WorkTime : uint8_t {
  kAtOnce,    // before add() returns
  kLate,      // when somebody waits, or a piece at each look
  kOnThread,  // by a thread of the queue's own, while the caller goes on
};

class WorkQueue {
 public:
  explicit WorkQueue(bool has_thread);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void add(Work work);
  // Until all are done. Throws what a piece of work threw, now or later, on whichever thread.
  void do_all();
  // A look is the time that one piece of work takes.
  bool look();

 private:
  void run_thread();
  void do_next(std::unique_lock<std::mutex>& lock);
  void throw_failure();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  bool is_over_ = false;
  std::exception_ptr failure_;  // of the thread's
  std::thread thread_;
};

}  // namespace outrider::gpu::emulated
