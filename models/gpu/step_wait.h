// Waiting for the end of a step on a GPU: while it is far off, the thread is free for other things.
// When it comes is known from the last step of that size; for the last part, and for all of it
// where nothing is known, the thread waits in the group's own way, which is quick to notice the end
// and gives up on dead members within the group's time limit.
#pragma once

#include <map>
#include <optional>

#include "models/gpu/step.h"
#include "runtime/base/clock.h"
#include "runtime/comm/device/device_group.h"

namespace outrider {

class GpuStepWait {
 public:
  // The step's work begins to be queued.
  void begin(const LaunchSizes& sizes);
  // As Model::advance(). Throws what finish() throws.
  std::optional<JobClock::time_point> next_look(gpu::Stream& stream, DeviceGroup& group);
  // Until all that was queued on `stream` is done. Throws what DeviceGroup::wait() throws.
  void finish(gpu::Stream& stream, DeviceGroup& group);

 private:
  std::map<LaunchSizes, JobClock::duration> times_;
  JobClock::duration* time_ = nullptr;  // of steps like the one under way; null: none is
  JobClock::time_point begin_{};
  bool was_early_ = false;  // over before it was expected
};

}  // namespace outrider
