// See row_noise.h. The vector forms keep one block per 64-bit lane, of which the low 32 bits count:
// the widening multiplication reads only those, so leftovers above need no masking. Two groups of
// lanes run side by side to hide its latency.
#include "scheduler/rows/row_noise.h"

#if defined(__x86_64__) && defined(__GNUC__)
// GCC 12's own header reads a deliberately undefined vector (its bug 105593).
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace outrider {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53u;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kKeyStep0 = 0x9E3779B9u;
constexpr uint32_t kKeyStep1 = 0xBB67AE85u;

uint32_t round_of(const NoiseKey& key) { return key.stream == Stream::kCoupled ? 0 : key.round; }

uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

}  // namespace

uint32_t row_noise_plain(const NoiseKey& key,
                         uint32_t first_block,
                         int32_t num_blocks,
                         uint32_t* out) {
  uint32_t largest = 0;
  for (int32_t i = 0; i < num_blocks; ++i) {
    const PhiloxBlock block = noise_block(key, first_block + static_cast<uint32_t>(i));
    for (int32_t lane = 0; lane < 4; ++lane) {
      out[4 * i + lane] = block.lane[lane];
      largest = larger(largest, block.lane[lane]);
    }
  }
  return largest;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define OUTRIDER_AVX2 __attribute__((target("avx2"), always_inline)) inline
#define OUTRIDER_AVX512 __attribute__((target("avx512f"), always_inline)) inline

namespace {

struct Lanes4 {
  __m256i word0, word1, word2, word3;
};

OUTRIDER_AVX2 Lanes4 start4(const NoiseKey& key, uint32_t block) {
  return {_mm256_set1_epi64x(key.position),
          _mm256_set1_epi64x(static_cast<uint32_t>(key.stream)),
          _mm256_set1_epi64x(round_of(key)),
          _mm256_add_epi32(_mm256_set1_epi64x(block), _mm256_setr_epi64x(0, 1, 2, 3))};
}

OUTRIDER_AVX2 Lanes4 round4(const Lanes4& c, __m256i key0, __m256i key1) {
  const __m256i product0 = _mm256_mul_epu32(c.word0, _mm256_set1_epi64x(kMultiplier0));
  const __m256i product1 = _mm256_mul_epu32(c.word2, _mm256_set1_epi64x(kMultiplier1));
  const __m256i high0 = _mm256_srli_epi64(product0, 32);
  const __m256i high1 = _mm256_srli_epi64(product1, 32);
  return {_mm256_xor_si256(high1, _mm256_xor_si256(c.word1, key0)),
          product1,
          _mm256_xor_si256(high0, _mm256_xor_si256(c.word3, key1)),
          product0};
}

OUTRIDER_AVX2 __m256i store4(const Lanes4& c, uint32_t* out, __m256i largest) {
  const __m256i low = _mm256_blend_epi32(c.word0, _mm256_slli_epi64(c.word1, 32), 0xaa);
  const __m256i high = _mm256_blend_epi32(c.word2, _mm256_slli_epi64(c.word3, 32), 0xaa);
  const __m256i even = _mm256_unpacklo_epi64(low, high);
  const __m256i odd = _mm256_unpackhi_epi64(low, high);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  return _mm256_max_epu32(largest, _mm256_max_epu32(low, high));
}

struct Lanes8 {
  __m512i word0, word1, word2, word3;
};

OUTRIDER_AVX512 Lanes8 start8(const NoiseKey& key, uint32_t block) {
  return {_mm512_set1_epi64(key.position),
          _mm512_set1_epi64(static_cast<uint32_t>(key.stream)),
          _mm512_set1_epi64(round_of(key)),
          _mm512_add_epi32(_mm512_set1_epi64(block), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}

OUTRIDER_AVX512 Lanes8 round8(const Lanes8& c, __m512i key0, __m512i key1) {
  const __m512i product0 = _mm512_mul_epu32(c.word0, _mm512_set1_epi64(kMultiplier0));
  const __m512i product1 = _mm512_mul_epu32(c.word2, _mm512_set1_epi64(kMultiplier1));
  constexpr int kXor = 0x96;  // of all three
  return {_mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c.word1, key0, kXor),
          product1,
          _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c.word3, key1, kXor),
          product0};
}

OUTRIDER_AVX512 __m512i store8(const Lanes8& c, uint32_t* out, __m512i largest) {
  constexpr __mmask16 kOdd = 0xaaaa;
  const __m512i low = _mm512_mask_blend_epi32(kOdd, c.word0, _mm512_slli_epi64(c.word1, 32));
  const __m512i high = _mm512_mask_blend_epi32(kOdd, c.word2, _mm512_slli_epi64(c.word3, 32));
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(low, first, high));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(low, second, high));
  return _mm512_max_epu32(largest, _mm512_max_epu32(low, high));
}

}  // namespace

__attribute__((target("avx2"))) uint32_t row_noise_avx2(const NoiseKey& key,
                                                        uint32_t first_block,
                                                        int32_t num_blocks,
                                                        uint32_t* out) {
  constexpr int32_t kBlocks = 8;
  __m256i largest_lanes = _mm256_setzero_si256();
  int32_t done = 0;
  for (; done + kBlocks <= num_blocks; done += kBlocks) {
    const uint32_t block = first_block + static_cast<uint32_t>(done);
    Lanes4 a = start4(key, block);
    Lanes4 b = start4(key, block + kBlocks / 2);
    auto key0 = static_cast<uint32_t>(key.seed);
    auto key1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      a = round4(a, _mm256_set1_epi64x(key0), _mm256_set1_epi64x(key1));
      b = round4(b, _mm256_set1_epi64x(key0), _mm256_set1_epi64x(key1));
      key0 += kKeyStep0;
      key1 += kKeyStep1;
    }
    largest_lanes = store4(a, out + 4 * done, largest_lanes);
    largest_lanes = store4(b, out + 4 * done + 2 * kBlocks, largest_lanes);
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest_lanes);
  uint32_t largest = row_noise_plain(
      key, first_block + static_cast<uint32_t>(done), num_blocks - done, out + 4 * done);
  for (uint32_t lane : lanes) largest = larger(largest, lane);
  return largest;
}

__attribute__((target("avx512f"))) uint32_t row_noise_avx512(const NoiseKey& key,
                                                             uint32_t first_block,
                                                             int32_t num_blocks,
                                                             uint32_t* out) {
  constexpr int32_t kBlocks = 16;
  __m512i largest_lanes = _mm512_setzero_si512();
  int32_t done = 0;
  for (; done + kBlocks <= num_blocks; done += kBlocks) {
    const uint32_t block = first_block + static_cast<uint32_t>(done);
    Lanes8 a = start8(key, block);
    Lanes8 b = start8(key, block + kBlocks / 2);
    auto key0 = static_cast<uint32_t>(key.seed);
    auto key1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      a = round8(a, _mm512_set1_epi64(key0), _mm512_set1_epi64(key1));
      b = round8(b, _mm512_set1_epi64(key0), _mm512_set1_epi64(key1));
      key0 += kKeyStep0;
      key1 += kKeyStep1;
    }
    largest_lanes = store8(a, out + 4 * done, largest_lanes);
    largest_lanes = store8(b, out + 4 * done + 2 * kBlocks, largest_lanes);
  }
  alignas(64) uint32_t lanes[16];
  _mm512_store_si512(lanes, largest_lanes);
  uint32_t largest = row_noise_plain(
      key, first_block + static_cast<uint32_t>(done), num_blocks - done, out + 4 * done);
  for (uint32_t lane : lanes) largest = larger(largest, lane);
  return largest;
}
#endif

}  // namespace outrider
