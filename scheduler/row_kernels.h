// The inner loops over a tile of one row's logits. Compiled once per instruction set and chosen at
// run time; all variants give the same bits, because they do the same rounded operations per
// element and combine by integer addition and maximum only. Called by the sampling code on
// whichever thread runs verify().
#pragma once

#include <cstdint>

#include "runtime/base/rng.h"

namespace outrider {

// Tokens handled at once. A multiple of 4, so that a tile needs at most kTileTokens / 4 + 1 noise
// blocks.
inline constexpr int32_t kTileTokens = 512;
inline constexpr int32_t kTileNoise = kTileTokens + 4;

struct TileRange {
  float max;                   // -infinity for an empty tile; NaNs are not looked at
  uint32_t largest_magnitude;  // bits of the largest |value|; NaN and infinity lie above every
                               // finite one
};

// weight(value) = fixed_weight(value * inverse_temperature - max) when value * inverse_temperature
// >= cut, else 0.
struct WeightScale {
  float inverse_temperature;
  double max;
  float cut;
};

struct RowKernels {
  const char* name;
  TileRange (*range)(const float* values, int32_t count);
  uint64_t (*mass)(const float* values, int32_t count, const WeightScale& scale);
  // Sum of fixed_moment(value * inverse_temperature - max) over the same values.
  uint64_t (*moment)(const float* values, int32_t count, const WeightScale& scale);
  void (*weights)(const float* values, int32_t count, const WeightScale& scale, uint64_t* out);
  // Philox bits of blocks first_block .. first_block + num_blocks, four per block; returns the
  // largest.
  uint32_t (*noise)(const NoiseKey& key, uint32_t first_block, int32_t num_blocks, uint32_t* out);
};

// The fastest variant this machine can run.
const RowKernels& row_kernels();
// All variants this machine can run, for the test that they agree; the null name ends the list.
const RowKernels* all_row_kernels();

}  // namespace outrider
