// What both AVX-512 kernels of quantised products share: vectors of 16 integers or floats. Included
// by them inside their own namespaces, with immintrin.h before; never included elsewhere.
#pragma once

constexpr int kInts = 16;
using Ints = __m512i;
using Floats = __m512;

OUTRIDER_INLINE Ints all_ints(int32_t value) { return _mm512_set1_epi32(value); }
OUTRIDER_INLINE Ints all_of_dword(const char* at) {
  int32_t value;
  __builtin_memcpy(&value, at, sizeof(value));
  return all_ints(value);
}
OUTRIDER_INLINE Floats all_floats(float value) { return _mm512_set1_ps(value); }
OUTRIDER_INLINE Floats load(const float* x) { return _mm512_loadu_ps(x); }
OUTRIDER_INLINE Floats load_halves(const char* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
OUTRIDER_INLINE Ints load_signed_bytes(const char* at) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
using Bytes = __m512i;
OUTRIDER_INLINE Bytes load_bytes(const char* at) { return _mm512_loadu_si512(at); }
// In this order, and not again for every use as GCC would: memory is prefetched by its order.
OUTRIDER_INLINE void keep_in_register(Bytes& bytes) { asm volatile("" : "+v"(bytes)); }
OUTRIDER_INLINE Bytes or_bytes(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
OUTRIDER_INLINE Bytes low_halves(Bytes bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}
OUTRIDER_INLINE Bytes high_halves(Bytes bytes) {
  return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(15));
}
// Bits shift and shift + 1 of each byte, as its bits 4 and 5.
OUTRIDER_INLINE Bytes two_bits(Bytes all, int shift) {
  const auto by = static_cast<unsigned>(shift < 4 ? 4 - shift : shift - 4);
  const Bytes shifted = shift < 4 ? _mm512_slli_epi16(all, by) : _mm512_srli_epi16(all, by);
  return _mm512_and_si512(shifted, _mm512_set1_epi8(0x30));
}
// Bytes of a table of 16, by the low halves of `at`.
OUTRIDER_INLINE Bytes bytes_at(const uint8_t* table, Bytes at) {
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), at);
}
OUTRIDER_INLINE void store(float* x, Floats value) { _mm512_storeu_ps(x, value); }
OUTRIDER_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
OUTRIDER_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
OUTRIDER_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
OUTRIDER_INLINE Floats floats_of_bits(Ints a) { return _mm512_castsi512_ps(a); }
OUTRIDER_INLINE Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
OUTRIDER_INLINE Ints mul_ints(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
OUTRIDER_INLINE Ints load_zeros(const char* zeros) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
}
OUTRIDER_INLINE Ints max_magnitude(Ints most, Floats x) {
  const Ints bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
  return _mm512_max_epi32(most, bits);
}
OUTRIDER_INLINE int32_t fold_max_ints(Ints a) { return _mm512_reduce_max_epi32(a); }
OUTRIDER_INLINE int32_t fold_add_ints(Ints a) { return _mm512_reduce_add_epi32(a); }
// To nearest, ties to even, for |x| < 2^22.
OUTRIDER_INLINE Ints round_to_ints(Floats x) {
  const Floats shifted = _mm512_add_ps(x, _mm512_set1_ps(0x1.8p23f));
  return _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4B400000));
}
OUTRIDER_INLINE void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
