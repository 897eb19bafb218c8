// Quantised products with the byte dot product of AVX-VNNI, in 256 bits. Compiled with those flags,
// so it may include nothing whose inline functions could be linked elsewhere (see kernels.h).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/int8/int8_kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::int8_avxvnni {
namespace {

#include "runtime/ops/cpu/int8/int8_avx2.h"

constexpr int64_t kValueBytes = 1;
// Of 16 registers 12 hold sums, 2 weights.
constexpr int kMostIntRows = 6;
constexpr int kIntRowsOfGroup = 6;
constexpr int int_vectors_for_rows(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

using Quad = __m256i;
using Spread = __m256i;

OUTRIDER_INLINE Quad quad_of(Bytes bytes) { return bytes; }
OUTRIDER_INLINE Spread spread(const char* values) { return all_of_dword(values); }
// In assembler: GCC 12 copies the sum to another register and back around its intrinsic.
OUTRIDER_INLINE Ints dot(Ints acc, Quad w, Spread x) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
  return acc;
}
OUTRIDER_INLINE void store_values(char* to, Ints a) {
  const __m128i words = narrow_to_16(a);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
}

#include "runtime/ops/cpu/int8/int8_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::int8_avxvnni

namespace outrider::ops::cpu {
const QuantKernels kAvxVnniQuantKernels = int8_avxvnni::kernels_named("avxvnni");
}  // namespace outrider::ops::cpu
