// Questions about rows of logits in device memory, for sampling: what scheduler/rows/row_scanner.h
// asks, packed as plain values that point into device memory. One call answers all of a trip's.
// Sums are of integers and the rest are maxima, so the answers do not depend on how a row is cut
// into blocks, and equal those of the CPU bit for bit (runtime/base/numbers/exact_math.h, rng.h).
#pragma once

#include <cstdint>

#include "runtime/base/numbers/rng.h"
#include "runtime/ops/gpu/device.h"

namespace outrider::gpu {

// A row as sampling sees it: raw values, changed ones, a mask, a temperature.
struct ScannedRow {
  const float* logits = nullptr;        // [size]
  const int32_t* edit_index = nullptr;  // [num_edits], ascending
  const float* edit_value = nullptr;    // [num_edits] in place of the raw values
  const uint64_t* allowed = nullptr;    // one bit per logit, or null: all
  int32_t num_edits = 0;
  int32_t size = 0;
  int32_t first_token = 0;  // token id of logits[0]
  float inverse_temperature = 1.0f;
};

// In all of these `row` is an index into RowTasks::rows; what is scaled above `ceiling` is masked.
// Answers must be zero before the call.

// Raw values: out[r, i] = logits[r * stride + index[i]].
struct ReadTask {
  const float* logits = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;  // [num_index]
  int32_t num_index = 0;
  int32_t num_rows = 0;
  float* values = nullptr;  // [num_rows, num_index]
};

// The highest pack_key of the scaled values, or of scaled + Gumbel noise where scaled >= cut.
struct BestTask {
  int32_t row = 0;
  int32_t draws = 0;
  NoiseKey noise;
  float cut = 0.0f;
  float ceiling = 0.0f;
  const int32_t* without = nullptr;  // [num_without] ascending indices that are masked
  int32_t num_without = 0;
  uint64_t* key = nullptr;
  uint64_t* bad = nullptr;  // 1: NaN or infinity among the raw values
};

// Over the tokens with scaled >= cut.
struct SumTask {
  int32_t row = 0;
  float max = 0.0f;
  float cut = 0.0f;
  float ceiling = 0.0f;
  uint64_t* mass = nullptr;
  uint64_t* moment = nullptr;  // or null
};

// The n best keys, in any order.
struct TopTask {
  int32_t row = 0;
  int32_t n = 0;  // at least 1
  float ceiling = 0.0f;
  int32_t counts_last = 0;
  uint64_t* candidates = nullptr;    // scratch, [top_candidates(size, n)], need not be zero
  uint64_t* keys = nullptr;          // [n]
  uint64_t* flipped_last = nullptr;  // ~ of the lowest of them
  uint64_t* num_last = nullptr;      // tokens that equal it
  uint64_t* bad = nullptr;
};

// The radix digit at `shift` of keep_distance, for tokens with scaled >= cut whose digits above it
// are those of `farthest`: numbers of tokens or their mass.
struct BandTask {
  int32_t row = 0;
  float cut = 0.0f;
  float max = 0.0f;
  int32_t by_mass = 0;
  double center = 0.0;
  uint32_t farthest = 0;
  int32_t shift = 0;          // 24, 16, 8 or 0
  uint64_t* bands = nullptr;  // [256]
};

// Tokens before (value, token) among the raw values: higher, or equal with a lower id.
struct RankTask {
  int32_t row = 0;
  float value = 0.0f;
  int32_t token = 0;
  uint64_t* num_before = nullptr;
};

// Device memory.
struct RowTasks {
  const ScannedRow* rows = nullptr;
  const ReadTask* reads = nullptr;
  const BestTask* bests = nullptr;
  const SumTask* sums = nullptr;
  const TopTask* tops = nullptr;
  const BandTask* bands = nullptr;
  const RankTask* ranks = nullptr;
  int32_t num_reads = 0;
  int32_t num_bests = 0;
  int32_t num_sums = 0;
  int32_t num_tops = 0;
  int32_t num_bands = 0;
  int32_t num_ranks = 0;
  int32_t most_values = 0;   // num_rows * num_index of the largest read
  int32_t most_tokens = 0;   // size of the largest row
  bool counts_last = false;  // some top wants num_last
};

// The tokens of the best keys, for a step that follows without the host: tokens[i] is that of the
// key in words[2 i]; 0 where words[2 i + 1] says that the row was bad.
struct TakeTokensArgs {
  const uint64_t* words = nullptr;
  int32_t count = 0;
  int32_t* tokens = nullptr;
};

// Tokens of a row that one block looks at.
inline constexpr int32_t kChunkTokens = 4096;
OUTRIDER_HD constexpr int32_t num_chunks(int32_t size) {
  return (size + kChunkTokens - 1) / kChunkTokens;
}
OUTRIDER_HD constexpr int32_t chunk_candidates(int32_t n) {
  return n < kChunkTokens ? n : kChunkTokens;
}
OUTRIDER_HD constexpr int64_t top_candidates(int32_t size, int32_t n) {
  return int64_t{num_chunks(size)} * chunk_candidates(n);
}

}  // namespace outrider::gpu
