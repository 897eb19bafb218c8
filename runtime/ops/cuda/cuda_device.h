// The real device and its PeerMemory, for cuda_backend.cu, which checks that there is one first.
#pragma once

#include <memory>

#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/peer_memory.h"

namespace outrider::gpu {

// overlap: launches that allow it may begin before their predecessor has ended.
std::unique_ptr<Device> make_cuda_device(int ordinal, bool overlap);
PeerMemory cuda_peer_memory();  // peer_memory.cu

}  // namespace outrider::gpu
