// Waiting for the end of a step on a GPU: while it is far off, the thread does what the rank has to
// do meanwhile (Model::set_meanwhile). When it comes is known from the last step of that size; for
// the last part, and for all of it where nothing is known, the thread waits in the group's own way,
// which is quick to notice the end and gives up on dead members within the group's time limit.
#pragma once

#include <map>

#include "models/forward/model.h"
#include "models/gpu/step.h"
#include "runtime/base/clock.h"
#include "runtime/comm/device/device_group.h"

namespace outrider {

class GpuStepWait {
 public:
  // The step's work begins to be queued.
  void begin(const LaunchSizes& sizes);
  // Until all that was queued on `stream` is done; before_end is called between listening and
  // waiting. Throws what DeviceGroup::wait() throws.
  void finish(gpu::Stream& stream,
              DeviceGroup& group,
              const Model::Meanwhile& meanwhile,
              const std::function<void()>& before_end = {});

 private:
  // True when the step was over before it was expected.
  static bool listen(gpu::Stream& stream,
                     const Model::Meanwhile& meanwhile,
                     JobClock::time_point end);

  std::map<LaunchSizes, JobClock::duration> times_;
  JobClock::duration* time_ = nullptr;  // of steps like the one under way; null: none is
  JobClock::time_point begin_{};
};

}  // namespace outrider
