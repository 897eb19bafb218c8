// The exchange between GPUs that can write into each other's memory: the sum of every rank's part,
// alone or as part of the norm that wants it. Arguments only; the protocol is exchange_protocol.h,
// the kernels runtime/ops/cuda/exchange/exchange.cu, who sets the memory up
// runtime/comm/device/exchange_group.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/gpu/launch_shape.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider::gpu {

inline constexpr int32_t kMaxPeers = 8;
inline constexpr int32_t kNumExchangeBuffers = 3;

// What a word holds while nothing has arrived: the bits of -0.0f. Never sent: a part's -0.0 goes as
// +0.0, and sums of such parts are never -0.0.
inline constexpr uint32_t kEmptyWord = 0x80000000u;

// Blocks of a launch at most.
inline constexpr uint32_t kMaxExchangeBlocks = 32;

// In device memory, one rank's own; zeros at first. Graph replays read it, so nothing of a round
// stands in a launch's arguments.
struct ExchangeState {
  // Every block counts the rounds itself, so that none must be heard of the others' reading.
  struct Block {
    uint32_t buffer = 0;        // of the next round: 0, 1, 2, 0, ...
    uint32_t last_vectors = 0;  // of a slot that the round before used
  };
  Block blocks[kMaxExchangeBlocks];
  uint32_t num_done[kMaxExchangeBlocks] = {};  // pieces of a row, of few rows
  uint32_t is_broken = 0;  // a wait was given up: nothing is waited for any more
};

// In pinned host memory, one rank's own; zeros at first.
struct ExchangeReport {
  uint32_t stop = 0;  // written by the host: waits end
  uint32_t is_broken = 0;
  // By rank: its part / the sums it folds were waited for until the time limit.
  uint32_t is_part_late[kMaxPeers] = {};
  uint32_t are_sums_late[kMaxPeers] = {};
};

// One rank's view of all ranks' exchange memory: [kNumExchangeBuffers][size + 1
// slots][slot_vectors] of 16 bytes, kEmptyWord in every word at first. Slot r is for rank r's part,
// slot `size` for sums.
struct ExchangeView {
  int32_t rank = 0;
  int32_t size = 1;
  Vector4* memory[kMaxPeers] = {};
  uint32_t slot_vectors = 0;
  // Of every launch, on all ranks; at most kMaxExchangeBlocks. All ranks' blocks of one GPU must
  // find room at once.
  uint32_t num_blocks = 1;
  // Another rank of this process is on this GPU: what follows must not begin before this launch
  // ends, or its blocks, which wait for this one, could take the room of those of the other rank,
  // for which this one waits.
  bool shares_device = false;
  ExchangeState* state = nullptr;
  ExchangeReport* report = nullptr;
  // Of one wait, for a part and for sums: longer, since whoever owes them may be waiting for a
  // part, and the rank that owes that one is to be named.
  uint64_t limit_ns = 0;
  uint64_t sums_limit_ns = 0;
};
constexpr size_t exchange_memory_vectors(int32_t size, uint32_t slot_vectors) {
  return size_t{kNumExchangeBuffers} * static_cast<size_t>(size + 1) * slot_vectors;
}

struct ExchangeKind {
  static constexpr uint32_t kNever = UINT32_MAX;
  bool in_tree = false;  // fold ranks as fold_tree.h does, else in rank order
  // From so many vectors of a slot on every rank folds a share for all; below, everyone folds all.
  uint32_t two_shot_vectors = kNever;
  // May be read into the cache while waiting.
  const void* next = nullptr;
  size_t next_bytes = 0;
};

// values[i] = the sum over the ranks of values[i]. 16-byte aligned; at most 4 * slot_vectors.
struct ExchangeSumArgs {
  ExchangeView view;
  ExchangeKind kind;
  float* values = nullptr;
  size_t count = 0;
};

// NormArgs with the sum over the ranks of `part` in place of norm.part. max_rows * n at most
// 4 * slot_vectors, n a multiple of 4. `part` is undefined afterwards.
struct ExchangeNormArgs {
  ExchangeView view;
  ExchangeKind kind;
  NormArgs norm;
  float* part = nullptr;
};

// out[i] = parts[0, count) and those of the others at i, folded in the tree over parts.
struct FoldPartsArgs {
  const float* parts = nullptr;  // [num_parts, count]
  int32_t num_parts = 0;         // at most kMaxFoldParts
  float* out = nullptr;
  size_t count = 0;
};
inline constexpr int32_t kMaxFoldParts = 64;

}  // namespace outrider::gpu
