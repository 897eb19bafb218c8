// The emulated device's queues: work is done when it is queued, or later (emulated.h); kept while
// recording.
#pragma once

#include <functional>

#include "runtime/ops/gpu/device.h"

namespace outrider::gpu::emulated {

// Does the work, or records it. `stream` is one of an emulated device.
void enqueue(Stream& stream, std::function<void()> work);

}  // namespace outrider::gpu::emulated
