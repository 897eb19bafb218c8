// All randomness of the program: one pure, counter-based function, Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011), bit-equal on CPU and GPU. There is no
// state: a draw is named by
//   key     = the request's noise seed (64 bits)
//   counter = (position, stream, round, token id / 4), lane = token id % 4
// so it does not depend on the batch, the sharding, or what was drawn before. One block serves four
// neighbouring tokens, which makes noise over a whole vocabulary four times cheaper than a counter
// per token.
#pragma once

#include <cstdint>

#include "runtime/base/numbers/exact_math.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {

// kCoupled is keyed by position alone (its round is always 0), which is what makes coupled text
// independent of the draft and of the rounds. The others must carry the sampling round: noise that
// decided something once may not be used again for the same position (docs/architecture.md,
// section 4.2), nor may draft and residual share noise.
enum class Stream : uint32_t { kCoupled = 0, kAccept = 1, kResidual = 2, kDraft = 3 };

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t position = 0;
  Stream stream = Stream::kCoupled;
  uint32_t round = 0;
};

struct PhiloxBlock {
  uint32_t lane[4];
};

OUTRIDER_HD inline PhiloxBlock philox4x32_10(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.lane[0];
  uint32_t c1 = counter.lane[1];
  uint32_t c2 = counter.lane[2];
  uint32_t c3 = counter.lane[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t product1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The noise of tokens 4 * block .. 4 * block + 3.
OUTRIDER_HD inline PhiloxBlock noise_block(const NoiseKey& key, uint32_t block) {
  const uint32_t round = key.stream == Stream::kCoupled ? 0 : key.round;
  return philox4x32_10({{key.position, static_cast<uint32_t>(key.stream), round, block}},
                       static_cast<uint32_t>(key.seed),
                       static_cast<uint32_t>(key.seed >> 32));
}

OUTRIDER_HD inline uint32_t noise_bits(const NoiseKey& key, int32_t token) {
  const auto id = static_cast<uint32_t>(token);
  return noise_block(key, id / 4).lane[id % 4];
}

// (bits + 1/2) / 2^32: uniform, never 0 and never 1, exact in a double.
OUTRIDER_HD inline double uniform_from_bits(uint32_t bits) {
  return exact_mul(static_cast<double>(bits) + 0.5, 1.0 / 4294967296.0);
}

// -log(u), standard exponential. u is exact, so the small values (u next to 1) keep full relative
// accuracy.
OUTRIDER_HD inline double exponential_from_bits(uint32_t bits) {
  return -exact_log(uniform_from_bits(bits));
}

// -log(-log(u)), standard Gumbel; between -3.14 and kMaxGumbel.
OUTRIDER_HD inline double gumbel_from_bits(uint32_t bits) {
  return -exact_log(exponential_from_bits(bits));
}
constexpr double kMaxGumbel = 22.88;

// The uniform of an accept test: one per position, stream and round.
OUTRIDER_HD inline double uniform_of(const NoiseKey& key) {
  return uniform_from_bits(noise_bits(key, 0));
}

// For deriving seeds (choice n of a request, a request without a seed): SplitMix64.
inline uint64_t mix_seed(uint64_t seed, uint64_t index) {
  return mix64(seed + (index + 1) * 0x9E3779B97F4A7C15u);
}

}  // namespace outrider
