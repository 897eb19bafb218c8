// Formulas of the rope scalings, ALiBi and others; see rope_frequencies.h.
#include "models/forward/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/error.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

void scale_llama3(const RopeConfig& rope, std::vector<float>& inv_freq) {
  const double positions = rope.original_max_positions;
  for (float& freq : inv_freq) {
    const double wavelength = kTwoPi / freq;
    if (wavelength > positions / rope.low_freq_factor) {
      freq = static_cast<float>(freq / rope.factor);
    } else if (wavelength >= positions / rope.high_freq_factor) {
      const double smooth = (positions / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      freq = static_cast<float>((1.0 - smooth) * freq / rope.factor + smooth * freq);
    }
  }
}

// The (fractional) pair that turns num_rotations times within the original context.
double yarn_pair_of(double num_rotations, const RopeConfig& rope) {
  return rope.rotary_dim * std::log(rope.original_max_positions / (num_rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

void scale_yarn(const RopeConfig& rope, std::vector<float>& inv_freq) {
  double low = yarn_pair_of(rope.beta_fast, rope);
  double high = yarn_pair_of(rope.beta_slow, rope);
  if (rope.yarn_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double kept = inv_freq[i];
    inv_freq[i] = static_cast<float>(kept / rope.factor * ramp + kept * (1.0 - ramp));
  }
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, int32_t served_positions) {
  OUTRIDER_CHECK(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0);
  std::vector<float> inv_freq(static_cast<size_t>(rope.rotary_dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim);
    const auto power = static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    inv_freq[i] = 1.0f / power;
  }
  switch (rope.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic:
      break;
    case RopeScaling::kLinear:
      for (float& freq : inv_freq) freq = freq / static_cast<float>(rope.factor);
      break;
    case RopeScaling::kLlama3:
      scale_llama3(rope, inv_freq);
      break;
    case RopeScaling::kYarn:
      scale_yarn(rope, inv_freq);
      break;
    case RopeScaling::kProportional: {
      const auto turning = static_cast<size_t>(rope.turning_share * rope.rotary_dim / 2.0);
      for (size_t i = 0; i < inv_freq.size(); ++i) {
        inv_freq[i] = i < turning ? inv_freq[i] / static_cast<float>(rope.factor) : 0.0f;
      }
      break;
    }
    case RopeScaling::kLongRope: {
      const bool is_long = served_positions > rope.original_max_positions;
      const std::vector<double>& factors = is_long ? rope.long_factors : rope.short_factors;
      for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= static_cast<float>(factors[i]);
      break;
    }
  }
  return inv_freq;
}

float score_scale(const ModelConfig& config, int64_t head_dim) {
  if (config.attention_scale != 0.0f) return config.attention_scale;
  return 1.0f / std::sqrt(static_cast<float>(head_dim));
}

std::vector<float> alibi_slopes(const ModelConfig& config, Range heads) {
  int64_t power = 1;
  while (2 * power <= config.n_heads) power *= 2;
  std::vector<float> slopes;
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    const bool is_extra = h >= power;
    const double base = std::exp2(-8.0 / static_cast<double>(is_extra ? 2 * power : power));
    const auto step = static_cast<double>(is_extra ? 2 * (h - power) + 1 : h + 1);
    const auto slope = static_cast<float>(std::pow(base, step));
    slopes.push_back(score_scale(config, config.head_dim) *
                     ops::bf16_to_float(ops::float_to_bf16(slope)));
  }
  return slopes;
}

float query_factor(const ModelConfig& config, int32_t position) {
  const auto steps = static_cast<float>(position / config.rope.original_max_positions);
  return 1.0f + config.query_growth * std::log(1.0f + steps);
}

}  // namespace outrider
