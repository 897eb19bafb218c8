// See work_queue.h.
#include "tests/emulated/work_queue.h"

#include <utility>

namespace outrider::gpu::emulated {

WorkQueue::WorkQueue(bool has_thread) {
  if (has_thread) thread_ = std::thread([this] { run_thread(); });
}

WorkQueue::~WorkQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void WorkQueue::do_all() {
  std::unique_lock lock(mutex_);
  if (thread_.joinable()) {
    changed_.wait(lock, [this] { return works_.empty() || failure_; });
    return throw_failure();
  }
  while (!works_.empty()) do_next(lock);
}

bool WorkQueue::look() {
  std::unique_lock lock(mutex_);
  if (thread_.joinable()) {
    throw_failure();
  } else if (!works_.empty()) {
    do_next(lock);
  }
  return works_.empty();
}

// What is done stays in the queue until then: who looks sees that it is not empty.
void WorkQueue::run_thread() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_over_ || (!works_.empty() && !failure_); });
    if (works_.empty() || failure_) return;
    const Work work = works_.front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    works_.pop_front();
    failure_ = failure;
    changed_.notify_all();
  }
}

void WorkQueue::do_next(std::unique_lock<std::mutex>& lock) {
  const Work work = std::move(works_.front());
  works_.pop_front();
  lock.unlock();
  work();
  lock.lock();
}

void WorkQueue::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace outrider::gpu::emulated
