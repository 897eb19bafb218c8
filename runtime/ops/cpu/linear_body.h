// The matrix product of one panel, written once over 16-lane vectors. Included by each
// kernels_<isa>.cpp inside its own namespace, after it has defined Lanes and the primitives; never
// included elsewhere. Invariant: an output's sum is, per chunk of kInnerChunk elements, one fma
// chain in ascending order; tiles of rows and outputs only decide which chains run side by side, so
// bits do not depend on them.

constexpr int kPanelVectors = static_cast<int>(kPanel) / kLanes;

struct Bf16Weights {
  static constexpr int64_t kBytes = 2;
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

struct F16Weights {
  static constexpr int64_t kBytes = 2;
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
  OUTRIDER_INLINE static Lanes last(const char* chunk, int64_t i, int vector) {
    return load(reinterpret_cast<const float*>(chunk) + i * kPanel + vector * kLanes);
  }
  OUTRIDER_INLINE static void pair(
      const char* chunk, int64_t i, int vector, Lanes& low, Lanes& high) {
    low = last(chunk, i, vector);
    high = last(chunk, i + 1, vector);
  }
};

// One row group's way through one chunk. Prefetch: with several row groups each fetches its turn of
// the next chunk while it computes on this one, which lies in the cache already; a single group
// fetches a little ahead.
struct ChunkTile {
  const char* chunk;
  const float* in;
  int64_t in_stride;
  int64_t count;
  float* totals;
  int64_t prefetch_ahead;
  int64_t prefetch_turn;
  int64_t num_turns;
};

// Adds elements i and i + 1 to every chain of the tile, i first.
template <typename Weights, int kRows, int kVectors>
OUTRIDER_INLINE void multiply_pair(const ChunkTile& tile,
                                   int64_t i,
                                   int first_vector,
                                   Lanes (&acc)[kRows][kVectors]) {
  const float* in = tile.in + i;
  if constexpr (kFewRegisters) {  // one vector's weights at a time
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Lanes low;
      Lanes high;
      Weights::pair(tile.chunk, i, first_vector + v, low, high);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = fma(low, broadcast(in + r * tile.in_stride), acc[r][v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = fma(high, broadcast(in + r * tile.in_stride + 1), acc[r][v]);
      }
    }
  } else {
    Lanes low[kVectors];
    Lanes high[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Weights::pair(tile.chunk, i, first_vector + v, low[v], high[v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = broadcast(in + r * tile.in_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(low[v], x, acc[r][v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = broadcast(in + r * tile.in_stride + 1);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(high[v], x, acc[r][v]);
    }
  }
}

template <typename Weights, int kRows, int kVectors>
OUTRIDER_INLINE void run_tile(const ChunkTile& tile, int first_vector) {
  Lanes acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  int64_t turn = tile.prefetch_turn;
  int64_t i = 0;
  for (; i + 1 < tile.count; i += 2) {
    if (turn == 0) {
      const char* ahead = tile.chunk + i * kPanel * Weights::kBytes + tile.prefetch_ahead;
#pragma GCC unroll 8
      for (int line = 0; line < kVectors * Weights::kBytes / 2; ++line) {
        prefetch(ahead + (first_vector * Weights::kBytes / 2 + line) * 64);
      }
      turn = tile.num_turns;
    }
    --turn;
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
      float* total = tile.totals + r * kPanel + (first_vector + v) * kLanes;
      store(total, add(load(total), acc[r][v]));
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
void linear_panel(const LinearPanel& panel) {
  constexpr int64_t kChunkBytes = kInnerChunk * kPanel * Weights::kBytes;
  constexpr int64_t kShortAhead = 8192;
  for (int64_t i = 0; i < panel.rows * kPanel; i += kLanes) store(panel.totals + i, zero());
  const int64_t num_groups = (panel.rows + kMostRows - 1) / kMostRows;
  ChunkTile tile{};
  tile.in_stride = panel.in_stride;
  tile.num_turns = num_groups;
  tile.prefetch_ahead = num_groups == 1 ? kShortAhead : kChunkBytes;
  for (int64_t begin = 0; begin < panel.n_in; begin += kInnerChunk) {
    tile.chunk = static_cast<const char*>(panel.weights) + begin * kPanel * Weights::kBytes;
    tile.count = panel.n_in - begin < kInnerChunk ? panel.n_in - begin : kInnerChunk;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t row = panel.rows * group / num_groups;
      tile.in = panel.in + row * panel.in_stride + begin;
      tile.totals = panel.totals + row * kPanel;
      tile.prefetch_turn = group;
      run_row_group<Weights, kMostRows>(tile, panel.rows * (group + 1) / num_groups - row);
    }
  }
}
