// What both 256-bit kernels of quantised products share: vectors of 8 integers or floats. Included
// by them inside their own namespaces, with immintrin.h before; never included elsewhere.
#pragma once

constexpr int kInts = 8;
using Ints = __m256i;
using Floats = __m256;

using Bytes = __m256i;
OUTRIDER_INLINE Bytes load_bytes(const char* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
// There are too few registers.
OUTRIDER_INLINE void keep_in_register(const Bytes&) {}
OUTRIDER_INLINE Bytes or_bytes(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
OUTRIDER_INLINE Bytes low_halves(Bytes bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}
OUTRIDER_INLINE Bytes high_halves(Bytes bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}
// Bits shift and shift + 1 of each byte, as its bits 4 and 5.
OUTRIDER_INLINE Bytes two_bits(Bytes bytes, int shift) {
  const Bytes lowest = _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8(3));
  return _mm256_slli_epi16(lowest, 4);
}
OUTRIDER_INLINE Ints all_ints(int32_t value) { return _mm256_set1_epi32(value); }
OUTRIDER_INLINE Ints all_of_dword(const char* at) {
  int32_t value;
  __builtin_memcpy(&value, at, sizeof(value));
  return all_ints(value);
}
OUTRIDER_INLINE Floats all_floats(float value) { return _mm256_set1_ps(value); }
OUTRIDER_INLINE Floats load(const float* x) { return _mm256_loadu_ps(x); }
OUTRIDER_INLINE Floats load_halves(const char* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
OUTRIDER_INLINE Ints load_signed_bytes(const char* at) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}
// Bytes of a table of 16, by the low halves of `at`.
OUTRIDER_INLINE Bytes bytes_at(const uint8_t* table, Bytes at) {
  const __m128i all = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), at);
}
OUTRIDER_INLINE void store(float* x, Floats value) { _mm256_storeu_ps(x, value); }
OUTRIDER_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
OUTRIDER_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
OUTRIDER_INLINE Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
OUTRIDER_INLINE Floats floats_of_bits(Ints a) { return _mm256_castsi256_ps(a); }
OUTRIDER_INLINE Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
OUTRIDER_INLINE Ints mul_ints(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
OUTRIDER_INLINE Ints load_zeros(const char* zeros) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(zeros)));
}
OUTRIDER_INLINE Ints max_magnitude(Ints most, Floats x) {
  const Ints bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_max_epi32(most, bits);
}
OUTRIDER_INLINE int32_t fold_max_ints(Ints a) {
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
OUTRIDER_INLINE int32_t fold_add_ints(Ints a) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}
// To nearest, ties to even, for |x| < 2^22.
OUTRIDER_INLINE Ints round_to_ints(Floats x) {
  const Floats shifted = _mm256_add_ps(x, _mm256_set1_ps(0x1.8p23f));
  return _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4B400000));
}
// Eight integers as 16 bits, in order.
OUTRIDER_INLINE __m128i narrow_to_16(Ints a) {
  return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
OUTRIDER_INLINE void prefetch(const char* at) { _mm_prefetch(at, _MM_HINT_T0); }
