// A piece of a row in shared memory, as sampling sees it, and what a block finds out together.
#pragma once

#include "runtime/base/numbers/exact_math.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/row_scan.h"

namespace outrider::gpu {

inline constexpr uint32_t kChunkThreads = 256;

// One file of kernels each.
void read_values(Stream& stream, const RowTasks& tasks);  // row_sums.cu
void sum_rows(Stream& stream, const RowTasks& tasks);     // row_sums.cu
void rank_tokens(Stream& stream, const RowTasks& tasks);  // row_sums.cu
void fill_bands(Stream& stream, const RowTasks& tasks);   // row_bands.cu
void find_best(Stream& stream, const RowTasks& tasks);    // row_best.cu
void find_top(Stream& stream, const RowTasks& tasks);     // row_top.cu

// A block for every task (x) and every chunk of the largest row (y).
inline LaunchShape chunk_shape(int32_t most_tokens, int32_t num_tasks, size_t shared_bytes) {
  const auto chunks = static_cast<uint32_t>(most_tokens > 0 ? num_chunks(most_tokens) : 1);
  return {.grid = {static_cast<uint32_t>(num_tasks), chunks},
          .threads = kChunkThreads,
          .shared_bytes = shared_bytes};
}

struct Chunk {
  int32_t begin;
  int32_t count;  // not above 0: nothing to do
};

OUTRIDER_DEVICE Chunk chunk_of(int32_t row_size) {
  const int32_t begin = static_cast<int32_t>(block_id().y) * kChunkTokens;
  const int32_t left = row_size - begin;
  return {begin, left < kChunkTokens ? left : kChunkTokens};
}

// Where in an ascending list the values from `least` begin.
OUTRIDER_DEVICE int32_t first_at_least(const int32_t* list, int32_t n, int32_t least) {
  int32_t first = 0;
  while (first < n) {
    const int32_t middle = first + (n - first) / 2;
    if (list[middle] < least) {
      first = middle + 1;
    } else {
      n = middle;
    }
  }
  return first;
}

// Fills values[chunk.count] with scaled values, masked ones kMasked. Whether this thread met a raw
// value that is NaN or infinite. All threads of the block.
OUTRIDER_DEVICE bool load_chunk(const ScannedRow& row,
                                const Chunk& chunk,
                                float ceiling,
                                float* values) {
  bool bad = false;
  const auto first = static_cast<int32_t>(thread_id());
  constexpr auto kStep = static_cast<int32_t>(kChunkThreads);
  for (int32_t i = first; i < chunk.count; i += kStep) {
    const float raw = row.logits[chunk.begin + i];
    bad = bad || (bits_of(raw) & 0x7fffffffu) > bits_of(kLargestLogit);
    values[i] = raw;
  }
  if (row.num_edits > 0) {
    sync_block();
    const int32_t end = chunk.begin + chunk.count;
    int32_t e = first_at_least(row.edit_index, row.num_edits, chunk.begin) + first;
    for (; e < row.num_edits && row.edit_index[e] < end; e += kStep) {
      values[row.edit_index[e] - chunk.begin] = row.edit_value[e];
    }
    sync_block();
  }
  for (int32_t i = first; i < chunk.count; i += kStep) {
    const auto at = static_cast<uint32_t>(chunk.begin + i);
    const bool is_allowed = row.allowed == nullptr || (row.allowed[at / 64] >> (at % 64) & 1) != 0;
    const float scaled = exact_mul(values[i], row.inverse_temperature);
    values[i] = !is_allowed || scaled > ceiling ? kMasked : scaled;
  }
  sync_block();
  return bad;
}

// Masks the listed indices. All threads of the block, after load_chunk().
OUTRIDER_DEVICE void mask_listed(const int32_t* list,
                                 int32_t n,
                                 const Chunk& chunk,
                                 float* values) {
  if (n == 0) return;
  const int32_t end = chunk.begin + chunk.count;
  int32_t e = first_at_least(list, n, chunk.begin) + static_cast<int32_t>(thread_id());
  for (; e < n && list[e] < end; e += static_cast<int32_t>(kChunkThreads)) {
    values[list[e] - chunk.begin] = kMasked;
  }
  sync_block();
}

OUTRIDER_DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

OUTRIDER_DEVICE uint64_t max_over_warp(uint64_t value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value = larger(value, shuffle_xor(value, mask));
  return value;
}
OUTRIDER_DEVICE uint64_t sum_over_warp(uint64_t value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

OUTRIDER_DEVICE void add_of_block(uint64_t* to, uint64_t value) {
  const uint64_t sum = sum_over_warp(value);
  if (lane_id() == 0 && sum != 0) atomic_add(to, sum);
}
OUTRIDER_DEVICE void max_of_block(uint64_t* to, uint64_t value) {
  const uint64_t most = max_over_warp(value);
  if (lane_id() == 0) atomic_max(to, most);
}
OUTRIDER_DEVICE void note_bad(uint64_t* to, bool bad) {
  if (ballot(bad) != 0 && lane_id() == 0) atomic_max(to, uint64_t{1});
}

}  // namespace outrider::gpu
