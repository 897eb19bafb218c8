// See request.h.
#include "scheduler/request.h"

namespace outrider {

void ResultStream::push(ResultEvent event) {
  {
    std::lock_guard lock(mutex_);
    // For a reader that is always behind.
    if (events_.size() == events_.capacity() && 2 * next_ >= events_.size()) {
      const auto taken = static_cast<ptrdiff_t>(std::exchange(next_, 0));
      events_.erase(events_.begin(), events_.begin() + taken);
    }
    events_.push_back(std::move(event));
  }
  arrived_.notify_one();
}

std::optional<ResultEvent> ResultStream::wait_next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto has_next = [&] { return next_ < events_.size(); };
  if (!has_next() && timeout <= std::chrono::milliseconds::zero()) return std::nullopt;
  if (!arrived_.wait_for(lock, timeout, has_next)) return std::nullopt;
  ResultEvent event = std::move(events_[next_++]);
  if (!has_next()) {
    events_.clear();
    next_ = 0;
  }
  return event;
}

}  // namespace outrider
