// The real device's PeerMemory.
#pragma once

#include "runtime/ops/gpu/peer_memory.h"

namespace outrider::gpu {

PeerMemory cuda_peer_memory();

}  // namespace outrider::gpu
