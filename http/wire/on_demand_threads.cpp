// See on_demand_threads.h.
#include "http/wire/on_demand_threads.h"

#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kKeepIdle{5};

}  // namespace

bool OnDemandThreads::submit(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  if (num_idle_ <= jobs_.size() && !spawn()) return false;
  jobs_.push_back(std::move(job));
  wake_.notify_one();
  return true;
}

void OnDemandThreads::shutdown() {
  std::unique_lock lock(mutex_);
  shutting_down_ = true;
  wake_.notify_all();
  ended_.wait(lock, [&] { return num_threads_ == 0; });
}

bool OnDemandThreads::spawn() {
  if (num_threads_ >= max_threads_) return false;
  try {
    std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++num_threads_;
  return true;
}

void OnDemandThreads::work() {
  set_thread_log_name("http");
  std::unique_lock lock(mutex_);
  for (;;) {
    ++num_idle_;
    const bool woken =
        wake_.wait_for(lock, kKeepIdle, [&] { return !jobs_.empty() || shutting_down_; });
    --num_idle_;
    if (jobs_.empty() && (shutting_down_ || !woken)) break;
    if (jobs_.empty()) continue;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      job();
    } catch (const std::exception& error) {
      log_error("a job failed: {}", error.what());
    }
    lock.lock();
  }
  --num_threads_;
  ended_.notify_all();
}

}  // namespace outrider
