// The emulated GPU, for tests: the same kernels as the CUDA shared object has, on this CPU.
#pragma once

#include "runtime/ops/emulated/machine.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider::gpu::emulated {

const Backend& backend();

// What is queued from now on is done when somebody waits for it, or a piece at each
// Stream::is_done(): who looks at results or touches inputs too early is found out. Else it is done
// as it is queued. For devices that one thread uses.
void set_late(bool is_late);

}  // namespace outrider::gpu::emulated
