// Products of bf16 weights with activations rounded to bf16, on a CPU with AVX512-BF16: one
// vdpbf16ps per pair of elements and 16 outputs. Bits as in linear_body.h with rounded activations.
// Compiled with flags of its own, so it may include nothing whose inline functions could be linked
// elsewhere (see kernels.h). Called through RoundedProducts only.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cpu/kernels.h"

#define OUTRIDER_INLINE [[gnu::always_inline]] inline
#define OUTRIDER_NOINLINE [[gnu::noinline]]

namespace outrider::ops::cpu::avx512bf16 {
namespace {

constexpr int kVectors = static_cast<int>(kPanel) / kLanes;
constexpr int64_t kPairs = kInnerChunk / 2;
constexpr int64_t kPairBytes = kPanel * 4;  // of weights: four lines
// Of 32 registers 24 hold sums, four a pair's weights, and one the pair of activations at hand.
constexpr int kMostRows = 6;

// A single row group prefetches this far ahead of itself, measured.
constexpr int64_t kAheadBytes = 4096;

// One row group's way through one chunk. Of several groups, which find this chunk in the cache,
// each fetches a contiguous part of the next one, spread evenly over its own work.
struct ChunkTile {
  const char* chunk;
  const char* in;
  int64_t num_pairs;
  float* totals;
  const char* prefetch_from;
  int64_t prefetch_lines;  // per pair; 0: a single group
};

template <int kRows>
OUTRIDER_INLINE void multiply_pair(const ChunkTile& tile,
                                   int64_t pair,
                                   __m512 (&acc)[kRows][kVectors]) {
  __m512bh weights[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    weights[v] =
        reinterpret_cast<__m512bh>(_mm512_loadu_si512(tile.chunk + pair * kPairBytes + v * 64));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    int32_t both;
    __builtin_memcpy(&both, tile.in + (r * kPairs + pair) * 4, sizeof(both));
    const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], weights[v], x);
  }
}

template <int kRows>
OUTRIDER_NOINLINE void run_rows(const ChunkTile& tile) {
  __m512 acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  if (tile.prefetch_lines == 0) {
    for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
      for (int line = 0; line < 4; ++line) {
        _mm_prefetch(tile.chunk + pair * kPairBytes + line * 64 + kAheadBytes, _MM_HINT_T0);
      }
      multiply_pair<kRows>(tile, pair, acc);
    }
  } else {
    const char* next = tile.prefetch_from;
    for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
      for (int64_t line = 0; line < tile.prefetch_lines; ++line, next += 64) {
        _mm_prefetch(next, _MM_HINT_T1);
      }
      multiply_pair<kRows>(tile, pair, acc);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* total = tile.totals + r * kPanel + v * kLanes;
      _mm512_storeu_ps(total, _mm512_add_ps(_mm512_loadu_ps(total), acc[r][v]));
    }
  }
}

// Calls the tile code made for exactly this many rows.
template <int kRows>
OUTRIDER_INLINE void run_row_group(const ChunkTile& tile, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_row_group<kRows - 1>(tile, rows);
  }
  run_rows<kRows>(tile);
}

void panel_of_rows(const LinearPanel& panel) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // the dot flushes denormals anyway; the sums of chunks must too
  for (int64_t i = 0; i < panel.rows * kPanel; i += kLanes) {
    _mm512_storeu_ps(panel.totals + i, _mm512_setzero_ps());
  }
  const int64_t num_groups = (panel.rows + kMostRows - 1) / kMostRows;
  constexpr int64_t kPairLines = kPairBytes / 64;
  const int64_t share = num_groups == 1 ? 0 : (kPairLines + num_groups - 1) / num_groups;
  ChunkTile tile{};
  for (int64_t begin = 0; begin < panel.n_in; begin += kInnerChunk) {
    const int64_t count = panel.n_in - begin < kInnerChunk ? panel.n_in - begin : kInnerChunk;
    tile.num_pairs = count / 2;
    tile.chunk = static_cast<const char*>(panel.weights) + begin / 2 * kPairBytes;
    const char* in =
        static_cast<const char*>(panel.in) + begin / kInnerChunk * panel.chunk_stride * 2;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t row = panel.rows * group / num_groups;
      tile.in = in + row * kInnerChunk * 2;
      tile.totals = panel.totals + row * kPanel;
      tile.prefetch_lines = group * share < kPairLines ? share : 0;
      tile.prefetch_from = tile.chunk + kPairs * kPairBytes + group * share * kPairs * 64;
      run_row_group<kMostRows>(tile, panel.rows * (group + 1) / num_groups - row);
    }
  }
  _mm_setcsr(before);
}

void round_row(void* out, const float* in, int64_t count) {
  uint16_t* rounded = static_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const __m512bh both =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(in + i + kLanes), _mm512_loadu_ps(in + i));
    _mm512_storeu_si512(rounded + i, reinterpret_cast<__m512i>(both));
  }
  for (; i < count; i += kLanes) {
    const int64_t rest = count - i < kLanes ? count - i : kLanes;
    const auto read = static_cast<__mmask16>((1u << rest) - 1u);
    const auto written = static_cast<__mmask16>((1u << (rest + rest % 2)) - 1u);
    const __m256bh some = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(read, in + i));
    _mm256_mask_storeu_epi16(rounded + i, written, reinterpret_cast<__m256i>(some));
  }
}

int64_t dot_peak(int64_t rounds, float* sink) {
  constexpr int kChains = 24;
  __m512 acc[kChains];
  for (__m512& chain : acc) chain = _mm512_set1_ps(*sink);
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F003F00));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], a, a);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  *sink = _mm512_reduce_add_ps(acc[0]);
  return rounds * kChains * kLanes * 4;
}

}  // namespace
}  // namespace outrider::ops::cpu::avx512bf16

namespace outrider::ops::cpu {
const RoundedProducts kAvx512Bf16Products = {
    .element_bytes = 2,
    .round_row = avx512bf16::round_row,
    .panel = avx512bf16::panel_of_rows,
    .peak = avx512bf16::dot_peak,
};
}  // namespace outrider::ops::cpu
