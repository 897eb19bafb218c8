// See request.h.
#include "scheduler/request.h"

namespace outrider {

const char* verify_mode_name(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kStandard:
      return "standard";
    case VerifyMode::kBlock:
      return "block";
    case VerifyMode::kCoupled:
      return "coupled";
    case VerifyMode::kAuto:
      break;
  }
  return "auto";
}

std::optional<VerifyMode> verify_mode_from_name(std::string_view name) {
  for (VerifyMode mode :
       {VerifyMode::kAuto, VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    if (name == verify_mode_name(mode)) return mode;
  }
  return std::nullopt;
}

const char* async_drafting_name(AsyncDrafting mode) {
  switch (mode) {
    case AsyncDrafting::kOff:
      return "off";
    case AsyncDrafting::kChain:
      return "chain";
    case AsyncDrafting::kCache:
      return "cache";
    case AsyncDrafting::kAuto:
      break;
  }
  return "auto";
}

std::optional<AsyncDrafting> async_drafting_from_name(std::string_view name) {
  for (AsyncDrafting mode :
       {AsyncDrafting::kAuto, AsyncDrafting::kOff, AsyncDrafting::kChain, AsyncDrafting::kCache}) {
    if (name == async_drafting_name(mode)) return mode;
  }
  return std::nullopt;
}

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
