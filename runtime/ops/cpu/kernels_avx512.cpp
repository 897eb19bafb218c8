// AVX-512 (f, bw, dq, vl) kernels: one 16-lane vector is one register. Compiled with those flags,
// so it may include nothing whose inline functions could be linked elsewhere (see kernels.h).
// Called through KernelTable only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::avx512 {
namespace {

using Lanes = __m512;

// Of 32 registers 24 hold scores or value sums.
constexpr int kScoreQueries = 6;
constexpr int kScoreVectors = 4;
// Of 32 registers 24 hold sums. Up to six rows take the panel's four vectors at once; up to twelve
// take two, in two passes over a chunk that each read half of every line group, so that memory is
// read evenly.
constexpr bool kFewRegisters = false;
constexpr int kMostRows = 6;
constexpr int vectors_for_rows(int) { return 4; }

OUTRIDER_INLINE Lanes zero() { return _mm512_setzero_ps(); }
OUTRIDER_INLINE Lanes constant(float value) { return _mm512_set1_ps(value); }
OUTRIDER_INLINE Lanes broadcast(const float* x) { return _mm512_set1_ps(*x); }
OUTRIDER_INLINE Lanes load(const float* x) { return _mm512_loadu_ps(x); }
OUTRIDER_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>((1u << count) - 1u);
}
OUTRIDER_INLINE Lanes load_partial(const float* x, int count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), x);
}
// Of bf16 and of integers, as floats.
OUTRIDER_INLINE Lanes widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
OUTRIDER_INLINE Lanes load(const uint16_t* x) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
OUTRIDER_INLINE Lanes load_partial(const uint16_t* x, int count) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(count), x));
}
OUTRIDER_INLINE Lanes widen_int8(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }
OUTRIDER_INLINE Lanes load(const int8_t* x) {
  return widen_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
OUTRIDER_INLINE Lanes load_partial(const int8_t* x, int count) {
  return widen_int8(_mm_maskz_loadu_epi8(first_lanes(count), x));
}
OUTRIDER_INLINE void store(float* x, Lanes value) { _mm512_storeu_ps(x, value); }
OUTRIDER_INLINE void store_partial(float* x, Lanes value, int count) {
  _mm512_mask_storeu_ps(x, first_lanes(count), value);
}
OUTRIDER_INLINE void store_high_halves(uint16_t* x, Lanes value) {
  const __m512i halves = _mm512_srli_epi32(_mm512_castps_si512(value), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm512_cvtepi32_epi16(halves));
}
OUTRIDER_INLINE Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
OUTRIDER_INLINE Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
OUTRIDER_INLINE Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
OUTRIDER_INLINE Lanes div(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
OUTRIDER_INLINE Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
OUTRIDER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }

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
OUTRIDER_INLINE Lanes round_to_bf16(Lanes x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(even, _mm512_set1_epi32(0x7FFF));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
  const __mmask16 is_denormal = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
  const __m512i rounded = _mm512_mask_or_epi32(
      _mm512_add_epi32(bits, half), is_nan, bits, _mm512_set1_epi32(0x00400000));
  const __m512i kept = _mm512_mask_mov_epi32(_mm512_set1_epi32(static_cast<int>(0xFFFF0000u)),
                                             is_denormal,
                                             _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, kept));
}

// max and min give their second operand when one is NaN.
OUTRIDER_INLINE Lanes clamp_keeping_nan(Lanes x, float low, float high) {
  return _mm512_min_ps(constant(high), _mm512_max_ps(constant(low), x));
}

// y * 2^n, rounded once, as by two factors; shifted = 1.5 * 2^23 + n.
OUTRIDER_INLINE Lanes scale_by_power_of_two(Lanes y, Lanes shifted) {
  return _mm512_scalef_ps(y, sub(shifted, constant(12582912.0f)));
}

OUTRIDER_INLINE void load_bf16_pair(const char* at, Lanes& low, Lanes& high) {
  const __m512i both = _mm512_loadu_si512(at);
  low = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  high =
      _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
OUTRIDER_INLINE Lanes load_f16(const char* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
OUTRIDER_INLINE void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
OUTRIDER_INLINE void prefetch_far(const void* at) { _mm_prefetch(at, _MM_HINT_T1); }

OUTRIDER_INLINE __m256 fold_to_8(Lanes x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
OUTRIDER_INLINE float fold_add(Lanes x) {
  const __m256 eight = fold_to_8(x);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
OUTRIDER_INLINE float fold_max(Lanes x) { return _mm512_reduce_max_ps(x); }

// Lanes below first and from last on become -inf.
OUTRIDER_INLINE Lanes keep_lanes(Lanes x, int first, int last) {
  const auto kept = static_cast<__mmask16>(((1u << last) - 1u) & ~((1u << first) - 1u));
  return _mm512_mask_blend_ps(kept, constant(-__builtin_inff()), x);
}

OUTRIDER_INLINE Lanes unpack_low_pairs(Lanes a, Lanes b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
OUTRIDER_INLINE Lanes unpack_high_pairs(Lanes a, Lanes b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

// Rows become columns.
OUTRIDER_INLINE void transpose(Lanes (&rows)[16]) {
  Lanes fours[16];
  for (int i = 0; i < 16; i += 4) {
    const Lanes low01 = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    const Lanes low23 = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const Lanes high01 = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const Lanes high23 = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    fours[i] = unpack_low_pairs(low01, low23);
    fours[i + 1] = unpack_high_pairs(low01, low23);
    fours[i + 2] = unpack_low_pairs(high01, high23);
    fours[i + 3] = unpack_high_pairs(high01, high23);
  }
  // fours[4 b + c] holds column c + 4 q of rows 4 b .. 4 b + 3 in its quarter q.
  for (int c = 0; c < 4; ++c) {
    const Lanes even01 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
    const Lanes even23 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
    const Lanes odd01 = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xDD);
    const Lanes odd23 = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xDD);
    rows[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
    rows[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    rows[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xDD);
    rows[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xDD);
  }
}

void pack_dwords(uint32_t* out, const char* const* rows, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    Lanes x[16];
    for (int lane = 0; lane < 16; ++lane) x[lane] = _mm512_loadu_ps(rows[lane] + i * 4);
    transpose(x);
    for (int c = 0; c < 16; ++c) _mm512_store_ps(out + (i + c) * kPanel, x[c]);
  }
}

// A dword is two elements of a row: of a column of dwords the low halves are one column of
// elements, the high halves the next.
void pack_words(uint16_t* out, const char* const* rows, int64_t count) {
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask16 dwords = count - i < 32 ? 0x00FF : 0xFFFF;
    Lanes x[16];
    for (int lane = 0; lane < 16; ++lane) {
      x[lane] = _mm512_maskz_loadu_ps(dwords, rows[lane] + i * 2);
    }
    transpose(x);
    for (int c = 0; c < 16 && i + 2 * c < count; ++c) {
      const __m512i column = _mm512_castps_si512(x[c]);
      __m256i* to = reinterpret_cast<__m256i*>(out + (i + 2 * c) * kPanel);
      _mm256_store_si256(to, _mm512_cvtepi32_epi16(column));
      to = reinterpret_cast<__m256i*>(out + (i + 2 * c + 1) * kPanel);
      _mm256_store_si256(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(column, 16)));
    }
  }
}

uint32_t read_stream(const void* data, int64_t num_bytes) {
  const char* at = static_cast<const char*>(data);
  __m512i mix[4] = {};
  for (int64_t i = 0; i < num_bytes; i += 256) {
    for (int lane = 0; lane < 4; ++lane) {
      prefetch(at + i + lane * 64 + 8192);
      mix[lane] = _mm512_xor_si512(mix[lane], _mm512_loadu_si512(at + i + lane * 64));
    }
  }
  const __m512i all =
      _mm512_xor_si512(_mm512_xor_si512(mix[0], mix[1]), _mm512_xor_si512(mix[2], mix[3]));
  return static_cast<uint32_t>(_mm512_reduce_add_epi32(all));
}

#include "runtime/ops/cpu/kernels_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::avx512

namespace outrider::ops::cpu {
const KernelTable kAvx512Kernels = avx512::kernels_with(&kAvx512Bf16Products);
}  // namespace outrider::ops::cpu
