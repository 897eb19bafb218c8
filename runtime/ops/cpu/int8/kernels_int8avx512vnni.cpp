// Quantised products with the byte dot product of AVX512-VNNI: an unsigned weight by a signed
// activation, four at a time into 32 bits, without saturation. Compiled with those flags, so it may
// include nothing whose inline functions could be linked elsewhere (see kernels.h).
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/int8/int8_kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::int8_avx512vnni {
namespace {

#include "runtime/ops/cpu/int8/int8_avx512.h"

constexpr int64_t kValueBytes = 1;
// Of 32 registers 24 hold sums, 4 weights; with groups of 4 rows 8 more are left to the totals.
constexpr int kMostIntRows = 6;
constexpr int kIntRowsOfGroup = 4;
constexpr int int_vectors_for_rows(int) { return 4; }

using Quad = __m512i;
using Spread = __m512i;

OUTRIDER_INLINE Quad quad_of(Bytes bytes) { return bytes; }
OUTRIDER_INLINE Spread spread(const char* values) { return all_of_dword(values); }
// In assembler: GCC 12 copies the sum to another register and back around its intrinsic.
OUTRIDER_INLINE Ints dot(Ints acc, Quad w, Spread x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
  return acc;
}
OUTRIDER_INLINE void store_values(char* to, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
}

#include "runtime/ops/cpu/int8/int8_body.h"

}  // namespace
}  // namespace outrider::ops::cpu::int8_avx512vnni

namespace outrider::ops::cpu {
const QuantKernels kAvx512VnniQuantKernels = int8_avx512vnni::kernels_named("avx512vnni");
}  // namespace outrider::ops::cpu
