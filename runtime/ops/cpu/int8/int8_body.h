// The quantised product of one panel, written once over integer vectors. Included by each
// kernels_int8*.cpp inside its own namespace, after it has defined Ints, Floats, Quad, Spread and
// the primitives; never included elsewhere. A tile keeps the integer sums of some rows and vectors
// of outputs in registers through a stretch, then adds them, scaled, to its totals.
#pragma once

constexpr int kIntVectors = 64 / kInts;
constexpr int64_t kQuadBytes = 64 * 4;  // four 8-bit or eight 4-bit inputs of a panel
constexpr int64_t line_bytes(int bits) { return bits == 6 ? kQuadBytes / 4 * 6 : kQuadBytes; }
constexpr int64_t inputs_of_line(int bits) { return bits == 8 ? 4 : 8; }
constexpr int64_t weight_bytes(int bits, int64_t inputs) {
  return inputs / inputs_of_line(bits) * line_bytes(bits);
}
// Weights that several row groups share, in 32 KB of cache beside those prefetched meanwhile, the
// floats of their scales and the rows' values. Half or twice as many were some percent slower.
constexpr int64_t kChunkBytes = 8192;
constexpr int64_t kMostChunkStretches = 16;  // so 8 KB of scales and offsets at most
// Measured: how far a single row group prefetches ahead of itself, of 8 bits.
constexpr int64_t kReadAhead = 8192;

struct StretchTile {
  const char* scales;
  const char* weights;
  const char* values;  // of the tile's first row
  const float* row_scales;
  const int32_t* minus_sums;
  int64_t padded;
  const CodeTable* codes;
  const char* prefetch_from;
  int64_t prefetch_stride;  // bytes per step of the loop
};

// Stretches whose weights stay in the cache while one row group after the other takes them. The
// first group makes floats of the scales and keeps them for the others. Each group prefetches its
// part of what follows, spread evenly over its work. One step of the loop always asks for as much
// as it reads, so several groups ask for the same more than once: a CPU may forget a prefetch, and
// asking just once was slower.
struct Chunk {
  int64_t first;  // stretch
  int64_t end;
  float* scales;  // of each stretch [64], with offsets [2, 64]
  int64_t scales_stride;
  const char* prefetch_from;
  int64_t prefetch_stride;  // bytes per step of the loop
};

// kAlone: there is no other group, and the chunk is all stretches. It prefetches 8 bits only: of 4
// the CPU's own prefetching brings more (on a Zen 4 0.94 and 0.74 of a slow and a fast plain read
// against 0.90 and 0.63).
enum class GroupRole { kAlone, kFirst, kLater };

constexpr int bits_of(QuantKind kind) {
  if (kind == QuantKind::k8 || kind == QuantKind::k8Offsets) return 8;
  return kind == QuantKind::k6 || kind == QuantKind::k6Offsets ? 6 : 4;
}
constexpr bool has_offsets(QuantKind kind) {
  return kind == QuantKind::k8Offsets || kind == QuantKind::k6Offsets ||
         kind == QuantKind::k4Offsets;
}
// Where zero is stored, but for k4Zeros.
template <QuantKind kKind>
OUTRIDER_INLINE int32_t zero_of(const StretchTile& tile) {
  if constexpr (kKind == QuantKind::k4Codes) return tile.codes->zero;
  return bits_of(kKind) == 4 ? 8 : 1 << (bits_of(kKind) - 1);
}

// Eight inputs of 4 or 6 bits of a vector of outputs.
struct Eight {
  Bytes low;
  Bytes high;  // of 6 bits: those of some more outputs
  int shift;   // in `high`
};
// output: of the panel, the first vector's. Who has few rows waits for memory: then every line is
// loaded once, front to back (6 bits on a Zen 4: 0.91 of a plain read, 0.68 without).
template <int kBits, bool kOnce, int kVectors>
OUTRIDER_INLINE void load_eights(const char* weights, int output, Eight (&eights)[kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    eights[v].low = load_bytes(weights + (output + v * kInts) * 4);
    if constexpr (kOnce) keep_in_register(eights[v].low);
  }
  if constexpr (kBits != 6) return;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int o = output + v * kInts;
    eights[v].high = load_bytes(weights + kQuadBytes + (o / 32 * 16 + o % 16) * 4);
    if constexpr (kOnce) keep_in_register(eights[v].high);
    eights[v].shift = o % 32 / 16 * 4;
  }
}

// The first four of them, or the others.
template <QuantKind kKind>
OUTRIDER_INLINE Quad half_quad(const StretchTile& tile, const Eight& eight, bool second) {
  Bytes integers = second ? high_halves(eight.low) : low_halves(eight.low);
  if constexpr (kKind == QuantKind::k4Codes) integers = bytes_at(tile.codes->integers, integers);
  if constexpr (bits_of(kKind) == 6)
    integers = or_bytes(integers, two_bits(eight.high, eight.shift + (second ? 2 : 0)));
  return quad_of(integers);
}

template <int kRows, int kVectors>
OUTRIDER_INLINE void multiply_quad(const Quad (&w)[kVectors],
                                   const char* values,
                                   int64_t row_bytes,
                                   Ints (&acc)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Spread x = spread(values + r * row_bytes);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = dot(acc[r][v], w[v], x);
  }
}

template <QuantKind kKind, int kRows, int kVectors>
OUTRIDER_INLINE void start_sums(const StretchTile& tile,
                                int first_vector,
                                Ints (&acc)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kKind == QuantKind::k4Offsets) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][v] = all_ints(0);
    } else if constexpr (kKind == QuantKind::k4Zeros) {
      const Ints zeros = load_zeros(tile.scales + kQuadBytes + (first_vector + v) * kInts);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[r][v] = mul_ints(zeros, all_ints(tile.minus_sums[r]));
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        acc[r][v] = all_ints(tile.minus_sums[r] * zero_of<kKind>(tile));
      }
    }
  }
}

template <QuantKind kKind, bool kPrefetches, int kRows, int kVectors>
OUTRIDER_INLINE void add_products(const StretchTile& tile,
                                  int first_vector,
                                  Ints (&acc)[kRows][kVectors]) {
  const int64_t row_bytes = tile.padded * kValueBytes;
  constexpr int kBits = bits_of(kKind);
  constexpr int64_t kInputs = inputs_of_line(kBits);
  constexpr int64_t kLine = line_bytes(kBits);
  const char* line = tile.weights;
  const char* values = tile.values;
  const char* ahead = tile.prefetch_from;
  const char* end = line + tile.padded / kInputs * kLine;
  for (; line != end; line += kLine) {
    if constexpr (kPrefetches) {
#pragma GCC unroll 6
      for (int at = 0; at < kVectors * kInts * (kLine / 64); at += 64) prefetch(ahead + at);
      ahead += tile.prefetch_stride;
    }
    Quad w[kVectors];
    if constexpr (kBits == 8) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        w[v] = quad_of(load_bytes(line + (first_vector + v) * kInts * 4));
      multiply_quad<kRows, kVectors>(w, values, row_bytes, acc);
    } else {
      Eight eight[kVectors];
      load_eights<kBits, kRows <= 2>(line, first_vector * kInts, eight);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) w[v] = half_quad<kKind>(tile, eight[v], false);
      multiply_quad<kRows, kVectors>(w, values, row_bytes, acc);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) w[v] = half_quad<kKind>(tile, eight[v], true);
      multiply_quad<kRows, kVectors>(w, values + 4 * kValueBytes, row_bytes, acc);
    }
    values += kInputs * kValueBytes;
  }
}

// Scales i .. i + kInts - 1 of the 64 that begin at `at`, as floats: exact. Bytes are times the
// float16 of their super-block, powers of two are kept as their exponents.
OUTRIDER_INLINE Floats scale_at(const QuantPanel& panel,
                                const char* supers,
                                const char* at,
                                int i) {
  if (panel.scales == PanelScales::kFloat32) return load(reinterpret_cast<const float*>(at) + i);
  if (panel.scales == PanelScales::kFloat16) return load_halves(at + 2 * i);
  if (panel.scales == PanelScales::kPowers)
    return floats_of_bits(mul_ints(load_zeros(at + i), all_ints(1 << 23)));
  return mul(load_halves(supers + 2 * i), to_floats(load_signed_bytes(at + i)));
}

// From a group's scales to its offsets, in bytes.
OUTRIDER_INLINE int64_t offsets_at(const QuantPanel& panel) {
  if (panel.scales == PanelScales::kFloat32) return 256;
  return panel.scales == PanelScales::kSuperBlocks ? 64 : 128;
}

// at: the first output.
template <GroupRole kRole>
OUTRIDER_INLINE Floats chunk_scale(
    const QuantPanel& panel, const QuantStretch& stretch, float* kept, bool offset, int at) {
  kept += (offset ? 64 : 0) + at;
  if constexpr (kRole == GroupRole::kLater) return load(kept);
  const Floats scale = scale_at(panel,
                                panel.panel + stretch.supers + (offset ? 128 : 0),
                                panel.panel + stretch.header + (offset ? offsets_at(panel) : 0),
                                at);
  if constexpr (kRole == GroupRole::kFirst) store(kept, scale);
  return scale;
}

// Adds a stretch's sums, scaled, to the totals.
template <QuantKind kKind, GroupRole kRole, int kRows, int kVectors>
OUTRIDER_INLINE void add_stretch(const QuantPanel& panel,
                                 const QuantStretch& stretch,
                                 const StretchTile& tile,
                                 float* kept_scales,
                                 int first_vector,
                                 Floats (&totals)[kRows][kVectors]) {
  constexpr bool kPrefetches = kRole != GroupRole::kAlone || bits_of(kKind) == 8;
  Ints acc[kRows][kVectors];
  start_sums<kKind>(tile, first_vector, acc);
  add_products<kKind, kPrefetches>(tile, first_vector, acc);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int at = (first_vector + v) * kInts;
    const Floats scale = chunk_scale<kRole>(panel, stretch, kept_scales, false, at);
    Floats offset = scale;
    if constexpr (has_offsets(kKind))
      offset = chunk_scale<kRole>(panel, stretch, kept_scales, true, at);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Floats& total = totals[r][v];
      if constexpr (has_offsets(kKind)) {
        const float row_sum = tile.row_scales[r] * static_cast<float>(-tile.minus_sums[r]);
        total = fma(offset, all_floats(row_sum), total);
      }
      total = fma(to_floats(acc[r][v]), mul(scale, all_floats(tile.row_scales[r])), total);
    }
  }
}

// first_row: of the group, within the call. The compiler keeps the totals in the registers that the
// sums leave, the others on the stack.
template <QuantKind kKind, GroupRole kRole, int kRows, int kVectors>
OUTRIDER_INLINE void run_tile(const QuantPanel& panel,
                              Chunk& chunk,
                              int64_t first_row,
                              int first_vector) {
  const QuantActivations& in = panel.activations;
  const int64_t row = panel.first_row + first_row;
  const int first_out = first_vector * kInts;
  float* const sums = panel.totals + first_row * 64 + first_out;
  Floats totals[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] =
          chunk.first == panel.first_stretch ? all_floats(0) : load(sums + r * 64 + v * kInts);
    }
  }
  StretchTile tile{};
  tile.codes = panel.codes;
  tile.prefetch_stride = chunk.prefetch_stride;
  float* kept_scales = chunk.scales;
  for (int64_t s = chunk.first; s < chunk.end; ++s) {
    const QuantStretch& stretch = panel.stretches[s];
    tile.scales = panel.panel + stretch.header;
    tile.weights = panel.panel + stretch.weights;
    tile.padded = stretch.padded;
    tile.values = in.values + (stretch.before * in.rows + row * stretch.padded) * kValueBytes;
    tile.row_scales = in.scales + s * in.rows + row;
    tile.minus_sums = in.minus_sums + s * in.rows + row;
    if constexpr (kRole == GroupRole::kAlone) {
      if constexpr (bits_of(kKind) == 8) {
        for (int64_t at = 0; at < panel.header_bytes; at += 64)
          prefetch(tile.scales + kReadAhead + at);
      }
      chunk.prefetch_from = tile.weights + kReadAhead;
    }
    tile.prefetch_from = chunk.prefetch_from;
    add_stretch<kKind, kRole>(panel, stretch, tile, kept_scales, first_vector, totals);
    chunk.prefetch_from += stretch.padded / inputs_of_line(bits_of(kKind)) * tile.prefetch_stride;
    kept_scales += chunk.scales_stride;
  }
  const bool is_product = panel.out != nullptr && chunk.end == panel.end_stretch;
  float* const to = is_product ? panel.out + first_row * panel.out_stride + first_out : sums;
  const int64_t to_stride = is_product ? panel.out_stride : 64;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(to + r * to_stride + v * kInts, totals[r][v]);
  }
}

template <QuantKind kKind, GroupRole kRole, int kRows>
OUTRIDER_NOINLINE void run_rows(const QuantPanel& panel, Chunk& chunk, int64_t first_row) {
  constexpr int kVectors = int_vectors_for_rows(kRows);
  for (int first = 0; first < kIntVectors; first += kVectors) {
    run_tile<kKind, kRole, kRows, kVectors>(panel, chunk, first_row, first);
  }
}

// Rows of a single group that takes whole panels at a time.
constexpr int most_rows_alone() {
  int rows = 0;
  while (rows < kMostIntRows && int_vectors_for_rows(rows + 1) == kIntVectors) ++rows;
  return rows;
}
// Of more rows, the smaller of two groups has at least half.
constexpr int fewest_rows(GroupRole role) {
  return role == GroupRole::kAlone || most_rows_alone() == 0 ? 1 : (most_rows_alone() + 1) / 2;
}

// Calls the tile code made for exactly this many rows.
template <QuantKind kKind, GroupRole kRole, int kRows>
OUTRIDER_INLINE void run_row_group(const QuantPanel& panel,
                                   Chunk& chunk,
                                   int64_t first_row,
                                   int64_t rows) {
  if constexpr (kRows > fewest_rows(kRole)) {
    if (rows < kRows) return run_row_group<kKind, kRole, kRows - 1>(panel, chunk, first_row, rows);
  }
  run_rows<kKind, kRole, kRows>(panel, chunk, first_row);
}

// num_tiles: how many take it, of all row groups.
template <QuantKind kKind>
OUTRIDER_INLINE Chunk
next_chunk(const QuantPanel& panel, int64_t first, int64_t num_tiles, float* scales) {
  constexpr int kBits = bits_of(kKind);
  Chunk chunk{first, first, scales, has_offsets(kKind) ? 128 : 64, nullptr, 0};
  int64_t inputs = 0;
  do {
    inputs += panel.stretches[chunk.end++].padded;
  } while (chunk.end < panel.end_stretch && chunk.end - first < kMostChunkStretches &&
           weight_bytes(kBits, inputs + panel.stretches[chunk.end].padded) <= kChunkBytes);
  const QuantStretch& last = panel.stretches[chunk.end - 1];
  const int64_t end = last.weights + weight_bytes(kBits, last.padded);
  const int64_t steps = inputs / inputs_of_line(kBits) * num_tiles;
  chunk.prefetch_from = panel.panel + end;
  chunk.prefetch_stride = (end - panel.stretches[first].header + steps - 1) / steps;
  return chunk;
}

template <QuantKind kKind>
void quant_panel(const QuantPanel& panel) {
  alignas(64) float scales[kMostChunkStretches * 128];
  if (panel.first_stretch == panel.end_stretch) {
    for (int64_t i = 0; i < panel.num_rows * 64; i += kInts) store(panel.totals + i, all_floats(0));
    return;
  }
  constexpr int kMostAlone = most_rows_alone();
  if constexpr (kMostAlone > 0) {
    if (panel.num_rows <= kMostAlone) {
      Chunk all{panel.first_stretch, panel.end_stretch, scales, 0, nullptr, 0};
      all.prefetch_stride = line_bytes(bits_of(kKind));
      return run_row_group<kKind, GroupRole::kAlone, kMostAlone>(panel, all, 0, panel.num_rows);
    }
  }
  const int64_t fewest = (panel.num_rows + kMostIntRows - 1) / kMostIntRows;
  const int64_t wanted = panel.num_rows / kIntRowsOfGroup;
  const int64_t num_groups = wanted > fewest ? wanted : fewest;
  const int64_t group_rows = panel.num_rows / num_groups;
  const int64_t groups_with_one_more = panel.num_rows % num_groups;
  const int64_t num_tiles =
      num_groups * (kIntVectors / int_vectors_for_rows(static_cast<int>(group_rows)));
  for (int64_t first = panel.first_stretch; first < panel.end_stretch;) {
    Chunk chunk = next_chunk<kKind>(panel, first, num_tiles, scales);
    int64_t first_row = 0;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t rows = group_rows + (group < groups_with_one_more ? 1 : 0);
      if (group == 0) {
        run_row_group<kKind, GroupRole::kFirst, kMostIntRows>(panel, chunk, 0, rows);
      } else {
        run_row_group<kKind, GroupRole::kLater, kMostIntRows>(panel, chunk, first_row, rows);
      }
      first_row += rows;
    }
    first = chunk.end;
  }
}

// x must be padded to whole vectors; returns the bits of the largest |x|.
OUTRIDER_INLINE uint32_t largest_bits(const float* x, int64_t padded) {
  Ints largest = all_ints(0);
  for (int64_t i = 0; i < padded; i += kInts) largest = max_magnitude(largest, load(x + i));
  return static_cast<uint32_t>(fold_max_ints(largest));
}

// Largest |x| below this: all zeros. 127 divided by it is still a float.
constexpr float kSmallestActivation = 0x1p-120f;

void quantize_stretch(const float* x,
                      const QuantStretch& stretch,
                      int64_t index,
                      const QuantActivations& to,
                      int64_t row) {
  constexpr int64_t kMost = 128;
  const int64_t whole = (stretch.padded + kInts - 1) / kInts * kInts;
  alignas(64) float copy[kMost];
  alignas(64) char values[kMost * kValueBytes];
  const bool ragged = stretch.count != whole;
  if (ragged) {
    for (int64_t i = 0; i < whole; ++i) copy[i] = i < stretch.count ? x[i] : 0.0f;
    x = copy;
  }
  const uint32_t bits = largest_bits(x, whole);
  const float largest = __builtin_bit_cast(float, bits);
  const bool finite = bits < 0x7F800000u;
  const bool zeros = !finite || largest < kSmallestActivation;
  const float per_unit = zeros ? 0.0f : 127.0f / largest;
  char* out = to.values + (stretch.before * to.rows + row * stretch.padded) * kValueBytes;
  char* write = ragged ? values : out;
  Ints sum = all_ints(0);
  for (int64_t i = 0; i < whole; i += kInts) {
    // NaN times nothing is NaN: where there is one, all are set to zero.
    const Ints rounded =
        zeros ? all_ints(0) : round_to_ints(mul(load(x + i), all_floats(per_unit)));
    sum = add_ints(sum, rounded);
    store_values(write + i * kValueBytes, rounded);
  }
  if (ragged) {
    for (int64_t i = 0; i < stretch.padded * kValueBytes; ++i) out[i] = values[i];
  }
  const int64_t at = index * to.rows + row;
  to.scales[at] = !finite ? __builtin_nanf("") : zeros ? 0.0f : largest / 127.0f;
  to.minus_sums[at] = -fold_add_ints(sum);
}

constexpr QuantKernels kernels_named(const char* name) {
  return {name,
          kValueBytes,
          quantize_stretch,
          {quant_panel<QuantKind::k8>,
           quant_panel<QuantKind::k6>,
           quant_panel<QuantKind::k4>,
           quant_panel<QuantKind::k4Zeros>,
           quant_panel<QuantKind::k4Codes>,
           quant_panel<QuantKind::k8Offsets>,
           quant_panel<QuantKind::k6Offsets>,
           quant_panel<QuantKind::k4Offsets>}};
}
