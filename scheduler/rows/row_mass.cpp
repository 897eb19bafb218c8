// See row_mass.h. exp(x) = 2^(n / 16) * e^r with n whole: a table and a short polynomial, in fused
// steps. So it is not fixed_weight()'s exp, but both lie within kError of the true one. Both ends
// of that interval are rounded to a weight; where they round alike, so does all between them. Ends
// never cross, so one look at the sums of a stretch tells for all of it.
#include "scheduler/rows/row_mass.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <array>
#include <bit>
#include <cmath>
// GCC 12's own header reads a deliberately undefined vector (its bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace outrider {
namespace {

#define OUTRIDER_AVX512 __attribute__((target("avx512f,avx512dq"), always_inline)) inline

constexpr uint64_t kSteps = 16;
// Adding it rounds to whole numbers of either sign, in the low bits.
constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
constexpr double kTwo52 = 4503599627370496.0;
constexpr uint64_t kTwo52Bits = uint64_t{0x433} << 52;
// Relative: 4.7e-15 of the polynomial, 1.4e-15 of ln(2) / 16 times n up to 930, 0.5e-15 of
// roundings, and 1e-15 of exact_exp().
constexpr double kError = 1e-14;
// So far below the maximum all weights are 0.
constexpr double kNoWeight = 40.0;
// Up to here floats are so close that kNoWeight below the maximum is one of them, nearly.
constexpr double kLargestMax = 1e6;

// Bits of 2^(j / 16) * 2^44, less what the low 4 bits of n add to them when all of n is added
// where the exponent begins.
constexpr std::array<uint64_t, kSteps> powers() {
  constexpr std::array<double, kSteps> kPowers = {0x1.0000000000000p+0,
                                                  0x1.0b5586cf9890fp+0,
                                                  0x1.172b83c7d517bp+0,
                                                  0x1.2387a6e756238p+0,
                                                  0x1.306fe0a31b715p+0,
                                                  0x1.3dea64c123422p+0,
                                                  0x1.4bfdad5362a27p+0,
                                                  0x1.5ab07dd485429p+0,
                                                  0x1.6a09e667f3bcdp+0,
                                                  0x1.7a11473eb0187p+0,
                                                  0x1.8ace5422aa0dbp+0,
                                                  0x1.9c49182a3f090p+0,
                                                  0x1.ae89f995ad3adp+0,
                                                  0x1.c199bdd85529cp+0,
                                                  0x1.d5818dcfba487p+0,
                                                  0x1.ea4afa2a490dap+0};
  std::array<uint64_t, kSteps> bits{};
  for (uint64_t j = 0; j < kSteps; ++j)
    bits[j] = std::bit_cast<uint64_t>(kPowers[j] * kWeightOne) - (j << 48);
  return bits;
}
alignas(64) constexpr std::array<uint64_t, kSteps> kTable = powers();

OUTRIDER_AVX512 __m512d all(double x) { return _mm512_set1_pd(x); }

struct WeightBounds {
  __m512i low;
  __m512i high;
};

// Bits of 2^52 + weight, for both ends, of scaled values at most `max`.
OUTRIDER_AVX512 WeightBounds bounds8(__m256 scaled, __m512d max) {
  const __m512d below_max = _mm512_sub_pd(_mm512_cvtps_pd(scaled), max);
  const __m512d shifted = _mm512_fmadd_pd(below_max, all(0x1.71547652b82fep+4), all(kRound));
  const __m512d n = _mm512_sub_pd(shifted, all(kRound));
  const __m512d r = _mm512_fnmadd_pd(n, all(0x1.62e42fefa39efp-5), below_max);
  // Through e^r at the zeros of a Chebyshev polynomial, |r| <= ln(2) / 32.
  __m512d e_r = _mm512_fmadd_pd(all(0x1.11123cf1dba3ap-7), r, all(0x1.5557621effdfcp-5));
  e_r = _mm512_fmadd_pd(e_r, r, all(0x1.555555547d378p-3));
  e_r = _mm512_fmadd_pd(e_r, r, all(0x1.fffffffd0b972p-2));
  e_r = _mm512_fmadd_pd(e_r, r, all(0x1.0000000000003p+0));
  e_r = _mm512_fmadd_pd(e_r, r, all(0x1.0000000000014p+0));
  const __m512i n_bits = _mm512_castpd_si512(shifted);
  const __m512i power = _mm512_permutex2var_epi64(
      _mm512_load_si512(kTable.data()), n_bits, _mm512_load_si512(kTable.data() + 8));
  const __m512i two_to_n = _mm512_add_epi64(power, _mm512_slli_epi64(n_bits, 48));
  const __m512d weight = _mm512_mul_pd(e_r, _mm512_castsi512_pd(two_to_n));
  return {_mm512_castpd_si512(_mm512_fmadd_pd(weight, all(1 - kError), all(kTwo52))),
          _mm512_castpd_si512(_mm512_fmadd_pd(weight, all(1 + kError), all(kTwo52)))};
}

// Wraps around, which signed _mm512_reduce_add_epi64() may not.
OUTRIDER_AVX512 uint64_t sum_of_lanes(__m512i lanes) {
  alignas(64) std::array<uint64_t, 8> values;
  _mm512_store_si512(values.data(), lanes);
  uint64_t sum = 0;
  for (const uint64_t value : values) sum += value;
  return sum;
}

}  // namespace

__attribute__((target("avx512f,avx512dq"))) int32_t certain_mass_avx512(const float* values,
                                                                        int32_t count,
                                                                        const WeightScale& scale,
                                                                        uint64_t* sum) {
  if (!(std::abs(scale.max) < kLargestMax)) return 0;
  const __m512 inverse_temperature = _mm512_set1_ps(scale.inverse_temperature);
  const __m512 cut = _mm512_set1_ps(scale.cut);
  const __m512 lowest = _mm512_set1_ps(static_cast<float>(scale.max - kNoWeight));
  const __m512d max = _mm512_set1_pd(scale.max);
  __m512i total = _mm512_setzero_si512();
  int32_t done = 0;
  for (; done + kStretchTokens <= count; done += kStretchTokens) {
    WeightBounds ends = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int32_t i = done; i < done + kStretchTokens; i += 16) {
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(values + i), inverse_temperature);
      const __mmask16 kept = _mm512_cmp_ps_mask(scaled, cut, _CMP_GE_OQ);
      const __m512 bounded = _mm512_mask_max_ps(lowest, kept, scaled, lowest);
      const WeightBounds a = bounds8(_mm512_castps512_ps256(bounded), max);
      const WeightBounds b = bounds8(_mm512_extractf32x8_ps(bounded, 1), max);
      ends.low = _mm512_add_epi64(ends.low, _mm512_add_epi64(a.low, b.low));
      ends.high = _mm512_add_epi64(ends.high, _mm512_add_epi64(a.high, b.high));
    }
    if (_mm512_cmpneq_epi64_mask(ends.low, ends.high) != 0) break;
    total = _mm512_add_epi64(total, ends.low);
  }
  *sum += sum_of_lanes(total) - static_cast<uint64_t>(done) * kTwo52Bits;
  return done;
}

}  // namespace outrider

#endif
