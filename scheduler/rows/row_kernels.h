// The inner loops over a tile of one row's logits. Compiled once per instruction set and chosen at
// run time; all variants give the same bits, because they do the same rounded operations per
// element and combine by integer addition and maximum only. Called by the sampling code on
// whichever thread runs verify().
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/base/numbers/rng.h"

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

// A tile is looked at in stretches of so many tokens, of which searches pass over most.
inline constexpr int32_t kStretchTokens = 64;

// weight(value) = fixed_weight(value * inverse_temperature - max) when value * inverse_temperature
// >= cut, else 0.
struct WeightScale {
  float inverse_temperature;
  double max;
  float cut;
};

// Which tokens of a tile a draw has to look at: those with value * inverse_temperature >= cut whose
// noise may lift them above `bound`.
struct WinScale {
  float inverse_temperature;
  float cut;
  float bound;
};

struct RowKernels {
  const char* name;
  TileRange (*range)(const float* values, int32_t count);
  // The same, and into `out` the greatest value of each stretch.
  TileRange (*peaks)(const float* values, int32_t count, float* out);
  uint64_t (*mass)(const float* values, int32_t count, const WeightScale& scale);
  // Sum of fixed_moment(value * inverse_temperature - max) over the same values.
  uint64_t (*moment)(const float* values, int32_t count, const WeightScale& scale);
  void (*weights)(const float* values, int32_t count, const WeightScale& scale, uint64_t* out);
  // Philox bits of blocks first_block .. first_block + num_blocks, four per block; returns the
  // largest.
  uint32_t (*noise)(const NoiseKey& key, uint32_t first_block, int32_t num_blocks, uint32_t* out);
  // In what follows `scale` multiplies the values, and `hit` gets a byte for each: 1 or 0.
  // The first index whose product is `wanted`; count when there is none.
  int32_t (*first_equal)(const float* values, int32_t count, float scale, float wanted);
  // hit: product >= least.
  void (*at_least)(const float* values, int32_t count, float scale, float least, uint8_t* hit);
  // hit: 1 for every token that scale describes, and for few others; bits: the tokens' noise.
  void (*may_win)(const float* values,
                  const uint32_t* bits,
                  int32_t count,
                  const WinScale& scale,
                  uint8_t* hit);
};

// The fastest variant this machine can run.
const RowKernels& row_kernels();
// All variants this machine can run, for the test that they agree; the null name ends the list.
const RowKernels* all_row_kernels();

// Calls visit(i) for every hit, in order.
template <typename Visit>
void for_each_hit(const uint8_t* hit, int32_t count, Visit&& visit) {
  constexpr int32_t kWord = 8;
  int32_t begin = 0;
  for (; begin + kWord <= count; begin += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, hit + begin, kWord);
    if (word == 0) continue;
    for (int32_t i = begin; i < begin + kWord; ++i) {
      if (hit[i] != 0) visit(i);
    }
  }
  for (; begin < count; ++begin) {
    if (hit[begin] != 0) visit(begin);
  }
}

}  // namespace outrider
