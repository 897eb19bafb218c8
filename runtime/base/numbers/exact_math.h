// Arithmetic of the sampling path that has the same bits on every CPU and on CUDA: our own exp and
// log, fixed-point weights, order-preserving keys. libm and CUDA's math library differ in the last
// place, and a last place decides a token; so nothing here calls either, and no product is fused
// with a sum (the build passes -ffp-contract=off, the device side asks for the rounded operations
// by name). Plain inline functions, any thread.
#pragma once

#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#define OUTRIDER_HD __host__ __device__
#else
#define OUTRIDER_HD
#endif

#if !defined(__CUDA_ARCH__)
#include <bit>
#endif

namespace outrider {

#if defined(__CUDA_ARCH__)
OUTRIDER_HD inline double exact_add(double a, double b) { return __dadd_rn(a, b); }
OUTRIDER_HD inline double exact_mul(double a, double b) { return __dmul_rn(a, b); }
OUTRIDER_HD inline double exact_div(double a, double b) { return __ddiv_rn(a, b); }
OUTRIDER_HD inline float exact_mul(float a, float b) { return __fmul_rn(a, b); }
OUTRIDER_HD inline float exact_add(float a, float b) { return __fadd_rn(a, b); }
OUTRIDER_HD inline uint64_t bits_of(double x) {
  return static_cast<uint64_t>(__double_as_longlong(x));
}
OUTRIDER_HD inline double double_of(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
OUTRIDER_HD inline uint32_t bits_of(float x) { return __float_as_uint(x); }
OUTRIDER_HD inline float float_of(uint32_t bits) { return __uint_as_float(bits); }
#else
OUTRIDER_HD inline double exact_add(double a, double b) { return a + b; }
OUTRIDER_HD inline double exact_mul(double a, double b) { return a * b; }
OUTRIDER_HD inline double exact_div(double a, double b) { return a / b; }
OUTRIDER_HD inline float exact_mul(float a, float b) { return a * b; }
OUTRIDER_HD inline float exact_add(float a, float b) { return a + b; }
OUTRIDER_HD inline uint64_t bits_of(double x) { return std::bit_cast<uint64_t>(x); }
OUTRIDER_HD inline double double_of(uint64_t bits) { return std::bit_cast<double>(bits); }
OUTRIDER_HD inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
OUTRIDER_HD inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

// exp(x) for x in [-700, 700]; anything below, and NaN, is taken as -700. Relative error below
// 1e-15.
OUTRIDER_HD inline double exact_exp(double x) {
  constexpr double kLog2E = 1.4426950408889634074;
  constexpr double kLn2Hi =
      6.93147180369123816490e-01;  // the top 33 bits, so that n * kLn2Hi is exact
  constexpr double kLn2Lo = 1.90821492927058770002e-10;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  x = x > -700.0 ? x : -700.0;
  const double shifted = exact_add(exact_mul(x, kLog2E), kRound);
  const double n = exact_add(shifted, -kRound);
  const double r = exact_add(exact_add(x, -exact_mul(n, kLn2Hi)), -exact_mul(n, kLn2Lo));
  // Taylor on |r| <= ln(2)/2; the first omitted term is below 3e-16.
  double sum = 1.0 / 479001600.0;
  sum = exact_add(exact_mul(sum, r), 1.0 / 39916800.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 3628800.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 362880.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 40320.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 5040.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 720.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 120.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 24.0);
  sum = exact_add(exact_mul(sum, r), 1.0 / 6.0);
  sum = exact_add(exact_mul(sum, r), 0.5);
  sum = exact_add(exact_mul(sum, r), 1.0);
  sum = exact_add(exact_mul(sum, r), 1.0);
  // n sits in the low bits of `shifted`; moved up it is the exponent field of 2^n.
  return exact_mul(sum, double_of((bits_of(shifted) + 1023u) << 52));
}

// log(x) for finite x > 0, within 2e-16 relative or absolute, whichever is larger, and relatively
// accurate next to 1; -infinity for 0 and below.
OUTRIDER_HD inline double exact_log(double x) {
  constexpr double kLn2Hi = 6.93147180369123816490e-01;
  constexpr double kLn2Lo = 1.90821492927058770002e-10;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  if (!(x > 0.0)) return double_of(0xfff0000000000000u);
  double exponent_shift = 0.0;
  if (x < 2.2250738585072014e-308) {  // subnormal
    x = exact_mul(x, 18014398509481984.0);
    exponent_shift = -54.0;
  }
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint64_t from_root = bits_of(x) - kSqrtHalf;
  const auto e = static_cast<double>(static_cast<int64_t>(from_root) >> 52) + exponent_shift;
  const double m = double_of(bits_of(x) - (from_root & 0xfff0000000000000u));
  const double f = exact_add(m, -1.0);  // exact
  // log(1 + f) = 2 atanh(s), s = f / (2 + f), |s| < 0.172.
  const double s = exact_div(f, exact_add(2.0, f));
  const double z = exact_mul(s, s);
  double series = 1.0 / 21.0;
  series = exact_add(exact_mul(series, z), 1.0 / 19.0);
  series = exact_add(exact_mul(series, z), 1.0 / 17.0);
  series = exact_add(exact_mul(series, z), 1.0 / 15.0);
  series = exact_add(exact_mul(series, z), 1.0 / 13.0);
  series = exact_add(exact_mul(series, z), 1.0 / 11.0);
  series = exact_add(exact_mul(series, z), 1.0 / 9.0);
  series = exact_add(exact_mul(series, z), 1.0 / 7.0);
  series = exact_add(exact_mul(series, z), 1.0 / 5.0);
  series = exact_add(exact_mul(series, z), 1.0 / 3.0);
  const double twice_s = exact_add(s, s);
  const double tail = exact_mul(exact_mul(twice_s, z), series);
  const double low = exact_add(exact_mul(e, kLn2Lo), tail);
  return exact_add(exact_mul(e, kLn2Hi), exact_add(twice_s, low));
}

// ---- fixed-point weights. Sums of these do not depend on the order of adding, hence not on the
// sharding. A vocabulary of 2^19 tokens fits into 63 bits.
constexpr int kWeightBits = 44;
constexpr double kWeightOne = 17592186044416.0;  // 2^44
constexpr int32_t kMaxVocabSize = 1 << 19;

// round(exp(below_max) * 2^44) for below_max <= 0; 0 for NaN and everything below about -31.2.
OUTRIDER_HD inline uint64_t fixed_weight(double below_max) {
  constexpr double kTwo52 =
      4503599627370496.0;  // adding it rounds to an integer in the low 52 bits
  const double weight = exact_exp(below_max > -60.0 ? below_max : -60.0);
  return bits_of(exact_add(exact_mul(weight, kWeightOne), kTwo52)) & 0xfffffffffffffu;
}

// round(exp(below_max) * -below_max * 2^44): a term of the weighted sum of distances below the
// maximum. At most 2^44 / e, so these sums fit where the sums of weights do.
OUTRIDER_HD inline uint64_t fixed_moment(double below_max) {
  constexpr double kTwo52 = 4503599627370496.0;
  const double bounded = below_max > -60.0 ? below_max : -60.0;
  const double moment = exact_mul(exact_exp(bounded), -bounded);
  return bits_of(exact_add(exact_mul(moment, kWeightOne), kTwo52)) & 0xfffffffffffffu;
}

// ---- the values of a row
// What a forbidden token's logit counts as.
inline constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Raw logits above this in size count as infinite: what is left cannot overflow when divided by the
// smallest temperature. No model that works comes near it.
inline constexpr float kLargestLogit = 1e30f;

// How far a scaled value lies from a reference `center` below the row's maximum, in units of 2^-26
// nats; all that is 64 nats and more away ties (scheduler/rows/keep_order.h).
inline constexpr uint32_t kFarthest = 0xffffffffu;
OUTRIDER_HD inline uint32_t keep_distance(float max, double center, float scaled) {
  constexpr double kUnitsPerNat = 67108864.0;  // 2^26
  const double below_max = exact_add(static_cast<double>(max), -static_cast<double>(scaled));
  const double from_center = exact_add(below_max, -center);
  const double distance = from_center < 0.0 ? -from_center : from_center;
  return distance < 64.0 ? static_cast<uint32_t>(exact_mul(distance, kUnitsPerNat)) : kFarthest;
}

// ---- order-preserving keys

// a < b as floats exactly when ordered_bits(a) < ordered_bits(b); the two zeros are one value. Not
// for NaN.
OUTRIDER_HD inline uint32_t ordered_bits(float x) {
  const uint32_t bits = bits_of(exact_add(x, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
OUTRIDER_HD inline float from_ordered_bits(uint32_t ordered) {
  return float_of((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// MAX over these keys finds the highest score and, among equals, the lowest token id. 0 is below
// every key.
OUTRIDER_HD inline uint64_t pack_key(float score, int32_t token) {
  return static_cast<uint64_t>(ordered_bits(score)) << 32 | ~static_cast<uint32_t>(token);
}
OUTRIDER_HD inline int32_t key_token(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}
OUTRIDER_HD inline float key_score(uint64_t key) {
  return from_ordered_bits(static_cast<uint32_t>(key >> 32));
}

}  // namespace outrider
