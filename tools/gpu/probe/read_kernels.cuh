// The kernels of the bandwidth probe: each reads all of `data` and folds the xor of its words into
// *sum. count: how many uint4, a multiple of 8192 (128 KiB). All may be launched as programmatic
// dependents: they let the next one start at once and wait for their predecessor only before they
// write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/gpu/probe/device_intrinsics.cuh"

namespace outrider::gpu_probe {

__device__ inline unsigned folded(uint4 word) { return word.x ^ word.y ^ word.z ^ word.w; }

__device__ inline void add_to_sum(unsigned mine, unsigned* sum) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine ^= __shfl_xor_sync(~0u, mine, lanes);
  }
  wait_for_predecessor();
  if (threadIdx.x % 32 == 0) {
    atomicXor(sum, mine);
  }
}

// Plain 16-byte loads, kPerTurn of them per thread and turn; how many are on their way at once is
// the compiler's choice.
template <int kPerTurn, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    read_plain(const uint4* data, size_t count, unsigned* sum) {
  let_successor_start();
  unsigned mine = 0;
  const size_t tile = static_cast<size_t>(blockDim.x) * kPerTurn;
  for (size_t first = blockIdx.x * tile; first < count; first += gridDim.x * tile) {
    uint4 words[kPerTurn];
#pragma unroll
    for (int i = 0; i < kPerTurn; ++i) {
      words[i] = load_streaming(data + first + static_cast<size_t>(i) * blockDim.x + threadIdx.x);
    }
#pragma unroll
    for (int i = 0; i < kPerTurn; ++i) {
      mine ^= folded(words[i]);
    }
  }
  add_to_sum(mine, sum);
}

// cp.async: each thread keeps kStages copies of 16 bytes on their way into shared memory and reads
// back its own.
template <int kStages>
__global__ void __launch_bounds__(256)
    read_cp_async(const uint4* data, size_t count, unsigned* sum) {
  let_successor_start();
  extern __shared__ uint4 stages[];
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t next = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  size_t current = next;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage, next += stride) {
    if (next < count) {
      copy_async_16(stages + stage * blockDim.x + threadIdx.x, data + next);
    }
    commit_copies();
  }
  unsigned mine = 0;
  for (int stage = 0; current < count; current += stride, next += stride) {
    wait_for_copies<kStages - 1>();
    uint4* slot = stages + stage * blockDim.x + threadIdx.x;
    mine ^= folded(*slot);
    if (next < count) {
      copy_async_16(slot, data + next);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  add_to_sum(mine, sum);
}

template <int kTileBytes, int kStages>
constexpr size_t bulk_shared_bytes() {
  return size_t{kTileBytes} * kStages + size_t{8} * kStages;
}

// One-dimensional bulk copies of kTileBytes, kStages of them on their way per block; thread 0 asks
// for them.
template <int kTileBytes, int kStages>
__global__ void __launch_bounds__(512) read_bulk(const uint4* data, size_t count, unsigned* sum) {
#if __CUDA_ARCH__ >= 900
  let_successor_start();
  extern __shared__ __align__(128) unsigned char memory[];
  auto* barriers = reinterpret_cast<uint64_t*>(memory + size_t{kTileBytes} * kStages);
  constexpr int kTileWords = kTileBytes / 16;
  const size_t tiles = count / kTileWords;
  const size_t my_tiles = blockIdx.x < tiles ? (tiles - blockIdx.x - 1) / gridDim.x + 1 : 0;
  const auto ask_for = [&](size_t tile, int stage) {
    expect_bytes(barriers + stage, kTileBytes);
    copy_bulk(memory + size_t{kTileBytes} * stage,
              data + (blockIdx.x + tile * gridDim.x) * kTileWords,
              kTileBytes,
              barriers + stage);
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(barriers + stage, 1);
    }
    fence_barrier_init();
    for (int stage = 0; stage < kStages && stage < my_tiles; ++stage) {
      ask_for(stage, stage);
    }
  }
  __syncthreads();
  unsigned mine = 0;
  int stage = 0;
  unsigned phase = 0;
  for (size_t tile = 0; tile < my_tiles; ++tile) {
    wait_barrier(barriers + stage, phase);
    const auto* words = reinterpret_cast<const uint4*>(memory + size_t{kTileBytes} * stage);
    for (int i = static_cast<int>(threadIdx.x); i < kTileWords; i += static_cast<int>(blockDim.x)) {
      mine ^= folded(words[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0 && tile + kStages < my_tiles) {
      ask_for(tile + kStages, stage);
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1u : 0u;
  }
  add_to_sum(mine, sum);
#endif
}

}  // namespace outrider::gpu_probe
