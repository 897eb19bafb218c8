// The emulated device's memory: the host's, in blocks of whole pages, so that a block can be put
// into a file without a name which other processes of the user map. Any thread.
#pragma once

#include <cstddef>

#include "runtime/ops/gpu/peer_memory.h"

namespace outrider::gpu::emulated {

// 0xff in every byte. Null when there is none.
void* take_block(size_t num_bytes);
void give_back_block(void* block) noexcept;

// While nobody uses the block: it then has the same address and contents, but lies in the file.
MemoryHandle share_block(void* block);
// In another process, while the one that shared it lives. All throw Error.
void* open_block(const MemoryHandle& handle);
void close_block(void* opened) noexcept;

}  // namespace outrider::gpu::emulated
