// See step_wait.h.
#include "models/gpu/step_wait.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {
namespace {

// Of a step's expected time. Two steps of the same sizes differ by their contexts.
constexpr double kListenedPart = 0.85;
// A step that was over earlier than expected is noticed so late at most.
constexpr std::chrono::microseconds kLook{200};

// Steps of many rows are of many sizes; those of similar ones take similar times.
LaunchSizes kind_of(const LaunchSizes& sizes) {
  if (sizes.rows <= kMostRecordedRows) return sizes;
  return {.rows = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(sizes.rows)))};
}

// A GPU may fail because a rank is gone: then the group throws first, and names it.
bool is_done(gpu::Stream& stream, DeviceGroup& group) {
  try {
    return stream.is_done();
  } catch (const Error&) {
    group.wait(stream);
    throw;
  }
}

}  // namespace

void GpuStepWait::begin(const LaunchSizes& sizes) {
  time_ = &times_[kind_of(sizes)];
  begin_ = JobClock::now();
  was_early_ = false;
}

std::optional<JobClock::time_point> GpuStepWait::next_look(gpu::Stream& stream,
                                                           DeviceGroup& group) {
  if (time_ == nullptr || JobClock::is_virtual_here()) return std::nullopt;
  const std::chrono::duration<double> part = kListenedPart * *time_;
  const auto end = begin_ + std::chrono::duration_cast<JobClock::duration>(part);
  const auto now = JobClock::now();
  if (now >= end) return std::nullopt;
  was_early_ = is_done(stream, group);
  if (was_early_) return std::nullopt;
  return std::min<JobClock::time_point>(now + kLook, end);
}

void GpuStepWait::finish(gpu::Stream& stream, DeviceGroup& group) {
  JobClock::duration* const time = std::exchange(time_, nullptr);
  const bool was_done = is_done(stream, group);
  group.wait(stream);
  if (time == nullptr || JobClock::is_virtual_here()) return;
  // When it ended is known only to who waited for the end.
  if (was_early_) {
    *time -= *time / 8;
  } else if (!was_done) {
    *time = JobClock::now() - begin_;
  }
}

}  // namespace outrider
