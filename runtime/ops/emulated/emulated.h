// The emulated GPU, for tests: the same kernels as the CUDA shared object has, on this CPU.
#pragma once

#include "runtime/ops/emulated/machine.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider::gpu::emulated {

const Backend& backend();

}  // namespace outrider::gpu::emulated
