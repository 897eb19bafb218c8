// Quantised products on AVX-512 without byte dot products: bytes widened to 16 bits and multiplied
// in pairs, which is exact (the byte product vpmaddubsw would saturate). Compiled with those flags,
// so it may include nothing whose inline functions could be linked elsewhere (see kernels.h).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/int8/int8_kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::int8_avx512 {
namespace {

#include "runtime/ops/cpu/int8/int8_avx512.h"

constexpr int64_t kValueBytes = 2;  // four activations lie as 0, 2, 1, 3
constexpr int kMostIntRows = 6;
constexpr int kIntRowsOfGroup = 6;
constexpr int int_vectors_for_rows(int rows) { return rows <= 3 ? 4 : 2; }

struct Quad {
  __m512i even;
  __m512i odd;
};
using Spread = Quad;

OUTRIDER_INLINE Quad quad_of(Bytes bytes) {
  return {_mm512_and_si512(bytes, _mm512_set1_epi16(255)), _mm512_srli_epi16(bytes, 8)};
}
OUTRIDER_INLINE Spread spread(const char* values) {
  return {all_of_dword(values), all_of_dword(values + 4)};
}
OUTRIDER_INLINE Ints dot(Ints acc, const Quad& w, const Spread& x) {
  acc = _mm512_add_epi32(acc, _mm512_madd_epi16(w.even, x.even));
  return _mm512_add_epi32(acc, _mm512_madd_epi16(w.odd, x.odd));
}
OUTRIDER_INLINE void store_values(char* to, Ints a) {
  const __m256i in_order = _mm512_cvtepi32_epi16(a);
  const __m128i even_first = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_shuffle_epi8(in_order, _mm256_broadcastsi128_si256(even_first)));
}

#include "runtime/ops/cpu/int8/int8_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::int8_avx512

namespace outrider::ops::cpu {
const QuantKernels kAvx512QuantKernels = int8_avx512::kernels_named("avx512");
}  // namespace outrider::ops::cpu
