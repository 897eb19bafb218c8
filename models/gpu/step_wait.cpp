// See step_wait.h.
#include "models/gpu/step_wait.h"

#include <algorithm>
#include <bit>
#include <utility>

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

}  // namespace

void GpuStepWait::begin(const LaunchSizes& sizes) {
  time_ = &times_[kind_of(sizes)];
  begin_ = JobClock::now();
}

void GpuStepWait::finish(gpu::Stream& stream,
                         DeviceGroup& group,
                         const Model::Meanwhile& meanwhile,
                         const std::function<void()>& before_end) {
  JobClock::duration* const time = std::exchange(time_, nullptr);
  const bool may_listen =
      time != nullptr && meanwhile && !JobClock::is_virtual_here() && !stream.is_done();
  bool was_early = false;
  if (may_listen) {
    const std::chrono::duration<double> part = kListenedPart * *time;
    was_early =
        listen(stream, meanwhile, begin_ + std::chrono::duration_cast<JobClock::duration>(part));
    if (before_end) before_end();
  }
  group.wait(stream);
  if (!may_listen) return;
  // When it ended is known only to who waited for the end.
  *time = was_early ? *time - *time / 8 : JobClock::now() - begin_;
}

bool GpuStepWait::listen(gpu::Stream& stream,
                         const Model::Meanwhile& meanwhile,
                         JobClock::time_point end) {
  for (auto now = JobClock::now(); now < end; now = JobClock::now()) {
    meanwhile(std::min<JobClock::time_point>(now + kLook, end));
    if (stream.is_done()) return true;
  }
  return false;
}

}  // namespace outrider
