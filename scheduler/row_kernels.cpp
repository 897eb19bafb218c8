// See row_kernels.h.
#include "scheduler/row_kernels.h"

#include <array>
#include <cstddef>

namespace outrider {
namespace {

#if defined(__GNUC__)
#define OUTRIDER_INLINE inline __attribute__((always_inline))
#else
#define OUTRIDER_INLINE inline
#endif

// As signed integers the bits of floats compare like the floats, once the negative ones are turned
// round. Unlike a float maximum, an integer one may be vectorised: it is associative for all
// inputs.
OUTRIDER_INLINE TileRange range_body(const float* values, int32_t count) {
  int32_t max = INT32_MIN;
  int32_t magnitude = 0;
  for (int32_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(bits_of(values[i]));
    const int32_t absolute = bits & 0x7fffffff;
    const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
    max = ordered > max ? ordered : max;
    magnitude = absolute > magnitude ? absolute : magnitude;
  }
  const int32_t max_bits = max ^ ((max >> 31) & 0x7fffffff);
  const float largest = count > 0 ? float_of(static_cast<uint32_t>(max_bits))
                                  : -std::numeric_limits<float>::infinity();
  return {largest, static_cast<uint32_t>(magnitude)};
}

OUTRIDER_INLINE uint64_t weight_of(float value, const WeightScale& scale) {
  const float scaled = exact_mul(value, scale.inverse_temperature);
  const uint64_t weight = fixed_weight(static_cast<double>(scaled) - scale.max);
  return scaled >= scale.cut ? weight : 0;
}

OUTRIDER_INLINE uint64_t mass_body(const float* values, int32_t count, const WeightScale& scale) {
  const WeightScale local = scale;
  uint64_t mass = 0;
  for (int32_t i = 0; i < count; ++i) mass += weight_of(values[i], local);
  return mass;
}

OUTRIDER_INLINE void weights_body(const float* values,
                                  int32_t count,
                                  const WeightScale& scale,
                                  uint64_t* out) {
  const WeightScale local = scale;
  for (int32_t i = 0; i < count; ++i) out[i] = weight_of(values[i], local);
}

// kLanes blocks at a time, one array per word of the counter, so that the rounds run on vectors of
// 64-bit lanes.
constexpr int32_t kLanes = 8;

struct LaneWords {
  uint64_t word[4][kLanes];  // 32-bit values in 64-bit lanes: the multiplications need the room
};

OUTRIDER_INLINE void philox_rounds(LaneWords& c, uint64_t key0, uint64_t key1) {
  constexpr uint64_t kLow = 0xffffffffu;
  for (int round = 0; round < 10; ++round) {
    for (int32_t i = 0; i < kLanes; ++i) {
      const uint64_t product0 = c.word[0][i] * 0xD2511F53u;
      const uint64_t product1 = c.word[2][i] * 0xCD9E8D57u;
      const uint64_t word1 = c.word[1][i];
      const uint64_t word3 = c.word[3][i];
      c.word[0][i] = (product1 >> 32) ^ word1 ^ key0;
      c.word[1][i] = product1 & kLow;
      c.word[2][i] = (product0 >> 32) ^ word3 ^ key1;
      c.word[3][i] = product0 & kLow;
    }
    key0 = (key0 + 0x9E3779B9u) & kLow;
    key1 = (key1 + 0xBB67AE85u) & kLow;
  }
}

OUTRIDER_INLINE uint32_t noise_body(const NoiseKey& key,
                                    uint32_t first_block,
                                    int32_t num_blocks,
                                    uint32_t* out) {
  const uint32_t round = key.stream == Stream::kCoupled ? 0 : key.round;
  uint32_t largest = 0;
  int32_t done = 0;
  for (; done + kLanes <= num_blocks; done += kLanes) {
    LaneWords c;
    for (int32_t i = 0; i < kLanes; ++i) {
      c.word[0][i] = key.position;
      c.word[1][i] = static_cast<uint32_t>(key.stream);
      c.word[2][i] = round;
      c.word[3][i] = first_block + static_cast<uint32_t>(done + i);
    }
    philox_rounds(c, static_cast<uint32_t>(key.seed), key.seed >> 32);
    for (int32_t i = 0; i < kLanes; ++i) {
      for (int32_t lane = 0; lane < 4; ++lane) {
        const auto bits = static_cast<uint32_t>(c.word[lane][i]);
        out[4 * (done + i) + lane] = bits;
        largest = bits > largest ? bits : largest;
      }
    }
  }
  for (; done < num_blocks; ++done) {
    const PhiloxBlock block = noise_block(key, first_block + static_cast<uint32_t>(done));
    for (int32_t lane = 0; lane < 4; ++lane) {
      out[4 * done + lane] = block.lane[lane];
      largest = block.lane[lane] > largest ? block.lane[lane] : largest;
    }
  }
  return largest;
}

#define OUTRIDER_KERNEL_SET(SUFFIX, ATTRIBUTE)                                                     \
  ATTRIBUTE TileRange range_##SUFFIX(const float* values, int32_t count) {                         \
    return range_body(values, count);                                                              \
  }                                                                                                \
  ATTRIBUTE uint64_t mass_##SUFFIX(const float* values, int32_t count, const WeightScale& scale) { \
    return mass_body(values, count, scale);                                                        \
  }                                                                                                \
  ATTRIBUTE void weights_##SUFFIX(                                                                 \
      const float* values, int32_t count, const WeightScale& scale, uint64_t* out) {               \
    weights_body(values, count, scale, out);                                                       \
  }                                                                                                \
  ATTRIBUTE uint32_t noise_##SUFFIX(                                                               \
      const NoiseKey& key, uint32_t first_block, int32_t num_blocks, uint32_t* out) {              \
    return noise_body(key, first_block, num_blocks, out);                                          \
  }                                                                                                \
  constexpr RowKernels k_##SUFFIX {                                                                \
#SUFFIX, range_##SUFFIX, mass_##SUFFIX, weights_##SUFFIX, noise_##SUFFIX                       \
  }

OUTRIDER_KERNEL_SET(plain, );
#if defined(__x86_64__) && defined(__GNUC__)
#define OUTRIDER_HAVE_X86_KERNELS 1
OUTRIDER_KERNEL_SET(avx2, __attribute__((target("avx2"))));
OUTRIDER_KERNEL_SET(avx512,
                    __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))));
#endif

std::array<RowKernels, 4> runnable_kernels() {
  std::array<RowKernels, 4> list{};
  std::size_t count = 0;
#if defined(OUTRIDER_HAVE_X86_KERNELS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    list[count++] = k_avx512;
  }
  if (__builtin_cpu_supports("avx2")) list[count++] = k_avx2;
#endif
  list[count] = k_plain;
  return list;
}

}  // namespace

const RowKernels* all_row_kernels() {
  static const std::array<RowKernels, 4> list = runnable_kernels();
  return list.data();
}

const RowKernels& row_kernels() { return all_row_kernels()[0]; }

}  // namespace outrider
