// The emulated GPU, for tests: the same kernels as the CUDA shared object has, on this CPU.
#pragma once

#include <vector>

#include "runtime/ops/emulated/machine.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider::gpu::emulated {

const Backend& backend();

// What GPUs this machine shows from now on: their names, compute capabilities and memory, by
// ordinal; the rest is made up. One at first. Not while jobs run.
void set_devices(const std::vector<DeviceInfo>& devices);
DeviceInfo default_device();

// What is queued from now on is done when somebody waits for it, or a piece at each
// Stream::is_done(): who looks at results or touches inputs too early is found out. Else it is done
// as it is queued. For devices that one thread uses.
void set_late(bool is_late);

}  // namespace outrider::gpu::emulated
