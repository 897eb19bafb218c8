// AVX2 (with fma and f16c) kernels: one 16-lane vector is two registers. Compiled with those flags,
// so it may include nothing whose inline functions could be linked elsewhere (see kernels.h).
// Called through KernelTable only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::avx2 {
namespace {

struct Lanes {
  __m256 low;   // lanes 0 .. 7
  __m256 high;  // lanes 8 .. 15
};

// Sixteen registers: twelve sums, one vector and a query.
constexpr int kScoreQueries = 6;
constexpr int kScoreVectors = 1;
// Sixteen registers hold sums, one vector of converted weights and an activation.
constexpr bool kFewRegisters = true;
constexpr int kMostRows = 5;
constexpr int vectors_for_rows(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

OUTRIDER_INLINE Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OUTRIDER_INLINE Lanes constant(float value) {
  return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
}
OUTRIDER_INLINE Lanes broadcast(const float* x) {
  const __m256 value = _mm256_broadcast_ss(x);
  return {value, value};
}
OUTRIDER_INLINE Lanes load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
OUTRIDER_INLINE __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OUTRIDER_INLINE Lanes load_partial(const float* x, int count) {
  if (count <= 8) return {_mm256_maskload_ps(x, first_lanes(count)), _mm256_setzero_ps()};
  return {_mm256_loadu_ps(x), _mm256_maskload_ps(x + 8, first_lanes(count - 8))};
}
// Of bf16 and of integers, as floats.
OUTRIDER_INLINE __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
OUTRIDER_INLINE Lanes load(const uint16_t* x) {
  const __m128i* const at = reinterpret_cast<const __m128i*>(x);
  return {widen_bf16(_mm_loadu_si128(at)), widen_bf16(_mm_loadu_si128(at + 1))};
}
OUTRIDER_INLINE __m256 widen_int8(__m128i x) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)); }
OUTRIDER_INLINE Lanes load(const int8_t* x) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return {widen_int8(all), widen_int8(_mm_unpackhi_epi64(all, all))};
}
OUTRIDER_INLINE void store_high_halves(uint16_t* x, Lanes value) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(value.low), 16);
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(value.high), 16);
  const __m256i quarters = _mm256_packus_epi32(low, high);  // of both, alternating
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm256_permute4x64_epi64(quarters, 0xD8));
}
template <typename Element>
OUTRIDER_INLINE Lanes load_partial(const Element* x, int count) {
  Element some[16] = {};
  for (int i = 0; i < count; ++i) some[i] = x[i];
  return load(some);
}
OUTRIDER_INLINE void store(float* x, Lanes value) {
  _mm256_storeu_ps(x, value.low);
  _mm256_storeu_ps(x + 8, value.high);
}
OUTRIDER_INLINE void store_partial(float* x, Lanes value, int count) {
  _mm256_maskstore_ps(x, first_lanes(count), value.low);
  if (count > 8) _mm256_maskstore_ps(x + 8, first_lanes(count - 8), value.high);
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

// From here on denormals are zeros, in and out; gives what end_flushing wants.
OUTRIDER_INLINE unsigned begin_flushing() {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);
  return before;
}
OUTRIDER_INLINE void end_flushing(unsigned before) { _mm_setcsr(before); }
OUTRIDER_INLINE Lanes fma_flushing(Lanes a, Lanes b, Lanes c) { return fma(a, b, c); }
OUTRIDER_INLINE Lanes add_flushing(Lanes a, Lanes b) { return add(a, b); }

// As vcvtneps2bf16: to nearest even, denormals to zero, NaN quiet.
OUTRIDER_INLINE __m256 round_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i exponent = _mm256_set1_epi32(0x7F800000);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(even, _mm256_set1_epi32(0x7FFF));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, exponent);
  const __m256i is_normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x007FFFFF));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i rounded = _mm256_blendv_epi8(_mm256_add_epi32(bits, half), quiet, is_nan);
  const __m256i kept =
      _mm256_or_si256(_mm256_and_si256(is_normal, _mm256_set1_epi32(static_cast<int>(0x7FFF0000u))),
                      _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm256_castsi256_ps(_mm256_and_si256(rounded, kept));
}
OUTRIDER_INLINE Lanes round_to_bf16(Lanes x) { return {round_half(x.low), round_half(x.high)}; }

// max and min give their second operand when one is NaN.
OUTRIDER_INLINE __m256 clamp_half(__m256 x, float low, float high) {
  return _mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), x));
}
OUTRIDER_INLINE Lanes clamp_keeping_nan(Lanes x, float low, float high) {
  return {clamp_half(x.low, low, high), clamp_half(x.high, low, high)};
}

// y * 2^n, n being the low bits of shifted = 1.5 * 2^23 + n; in two factors, each within the
// exponent's range.
OUTRIDER_INLINE __m256 scale_half(__m256 y, __m256 shifted) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4B400000));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
OUTRIDER_INLINE Lanes scale_by_power_of_two(Lanes y, Lanes shifted) {
  return {scale_half(y.low, shifted.low), scale_half(y.high, shifted.high)};
}

OUTRIDER_INLINE __m256 low_bf16(__m256i both) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
}
OUTRIDER_INLINE __m256 high_bf16(__m256i both) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
OUTRIDER_INLINE void load_bf16_pair(const char* at, Lanes& low, Lanes& high) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32));
  low = {low_bf16(first), low_bf16(second)};
  high = {high_bf16(first), high_bf16(second)};
}
OUTRIDER_INLINE Lanes load_f16(const char* at) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)))};
}
OUTRIDER_INLINE void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
OUTRIDER_INLINE void prefetch_far(const void* at) { _mm_prefetch(at, _MM_HINT_T1); }

OUTRIDER_INLINE float fold_add(Lanes x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OUTRIDER_INLINE float fold_max(Lanes x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// Lanes below first and from last on become -inf.
OUTRIDER_INLINE __m256 keep_half(__m256 x, int first, int last) {
  const __m256i below =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256 kept = _mm256_castsi256_ps(_mm256_andnot_si256(below, first_lanes(last)));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, kept);
}
OUTRIDER_INLINE Lanes keep_lanes(Lanes x, int first, int last) {
  return {keep_half(x.low, first, last), keep_half(x.high, first - 8, last - 8)};
}

OUTRIDER_INLINE void transpose_eight(__m256 (&rows)[8]) {
  __m256 fours[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 low01 = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const __m256 low23 = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m256 high01 = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const __m256 high23 = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    fours[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    fours[i + 1] = _mm256_shuffle_ps(low01, low23, 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    fours[i + 3] = _mm256_shuffle_ps(high01, high23, 0xEE);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
  }
}

// Rows become columns, an 8 x 8 quarter at a time.
OUTRIDER_INLINE void transpose(Lanes (&rows)[16]) {
  __m256 quarters[4][8];
  for (int i = 0; i < 8; ++i) {
    quarters[0][i] = rows[i].low;
    quarters[1][i] = rows[i + 8].low;
    quarters[2][i] = rows[i].high;
    quarters[3][i] = rows[i + 8].high;
  }
  for (auto& quarter : quarters) transpose_eight(quarter);
  for (int i = 0; i < 8; ++i) {
    rows[i] = {quarters[0][i], quarters[1][i]};
    rows[i + 8] = {quarters[2][i], quarters[3][i]};
  }
}

// x[i]: 8 dwords of column i.
OUTRIDER_INLINE void load_and_transpose(const char* const* rows, int64_t offset, __m256i (&x)[8]) {
  __m256 dwords[8];
  for (int lane = 0; lane < 8; ++lane) {
    dwords[lane] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[lane] + offset));
  }
  transpose_eight(dwords);
  for (int i = 0; i < 8; ++i) x[i] = _mm256_castps_si256(dwords[i]);
}

void pack_dwords(uint32_t* out, const char* const* rows, int64_t count) {
  for (int64_t i = 0; i < count; i += 8) {
    for (int half = 0; half < 16; half += 8) {
      __m256i x[8];
      load_and_transpose(rows + half, i * 4, x);
      for (int c = 0; c < 8; ++c) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + (i + c) * kPanel + half), x[c]);
      }
    }
  }
}

// A dword is two elements of a row: of a column of dwords the low halves are one column of
// elements, the high halves the next.
void pack_words(uint16_t* out, const char* const* rows, int64_t count) {
  const __m256i low_half = _mm256_set1_epi32(0xFFFF);
  for (int64_t i = 0; i < count; i += 16) {
    __m256i x[8];
    __m256i y[8];
    load_and_transpose(rows, i * 2, x);
    load_and_transpose(rows + 8, i * 2, y);
    for (int c = 0; c < 8; ++c) {
      __m256i* to = reinterpret_cast<__m256i*>(out + (i + 2 * c) * kPanel);
      const __m256i low =
          _mm256_packus_epi32(_mm256_and_si256(x[c], low_half), _mm256_and_si256(y[c], low_half));
      _mm256_store_si256(to, _mm256_permute4x64_epi64(low, 0xD8));
      to = reinterpret_cast<__m256i*>(out + (i + 2 * c + 1) * kPanel);
      const __m256i high =
          _mm256_packus_epi32(_mm256_srli_epi32(x[c], 16), _mm256_srli_epi32(y[c], 16));
      _mm256_store_si256(to, _mm256_permute4x64_epi64(high, 0xD8));
    }
  }
}

uint32_t read_stream(const void* data, int64_t num_bytes) {
  const char* at = static_cast<const char*>(data);
  __m256i mix[4] = {};
  for (int64_t i = 0; i < num_bytes; i += 128) {
    prefetch(at + i + 8192);
    prefetch(at + i + 8256);
    for (int lane = 0; lane < 4; ++lane) {
      const __m256i* from = reinterpret_cast<const __m256i*>(at + i + lane * 32);
      mix[lane] = _mm256_xor_si256(mix[lane], _mm256_loadu_si256(from));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(mix[0], mix[1]), _mm256_xor_si256(mix[2], mix[3]));
  alignas(32) uint32_t parts[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), all);
  return parts[0] ^ parts[1] ^ parts[2] ^ parts[3] ^ parts[4] ^ parts[5] ^ parts[6] ^ parts[7];
}

#include "runtime/ops/cpu/kernels_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::avx2

namespace outrider::ops::cpu {
const KernelTable kAvx2Kernels = avx2::kernels_with(nullptr);
}  // namespace outrider::ops::cpu
