// See row_kernels.h.
#include "scheduler/rows/row_kernels.h"

#include <array>
#include <cstddef>
#include <limits>

#include "scheduler/rows/row_mass.h"
#include "scheduler/rows/row_noise.h"

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
struct OrderedRange {
  int32_t max = INT32_MIN;
  int32_t magnitude = 0;

  OUTRIDER_INLINE void widen(const float* values, int32_t count) {
    int32_t widest = max;
    int32_t largest = magnitude;
    for (int32_t i = 0; i < count; ++i) {
      const auto bits = static_cast<int32_t>(bits_of(values[i]));
      const int32_t absolute = bits & 0x7fffffff;
      const int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
      widest = ordered > widest ? ordered : widest;
      largest = absolute > largest ? absolute : largest;
    }
    max = widest;
    magnitude = largest;
  }
  OUTRIDER_INLINE float greatest() const {
    return float_of(static_cast<uint32_t>(max ^ ((max >> 31) & 0x7fffffff)));
  }
};

OUTRIDER_INLINE TileRange range_body(const float* values, int32_t count) {
  if (count <= 0) return {-std::numeric_limits<float>::infinity(), 0};
  OrderedRange range;
  range.widen(values, count);
  return {range.greatest(), static_cast<uint32_t>(range.magnitude)};
}

OUTRIDER_INLINE TileRange peaks_body(const float* values, int32_t count, float* out) {
  if (count <= 0) return {-std::numeric_limits<float>::infinity(), 0};
  OrderedRange range;
  const auto add = [&](int32_t begin, int32_t num) {
    OrderedRange stretch;
    stretch.widen(values + begin, num);
    *out++ = stretch.greatest();
    range.max = stretch.max > range.max ? stretch.max : range.max;
    range.magnitude = stretch.magnitude > range.magnitude ? stretch.magnitude : range.magnitude;
  };
  int32_t begin = 0;
  for (; begin + kStretchTokens <= count; begin += kStretchTokens) add(begin, kStretchTokens);
  if (begin < count) add(begin, count - begin);
  return {range.greatest(), static_cast<uint32_t>(range.magnitude)};
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

OUTRIDER_INLINE uint64_t moment_body(const float* values, int32_t count, const WeightScale& scale) {
  const WeightScale local = scale;
  uint64_t moment = 0;
  for (int32_t i = 0; i < count; ++i) {
    const float scaled = exact_mul(values[i], local.inverse_temperature);
    const uint64_t term = fixed_moment(static_cast<double>(scaled) - local.max);
    moment += scaled >= local.cut ? term : 0;
  }
  return moment;
}

OUTRIDER_INLINE void weights_body(const float* values,
                                  int32_t count,
                                  const WeightScale& scale,
                                  uint64_t* out) {
  const WeightScale local = scale;
  for (int32_t i = 0; i < count; ++i) out[i] = weight_of(values[i], local);
}

OUTRIDER_INLINE int32_t first_equal_body(const float* values,
                                         int32_t count,
                                         float scale,
                                         float wanted) {
  int32_t first = count;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t here = exact_mul(values[i], scale) == wanted ? i : count;
    first = here < first ? here : first;
  }
  return first;
}

OUTRIDER_INLINE void at_least_body(
    const float* values, int32_t count, float scale, float least, uint8_t* hit) {
  for (int32_t i = 0; i < count; ++i) hit[i] = exact_mul(values[i], scale) >= least ? 1 : 0;
}

// Noise lifts a token by t with -log(u) = y < exp(-t) (draw_search.cpp, winning_limit). Of 2^x here
// only a bound: the bits of a float, read as a number, run along the chords of 2^x, which lie above
// it. kSlack covers all roundings of these floats, and the rest of y is cut off.
OUTRIDER_INLINE void may_win_body(
    const float* values, const uint32_t* bits, int32_t count, const WinScale& scale, uint8_t* hit) {
  constexpr float kLog2E = 1.442695f;
  constexpr float kSlack = 1e-4f;
  constexpr float kLeast = -120.0f;
  constexpr float kMost = 1.0f;
  const WinScale local = scale;
  for (int32_t i = 0; i < count; ++i) {
    const float scaled = exact_mul(values[i], local.inverse_temperature);
    float exponent = exact_add(exact_mul(exact_add(scaled, -local.bound), kLog2E), kSlack);
    exponent = exponent > kLeast ? exponent : kLeast;
    exponent = exponent < kMost ? exponent : kMost;
    const auto chord = static_cast<int32_t>(exact_mul(exact_add(exponent, 127.0f), 8388608.0f));
    const float limit = float_of(static_cast<uint32_t>(chord));
    const float noise =
        exact_mul(static_cast<float>(static_cast<int32_t>(~bits[i] >> 1)), 1.0f / 2147483648.0f);
    hit[i] = ((scaled >= local.cut) & (noise <= limit)) ? 1 : 0;
  }
}

#define OUTRIDER_KERNEL_SET(SUFFIX, ATTRIBUTE)                                                     \
  ATTRIBUTE TileRange range_##SUFFIX(const float* values, int32_t count) {                         \
    return range_body(values, count);                                                              \
  }                                                                                                \
  ATTRIBUTE TileRange peaks_##SUFFIX(const float* values, int32_t count, float* out) {             \
    return peaks_body(values, count, out);                                                         \
  }                                                                                                \
  ATTRIBUTE uint64_t mass_##SUFFIX(const float* values, int32_t count, const WeightScale& scale) { \
    return mass_body(values, count, scale);                                                        \
  }                                                                                                \
  ATTRIBUTE uint64_t moment_##SUFFIX(                                                              \
      const float* values, int32_t count, const WeightScale& scale) {                              \
    return moment_body(values, count, scale);                                                      \
  }                                                                                                \
  ATTRIBUTE void weights_##SUFFIX(                                                                 \
      const float* values, int32_t count, const WeightScale& scale, uint64_t* out) {               \
    weights_body(values, count, scale, out);                                                       \
  }                                                                                                \
  ATTRIBUTE int32_t first_equal_##SUFFIX(                                                          \
      const float* values, int32_t count, float scale, float wanted) {                             \
    return first_equal_body(values, count, scale, wanted);                                         \
  }                                                                                                \
  ATTRIBUTE void at_least_##SUFFIX(                                                                \
      const float* values, int32_t count, float scale, float least, uint8_t* hit) {                \
    at_least_body(values, count, scale, least, hit);                                               \
  }                                                                                                \
  ATTRIBUTE void may_win_##SUFFIX(const float* values,                                             \
                                  const uint32_t* bits,                                            \
                                  int32_t count,                                                   \
                                  const WinScale& scale,                                           \
                                  uint8_t* hit) {                                                  \
    may_win_body(values, bits, count, scale, hit);                                                 \
  }                                                                                                \
  constexpr RowKernels k_##SUFFIX = {#SUFFIX,                                                      \
                                     range_##SUFFIX,                                               \
                                     peaks_##SUFFIX,                                               \
                                     mass_##SUFFIX,                                                \
                                     moment_##SUFFIX,                                              \
                                     weights_##SUFFIX,                                             \
                                     row_noise_##SUFFIX,                                           \
                                     first_equal_##SUFFIX,                                         \
                                     at_least_##SUFFIX,                                            \
                                     may_win_##SUFFIX}

OUTRIDER_KERNEL_SET(plain, );
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)  // GCC's target strings
#define OUTRIDER_HAVE_X86_KERNELS 1
OUTRIDER_KERNEL_SET(avx2, __attribute__((target("avx2"))));
OUTRIDER_KERNEL_SET(avx512,
                    __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))));

uint64_t quick_mass_avx512(const float* values, int32_t count, const WeightScale& scale) {
  uint64_t mass = 0;
  for (int32_t begin = 0; begin < count;) {
    begin += certain_mass_avx512(values + begin, count - begin, scale, &mass);
    const int32_t uncertain = count - begin < kStretchTokens ? count - begin : kStretchTokens;
    mass += mass_avx512(values + begin, uncertain, scale);
    begin += uncertain;
  }
  return mass;
}
#endif

std::array<RowKernels, 4> runnable_kernels() {
  std::array<RowKernels, 4> list{};
  std::size_t count = 0;
#if defined(OUTRIDER_HAVE_X86_KERNELS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    list[count] = k_avx512;
    list[count++].mass = quick_mass_avx512;
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
