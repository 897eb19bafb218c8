// See request.h.
#include "scheduler/request.h"

namespace outrider {

void ResultStream::push(ResultEvent event) {
  {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  arrived_.notify_one();
}

std::optional<ResultEvent> ResultStream::wait_next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (events_.empty() && timeout <= std::chrono::milliseconds::zero()) return std::nullopt;
  if (!arrived_.wait_for(lock, timeout, [&] { return !events_.empty(); })) return std::nullopt;
  ResultEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace outrider
