// The emulated GPU, for tests: the same kernels as the CUDA shared object has, on this CPU.
#pragma once

#include <vector>

#include "runtime/ops/gpu/backend.h"
#include "tests/emulated/machine.h"
#include "tests/emulated/work_queue.h"

namespace outrider::gpu::emulated {

const Backend& backend();

// What GPUs this machine shows from now on: their names, compute capabilities and memory, by
// ordinal; the rest is made up. One at first. Not while jobs run.
void set_devices(const std::vector<DeviceInfo>& devices);
DeviceInfo default_device();
// The same with the numbers of an H200; what is taken of its memory must be there, of course.
DeviceInfo h200_device();

// When the work of streams is done. kLate: who looks at results or touches inputs too early is
// found out; for devices that one thread uses. kOnThread, of streams made from now on: as on a real
// device, who waits for a launch that waits for another rank can look around meanwhile.
void set_work_time(WorkTime time);

}  // namespace outrider::gpu::emulated
