// Quantised products on AVX2: bytes widened to 16 bits and multiplied in pairs, which is exact (the
// byte product vpmaddubsw would saturate). Compiled with those flags, so it may include nothing
// whose inline functions could be linked elsewhere (see kernels.h).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/int8/int8_kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::int8_avx2 {
namespace {

#include "runtime/ops/cpu/int8/int8_avx2.h"

constexpr int64_t kValueBytes = 2;  // four activations lie as 0, 2, 1, 3
// Of 16 registers 8 hold sums, 4 weights, 2 activations.
constexpr int kMostIntRows = 4;
constexpr int kIntRowsOfGroup = 4;
constexpr int int_vectors_for_rows(int rows) { return rows == 1 ? 4 : 2; }

struct Quad {
  __m256i even;
  __m256i odd;
};
using Spread = Quad;

OUTRIDER_INLINE Quad quad_of(Bytes bytes) {
  return {_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)};
}
OUTRIDER_INLINE Spread spread(const char* values) {
  return {all_of_dword(values), all_of_dword(values + 4)};
}
// In assembler: GCC 12 keeps two copies of the sums and spills them.
OUTRIDER_INLINE Ints add_pairs(Ints acc, __m256i w, __m256i x) {
  __m256i pairs;
  asm("vpmaddwd %[x], %[w], %[pairs]\n\tvpaddd %[pairs], %[acc], %[acc]"
      : [acc] "+x"(acc), [pairs] "=&x"(pairs)
      : [w] "x"(w), [x] "x"(x));
  return acc;
}
OUTRIDER_INLINE Ints dot(Ints acc, const Quad& w, const Spread& x) {
  return add_pairs(add_pairs(acc, w.even, x.even), w.odd, x.odd);
}
OUTRIDER_INLINE void store_values(char* to, Ints a) {
  const __m128i even_first = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(narrow_to_16(a), even_first));
}

#include "runtime/ops/cpu/int8/int8_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::int8_avx2

namespace outrider::ops::cpu {
const QuantKernels kAvx2QuantKernels = int8_avx2::kernels_named("avx2");
}  // namespace outrider::ops::cpu
