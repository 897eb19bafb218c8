// Device memory that several ranks write into: of one process, or of processes of one host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/ops/gpu/device.h"

namespace outrider::gpu {

// Names an allocation to other processes of the host.
using MemoryHandle = std::array<std::byte, 64>;

// All throw Error with one sentence when the device cannot.
struct PeerMemory {
  // Of a block from Device::allocate(), at its beginning.
  MemoryHandle (*share)(Device&, void* memory) = nullptr;
  // What another process shared; close() before that process ends.
  void* (*open)(Device&, const MemoryHandle&) = nullptr;
  void (*close)(Device&, void*) noexcept = nullptr;
  // From now on kernels of `device` may write to memory of this process's device `ordinal`.
  void (*reach)(Device&, int ordinal) = nullptr;
  // Blocks of a launch that run at the same time whatever else there is, so that they may wait for
  // other ranks' blocks.
  uint32_t max_waiting_blocks = 0;
};

}  // namespace outrider::gpu
