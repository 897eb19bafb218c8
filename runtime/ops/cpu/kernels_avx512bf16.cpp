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
constexpr int64_t kLine = 64;
constexpr int64_t kPairs = kInnerChunk / 2;
constexpr int64_t kPairBytes = kPanel * 4;  // of weights
constexpr int64_t kPairLines = kPairBytes / kLine;
// Of 32 registers 24 hold sums, four a pair's weights, and one the pair of activations at hand.
constexpr int kMostRows = 6;
// Pairs of one turn of the inner loop.
constexpr int64_t kStep = 4;

// A single row group is bound by memory: it prefetches this far ahead of itself, measured.
constexpr int64_t kAheadBytes = 4096;
// Up to this many row groups wait for memory as much as they compute. They share half a chunk at a
// time, so that it and the half after it, which they are fetching, fit into the first cache. More
// groups take a chunk whole, which saves loading and storing the sums in between.
constexpr int64_t kFewGroups = 3;
constexpr int64_t kFewGroupsPairs = kPairs / 2;

// One row group's way through a piece of a chunk.
struct Tile {
  const char* weights;
  const char* in;
  int64_t num_pairs;
  bool begins;          // with the chunk; else the chains go on
  bool ends;            // with the chunk; else the chains are kept
  float* chains;        // rows of kPanel
  const float* before;  // sums of the chunks before, rows of kPanel
  float* after;         // the same plus this chunk's, rows of after_stride; may be before
  int64_t after_stride;
  const char* next;        // weights of the piece after this one: the part that this group fetches,
  int64_t lines_per_step;  // spread evenly over its work; -1: a single group
};

template <int kRows>
OUTRIDER_INLINE void multiply_pair(const char* from,
                                   const char* in,
                                   __m512 (&acc)[kRows][kVectors]) {
  __m512bh weights[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    weights[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(from + v * kLine));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    int32_t both;
    __builtin_memcpy(&both, in + r * kPairs * 4, sizeof(both));
    const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], weights[v], x);
  }
}

template <int kRows>
OUTRIDER_INLINE void multiply_pairs(const Tile& tile, __m512 (&acc)[kRows][kVectors]) {
  const char* weights = tile.weights;
  const char* in = tile.in;
  const char* next = tile.next;
  const char* next_in = in + kRows * kPairs * 4;
  const char* const end = weights + tile.num_pairs / kStep * kStep * kPairBytes;
  for (; weights != end; weights += kStep * kPairBytes, in += kStep * 4) {
    if (tile.lines_per_step >= 0) {
      const char* const last = next + tile.lines_per_step * kLine;
      for (; next != last; next += kLine) _mm_prefetch(next, _MM_HINT_T0);
      // The next group's activations, in time.
      _mm_prefetch(next_in, _MM_HINT_T0);
      _mm_prefetch(next_in + kLine, _MM_HINT_T0);
      next_in += kRows * kStep * 4;
    }
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < kStep; ++pair) {
      const char* from = weights + pair * kPairBytes;
      if (tile.lines_per_step < 0) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < kPairLines; ++line) {
          _mm_prefetch(from + kAheadBytes + line * kLine, _MM_HINT_T0);
        }
      }
      multiply_pair<kRows>(from, in + pair * 4, acc);
    }
  }
  for (int64_t pair = 0; pair < tile.num_pairs % kStep; ++pair) {
    multiply_pair<kRows>(weights + pair * kPairBytes, in + pair * 4, acc);
  }
}

template <int kRows>
OUTRIDER_NOINLINE void run_rows(const Tile& tile) {
  __m512 acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = tile.begins ? _mm512_setzero_ps()
                              : _mm512_loadu_ps(tile.chains + r * kPanel + v * kLanes);
    }
  }
  multiply_pairs<kRows>(tile, acc);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = r * kPanel + v * kLanes;
      if (tile.ends) {
        _mm512_storeu_ps(tile.after + r * tile.after_stride + v * kLanes,
                         _mm512_add_ps(_mm512_loadu_ps(tile.before + at), acc[r][v]));
      } else {
        _mm512_storeu_ps(tile.chains + at, acc[r][v]);
      }
    }
  }
}

// Calls the tile code made for exactly this many rows.
template <int kRows>
OUTRIDER_INLINE void run_row_group(const Tile& tile, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_row_group<kRows - 1>(tile, rows);
  }
  run_rows<kRows>(tile);
}

// All row groups over one piece of the panel, which tile describes but for the rows.
void run_groups(const LinearPanel& panel, Tile tile, bool finishes) {
  const int64_t num_groups = (panel.rows + kMostRows - 1) / kMostRows;
  const int64_t share = (kStep * kPairLines + num_groups - 1) / num_groups;
  const char* const in = tile.in;
  float* const chains = tile.chains;
  const char* const next_end = tile.next + tile.num_pairs * kPairBytes;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t row = panel.rows * group / num_groups;
    tile.in = in + row * kInnerChunk * 2;
    tile.chains = chains + row * kPanel;
    tile.before = panel.totals + row * kPanel;
    tile.after_stride = finishes ? panel.out_stride : kPanel;
    tile.after = (finishes ? panel.out : panel.totals) + row * tile.after_stride;
    tile.lines_per_step = num_groups == 1 ? -1 : tile.next < next_end ? share : 0;
    run_row_group<kMostRows>(tile, panel.rows * (group + 1) / num_groups - row);
    tile.next += share * kLine * (tile.num_pairs / kStep);
  }
}

void panel_of_rows(const LinearPanel& panel) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // the dot flushes denormals anyway; the sums of chunks must too
  for (int64_t i = 0; i < panel.rows * kPanel; i += kLanes) {
    _mm512_storeu_ps(panel.totals + i, _mm512_setzero_ps());
  }
  alignas(64) float chains[kFewGroups * kMostRows * kPanel];
  const bool few = panel.rows > kMostRows && panel.rows <= kFewGroups * kMostRows;
  const int64_t most_pairs = few ? kFewGroupsPairs : kPairs;
  const int64_t num_pairs = panel.n_in / 2;
  Tile tile{};
  for (int64_t pair = 0; pair < num_pairs; pair += tile.num_pairs) {
    const int64_t chunk = pair / kPairs;
    const int64_t chunk_end = (chunk + 1) * kPairs < num_pairs ? (chunk + 1) * kPairs : num_pairs;
    tile.num_pairs = chunk_end - pair < most_pairs ? chunk_end - pair : most_pairs;
    tile.begins = pair % kPairs == 0;
    tile.ends = pair + tile.num_pairs == chunk_end;
    tile.chains = few ? chains : panel.totals;  // kept only by few
    tile.weights = static_cast<const char*>(panel.weights) + pair * kPairBytes;
    tile.next = tile.weights + tile.num_pairs * kPairBytes;
    tile.in =
        static_cast<const char*>(panel.in) + chunk * panel.chunk_stride * 2 + pair % kPairs * 4;
    run_groups(panel, tile, panel.out != nullptr && pair + tile.num_pairs == num_pairs);
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
