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
// Of 32 registers 24 hold sums, 4 weights.
constexpr int kMostIntRows = 6;
constexpr int int_vectors_for_rows(int) { return 4; }

using Quad = __m512i;
using Spread = __m512i;

OUTRIDER_INLINE Quad load_quad(const char* at) { return _mm512_loadu_si512(at); }
OUTRIDER_INLINE Quad low_quad(const char* at) {
  return _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(15));
}
OUTRIDER_INLINE Quad high_quad(const char* at) {
  return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(at), 4), _mm512_set1_epi8(15));
}
OUTRIDER_INLINE Quad lookup(const uint8_t* table, Quad at) { return bytes_at(table, at); }
OUTRIDER_INLINE Spread spread(const char* values) {
  int32_t four;
  __builtin_memcpy(&four, values, sizeof(four));
  return _mm512_set1_epi32(four);
}
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
const QuantKernels kAvx512VnniQuantKernels = {
    .name = "avx512vnni",
    .value_bytes = int8_avx512vnni::kValueBytes,
    .quantize = int8_avx512vnni::quantize_stretch,
    .panel_8 = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k8>,
    .panel_4 = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k4>,
    .panel_4_zeros = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k4Zeros>,
    .panel_4_floats = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k4Floats>,
    .panel_8_offsets = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k8Offsets>,
    .panel_4_offsets = int8_avx512vnni::quant_panel<int8_avx512vnni::QuantKind::k4Offsets>,
};
}  // namespace outrider::ops::cpu
