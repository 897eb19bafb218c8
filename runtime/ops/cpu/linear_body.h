// The matrix product of one panel, written once over 16-lane vectors. Included by kernels_body.h
// only. Invariant: an output's sum is, per chunk of kInnerChunk elements, one fma chain in
// ascending order (of rounded activations: the odd element of each pair first, denormals flushed);
// tiles of rows and outputs only decide which chains run side by side, so bits do not depend on
// them.
#pragma once

constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes;

// How far a single row group prefetches ahead of itself, measured.
constexpr int64_t short_ahead(int rows) { return rows <= 2 ? 4096 : 8192; }

struct Bf16Weights {
  static constexpr int64_t kBytes = 2;
  static constexpr bool kRounded = false;
  OUTRIDER_INLINE static void pair(
      const char* chunk, int64_t i, int vector, Lanes& low, Lanes& high) {
    load_bf16_pair(chunk + i * kPanel * 2 + vector * kLanes * 4, low, high);
  }
  OUTRIDER_INLINE static Lanes last(const char* chunk, int64_t i, int vector) {
    Lanes low;
    Lanes high;
    pair(chunk, i, vector, low, high);
    return low;
  }
};

// The same for rounded activations.
struct RoundedBf16Weights : Bf16Weights {
  static constexpr bool kRounded = true;
};

struct F16Weights {
  static constexpr int64_t kBytes = 2;
  static constexpr bool kRounded = false;
  OUTRIDER_INLINE static Lanes last(const char* chunk, int64_t i, int vector) {
    return load_f16(chunk + (i * kPanel + vector * kLanes) * 2);
  }
  OUTRIDER_INLINE static void pair(
      const char* chunk, int64_t i, int vector, Lanes& low, Lanes& high) {
    low = last(chunk, i, vector);
    high = last(chunk, i + 1, vector);
  }
};

struct F32Weights {
  static constexpr int64_t kBytes = 4;
  static constexpr bool kRounded = false;
  OUTRIDER_INLINE static Lanes last(const char* chunk, int64_t i, int vector) {
    return load(reinterpret_cast<const float*>(chunk) + i * kPanel + vector * kLanes);
  }
  OUTRIDER_INLINE static void pair(
      const char* chunk, int64_t i, int vector, Lanes& low, Lanes& high) {
    low = last(chunk, i, vector);
    high = last(chunk, i + 1, vector);
  }
};

// One row group's way through one chunk. Prefetch, which is worth a third of the speed from five
// rows on: a single group reads a little ahead of itself; of several, which find this chunk in the
// cache, each fetches a contiguous part of the next one, spread evenly over its own work.
struct ChunkTile {
  const char* chunk;
  const float* in;
  int64_t in_stride;
  int64_t count;
  const float* before;  // sums of the chunks before: rows of kPanel
  float* after;         // the same plus this chunk's, rows of after_stride; may be before
  int64_t after_stride;
  const char* prefetch_from;
  int64_t prefetch_lines;  // per pair of elements; 0: a single group
};

template <typename Weights>
OUTRIDER_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  if constexpr (Weights::kRounded) return fma_flushing(a, b, c);
  return fma(a, b, c);
}

// Adds elements i and i + 1 to every chain of the tile, one after the other.
template <typename Weights, int kRows, int kVectors>
OUTRIDER_INLINE void multiply_pair(const ChunkTile& tile,
                                   int64_t i,
                                   int first_vector,
                                   Lanes (&acc)[kRows][kVectors]) {
  constexpr int kFirst = Weights::kRounded ? 1 : 0;
  const float* in = tile.in + i;
  if constexpr (kFewRegisters) {  // one vector's weights at a time
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Lanes weight[2];
      Weights::pair(tile.chunk, i, first_vector + v, weight[0], weight[1]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Lanes x = broadcast(in + r * tile.in_stride + kFirst);
        acc[r][v] = multiply_add<Weights>(weight[kFirst], x, acc[r][v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Lanes x = broadcast(in + r * tile.in_stride + 1 - kFirst);
        acc[r][v] = multiply_add<Weights>(weight[1 - kFirst], x, acc[r][v]);
      }
    }
  } else {
    Lanes weight[2][kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Weights::pair(tile.chunk, i, first_vector + v, weight[0][v], weight[1][v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = broadcast(in + r * tile.in_stride + kFirst);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = multiply_add<Weights>(weight[kFirst][v], x, acc[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = broadcast(in + r * tile.in_stride + 1 - kFirst);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = multiply_add<Weights>(weight[1 - kFirst][v], x, acc[r][v]);
      }
    }
  }
}

template <typename Weights, int kRows, int kVectors>
OUTRIDER_INLINE void run_tile(const ChunkTile& tile, int first_vector) {
  Lanes acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  const char* next = tile.prefetch_from;
  int64_t i = 0;
  for (; i + 1 < tile.count; i += 2) {
    if (tile.prefetch_lines == 0) {
      const char* ahead = tile.chunk + i * kPanel * Weights::kBytes + short_ahead(kRows);
#pragma GCC unroll 8
      for (int line = 0; line < kVectors * Weights::kBytes / 2; ++line) {
        prefetch(ahead + (first_vector * Weights::kBytes / 2 + line) * 64);
      }
    } else {
      for (int64_t line = 0; line < tile.prefetch_lines; ++line, next += 64) prefetch(next);
    }
    multiply_pair<Weights, kRows, kVectors>(tile, i, first_vector, acc);
  }
  if (i < tile.count) {
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = broadcast(tile.in + r * tile.in_stride + i);
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = fma(Weights::last(tile.chunk, i, first_vector + v), x, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int lane = (first_vector + v) * kLanes;
      const Lanes before = load(tile.before + r * kPanel + lane);
      float* after = tile.after + r * tile.after_stride + lane;
      if constexpr (Weights::kRounded) {
        store(after, add_flushing(before, acc[r][v]));
      } else {
        store(after, add(before, acc[r][v]));
      }
    }
  }
}

template <typename Weights, int kRows>
OUTRIDER_NOINLINE void run_rows(const ChunkTile& tile) {
  constexpr int kVectors = vectors_for_rows(kRows);
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    run_tile<Weights, kRows, kVectors>(tile, first);
  }
}

// Calls the tile code made for exactly this many rows.
template <typename Weights, int kRows>
OUTRIDER_INLINE void run_row_group(const ChunkTile& tile, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_row_group<Weights, kRows - 1>(tile, rows);
  }
  run_rows<Weights, kRows>(tile);
}

template <typename Weights>
OUTRIDER_NOINLINE void linear_panel(const LinearPanel& panel) {
  constexpr int64_t kChunkBytes = kInnerChunk * kPanel * Weights::kBytes;
  for (int64_t i = 0; i < panel.rows * kPanel; i += kLanes) store(panel.totals + i, zero());
  const int64_t num_groups = (panel.rows + kMostRows - 1) / kMostRows;
  ChunkTile tile{};
  tile.in_stride = panel.in_stride;
  constexpr int64_t kPairLines = kPanel * 2 * Weights::kBytes / 64;
  const int64_t share = num_groups == 1 ? 0 : (kPairLines + num_groups - 1) / num_groups;
  for (int64_t begin = 0; begin < panel.n_in; begin += kInnerChunk) {
    tile.chunk = static_cast<const char*>(panel.weights) + begin * kPanel * Weights::kBytes;
    tile.count = panel.n_in - begin < kInnerChunk ? panel.n_in - begin : kInnerChunk;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t row = panel.rows * group / num_groups;
      tile.in = static_cast<const float*>(panel.in) + row * panel.in_stride +
                begin / kInnerChunk * panel.chunk_stride;
      const bool finishes = panel.out != nullptr && begin + tile.count == panel.n_in;
      tile.before = panel.totals + row * kPanel;
      tile.after_stride = finishes ? panel.out_stride : kPanel;
      tile.after = (finishes ? panel.out : panel.totals) + row * tile.after_stride;
      tile.prefetch_lines = group * share < kPairLines ? share : 0;
      tile.prefetch_from = tile.chunk + kChunkBytes + group * share * (kInnerChunk / 2) * 64;
      run_row_group<Weights, kMostRows>(tile, panel.rows * (group + 1) / num_groups - row);
    }
  }
}

// By fma, for a CPU without a bf16 dot. Rounded rows are floats here.
void rounded_panel(const LinearPanel& panel) {
  const unsigned before = begin_flushing();
  linear_panel<RoundedBf16Weights>(panel);
  end_flushing(before);
}

void round_row(void* out, const float* in, int64_t count) {
  float* rounded = static_cast<float*>(out);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(rounded + i, round_to_bf16(load(in + i)));
  const int rest = static_cast<int>(count - i);
  if (rest == 0) return;
  store_partial(rounded + i, round_to_bf16(load_partial(in + i, rest)), rest + rest % 2);
}

int64_t fma_peak(int64_t rounds, float* sink) {
  constexpr int kChains = kFewRegisters ? 6 : 24;
  Lanes acc[kChains];
  for (Lanes& chain : acc) chain = constant(*sink);
  const Lanes a = constant(0.5f);
  const Lanes b = constant(0.25f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = fma(acc[c], a, b);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = add(acc[0], acc[c]);
  *sink = fold_add(acc[0]);
  return rounds * kChains * kLanes * 2;
}

constexpr RoundedProducts kRoundedByFma = {
    .element_bytes = sizeof(float),
    .round_row = round_row,
    .panel = rounded_panel,
    .peak = fma_peak,
};
