// Known answers of Philox, which parts of a noise's name count in which stream, and the moments of
// what is drawn.
#include "runtime/base/numbers/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace outrider {
namespace {

struct KnownAnswer {
  PhiloxBlock counter;
  uint32_t key0;
  uint32_t key1;
  PhiloxBlock answer;
};

// The known answers that Random123 publishes for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  const std::vector<KnownAnswer> cases = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}},
      {{{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}},
       0xffffffffu,
       0xffffffffu,
       {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}},
      {{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
       0xa4093822u,
       0x299f31d0u,
       {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}}};
  for (const KnownAnswer& known : cases) {
    const PhiloxBlock got = philox4x32_10(known.counter, known.key0, known.key1);
    for (int lane = 0; lane < 4; ++lane) EXPECT_EQ(got.lane[lane], known.answer.lane[lane]);
  }
}

TEST(Noise, EveryPartOfTheNameMatters) {
  const NoiseKey base{0x1234567890abcdefu, 100, Stream::kAccept, 3};
  std::set<uint32_t> draws = {noise_bits(base, 9)};
  draws.insert(noise_bits({base.seed + 1, 100, Stream::kAccept, 3}, 9));
  draws.insert(noise_bits({base.seed + (uint64_t{1} << 32), 100, Stream::kAccept, 3}, 9));
  draws.insert(noise_bits({base.seed, 101, Stream::kAccept, 3}, 9));
  draws.insert(noise_bits({base.seed, 100, Stream::kResidual, 3}, 9));
  draws.insert(noise_bits({base.seed, 100, Stream::kDraft, 3}, 9));
  draws.insert(noise_bits({base.seed, 100, Stream::kAccept, 4}, 9));
  for (int32_t token : {8, 10, 11, 12}) draws.insert(noise_bits(base, token));
  EXPECT_EQ(draws.size(), 11u);
}

TEST(Noise, CoupledIgnoresTheRound) {
  for (int32_t token = 0; token < 9; ++token) {
    EXPECT_EQ(noise_bits({7, 5, Stream::kCoupled, 0}, token),
              noise_bits({7, 5, Stream::kCoupled, 12}, token));
  }
}

TEST(Noise, UniformsStayInsideAndTailsAreAccurate) {
  for (uint32_t bits : {0u, 1u, 77u, 0x80000000u, 0xfffffffeu, 0xffffffffu}) {
    const double uniform = uniform_from_bits(bits);
    EXPECT_GT(uniform, 0.0);
    EXPECT_LT(uniform, 1.0);
    // -log(u) from 1 - u, which is exact: log1p keeps the relative accuracy that log(u) would lose
    // in a float.
    const long double above = (4294967295.0L - bits + 0.5L) / 4294967296.0L;
    const long double exponential = -std::log1p(-above);
    EXPECT_LE(std::fabs(exponential_from_bits(bits) - exponential), 1e-15L * exponential + 1e-30L);
    EXPECT_LE(std::fabs(gumbel_from_bits(bits) + std::log(exponential)), 1e-14L);
    EXPECT_LT(gumbel_from_bits(bits), kMaxGumbel);
  }
}

TEST(Noise, MomentsOfUniformAndGumbel) {
  const int count = 400000;
  double uniform_sum = 0.0;
  double gumbel_sum = 0.0;
  double gumbel_squares = 0.0;
  for (int i = 0; i < count; ++i) {
    const NoiseKey key{
        static_cast<uint64_t>(i) / 1000, static_cast<uint32_t>(i), Stream::kDraft, 1};
    const uint32_t bits = noise_bits(key, i % 13);
    uniform_sum += uniform_from_bits(bits);
    gumbel_sum += gumbel_from_bits(bits);
    gumbel_squares += gumbel_from_bits(bits) * gumbel_from_bits(bits);
  }
  const double mean = gumbel_sum / count;
  EXPECT_NEAR(uniform_sum / count, 0.5, 4 * 0.2887 / std::sqrt(count));
  EXPECT_NEAR(mean, 0.5772156649, 4 * 1.2825 / std::sqrt(count));
  EXPECT_NEAR(gumbel_squares / count - mean * mean, 1.6449340668, 0.02);
}

TEST(Noise, MixedSeedsDiffer) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t index = 0; index < 50; ++index) seeds.insert(mix_seed(seed, index));
  }
  EXPECT_EQ(seeds.size(), 2500u);
}

}  // namespace
}  // namespace outrider
