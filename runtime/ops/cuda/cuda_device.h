// The real device, for cuda_backend.cu, which checks that there is one first.
#pragma once

#include <memory>

#include "runtime/ops/gpu/device.h"

namespace outrider::gpu {

// overlap: launches that allow it may begin before their predecessor has ended.
std::unique_ptr<Device> make_cuda_device(int ordinal, bool overlap);

}  // namespace outrider::gpu
