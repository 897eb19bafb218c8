// The quantised product of one panel, written once over integer vectors. Included by each
// kernels_int8*.cpp inside its own namespace, after it has defined Ints, Floats, Quad, Spread and
// the primitives; never included elsewhere. A tile keeps the integer sums of some rows and vectors
// of outputs in registers through a stretch, then adds them, scaled, to the totals in memory.
#pragma once

constexpr int kIntVectors = 64 / kInts;
constexpr int64_t kQuadBytes = 64 * 4;  // four 8-bit or eight 4-bit inputs of a panel
constexpr int64_t line_bytes(int bits) { return bits == 6 ? kQuadBytes / 4 * 6 : kQuadBytes; }
// Measured: how far the first row group prefetches ahead of itself, where it alone does (with up to
// so many groups), and how far beyond the stretch several that share the work.
constexpr int64_t read_ahead(int bits) { return bits == 4 ? 12288 : 8192; }
constexpr int64_t groups_of_one_reader(int bits) { return bits == 4 ? 2 : 1; }
constexpr int64_t kReadAheadShared = 4096;

// Prefetch: a single row group reads a little ahead of itself; of several, which find this stretch
// in the cache, each fetches a part of what follows, spread evenly over its work. One step of the
// loop always asks for as much as it reads: where a group's part is less, for some of it twice,
// which costs less than a branch.
struct StretchTile {
  const char* scales;
  const char* weights;
  const char* values;  // of the tile's first row
  const float* row_scales;
  const int32_t* minus_sums;
  int64_t padded;
  const CodeTable* codes;
  const float* totals;  // [rows, 64]
  float* to;            // where they go with this stretch added: totals, or the product
  int64_t to_stride;
  const char* prefetch_from;
  int64_t prefetch_stride;  // bytes per step of the loop
};

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
  constexpr int kInputs = kBits == 8 ? 4 : 8;
  constexpr int64_t kLine = line_bytes(kBits);
  const char* line = tile.weights;
  const char* values = tile.values;
  const char* ahead = tile.prefetch_from + first_vector * kInts * (kLine / 64);
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

template <QuantKind kKind, int kRows, int kVectors>
OUTRIDER_INLINE void run_tile(const StretchTile& tile, int first_vector) {
  Ints acc[kRows][kVectors];
  start_sums<kKind>(tile, first_vector, acc);
  add_products<kKind, true>(tile, first_vector, acc);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Floats row_scale = all_floats(tile.row_scales[r]);
    const Floats row_sum = all_floats(tile.row_scales[r] * static_cast<float>(-tile.minus_sums[r]));
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int at = (first_vector + v) * kInts;
      const Floats scale = mul(load(reinterpret_cast<const float*>(tile.scales) + at), row_scale);
      Floats total = load(tile.totals + r * 64 + at);
      if constexpr (has_offsets(kKind)) {
        const float* offsets = reinterpret_cast<const float*>(tile.scales) + 64;
        total = fma(load(offsets + at), row_sum, total);
      }
      store(tile.to + r * tile.to_stride + at, fma(to_floats(acc[r][v]), scale, total));
    }
  }
}

template <QuantKind kKind, int kRows>
OUTRIDER_NOINLINE void run_rows(const StretchTile& tile) {
  constexpr int kVectors = int_vectors_for_rows(kRows);
  for (int first = 0; first < kIntVectors; first += kVectors) {
    run_tile<kKind, kRows, kVectors>(tile, first);
  }
}

// Calls the tile code made for exactly this many rows.
template <QuantKind kKind, int kRows>
OUTRIDER_INLINE void run_row_group(const StretchTile& tile, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_row_group<kKind, kRows - 1>(tile, rows);
  }
  run_rows<kKind, kRows>(tile);
}

// share: of each step's four lines, a group's.
template <int kBits>
OUTRIDER_INLINE void aim_prefetch(StretchTile& tile,
                                  int64_t group,
                                  int64_t num_groups,
                                  int64_t share) {
  if (num_groups <= groups_of_one_reader(kBits)) {
    tile.prefetch_from = tile.weights + (group == 0 ? read_ahead(kBits) : 0);
    tile.prefetch_stride = group == 0 ? line_bytes(kBits) : 0;
    return;
  }
  const int64_t weight_bytes = tile.padded * (64 * kBits / 8);
  tile.prefetch_from =
      tile.weights + weight_bytes + kReadAheadShared + group * share * (weight_bytes / 4);
  tile.prefetch_stride = group * share < 4 ? share * (line_bytes(kBits) / 4) : 0;
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

// Where floats of the stretch's scales stand: in the panel, or made in `widened`.
template <QuantKind kKind>
OUTRIDER_INLINE const char* scales_of(const QuantPanel& panel,
                                      const QuantStretch& stretch,
                                      float* widened) {
  const char* header = panel.panel + stretch.header;
  if (panel.scales == PanelScales::kFloat32) return header;
  const char* supers = panel.panel + stretch.supers;
  for (int i = 0; i < 64; i += kInts) {
    store(widened + i, scale_at(panel, supers, header, i));
    if constexpr (has_offsets(kKind)) {
      store(widened + 64 + i, scale_at(panel, supers + 128, header + offsets_at(panel), i));
    }
  }
  return reinterpret_cast<const char*>(widened);
}

// All stretches of a single row group: the totals of few rows stay in registers. Of 4 bits the
// CPU's own prefetching brings more: 0.94 and 0.74 of a slow and a fast plain read against 0.90 and
// 0.63 on a Zen 4, of 8 bits less.
template <QuantKind kKind, int kRows>
OUTRIDER_NOINLINE void run_single_group(const QuantPanel& panel) {
  constexpr bool kPrefetches = bits_of(kKind) == 8;
  const QuantActivations& in = panel.activations;
  Floats totals[kRows][kIntVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kIntVectors; ++v) totals[r][v] = all_floats(0);
  }
  StretchTile tile{};
  tile.codes = panel.codes;
  tile.prefetch_stride = line_bytes(bits_of(kKind));
  for (int64_t s = panel.first_stretch; s < panel.end_stretch; ++s) {
    const QuantStretch& stretch = panel.stretches[s];
    const char* const header = panel.panel + stretch.header;
    const char* const supers = panel.panel + stretch.supers;
    for (int64_t at = 0; kPrefetches && at < panel.header_bytes; at += 64) {
      prefetch(header + read_ahead(8) + at);
    }
    tile.scales = header;
    tile.weights = panel.panel + stretch.weights;
    tile.padded = stretch.padded;
    tile.prefetch_from = tile.weights + read_ahead(8);
    tile.values =
        in.values + (stretch.before * in.rows + panel.first_row * stretch.padded) * kValueBytes;
    tile.row_scales = in.scales + s * in.rows + panel.first_row;
    tile.minus_sums = in.minus_sums + s * in.rows + panel.first_row;
    Ints acc[kRows][kIntVectors];
    start_sums<kKind>(tile, 0, acc);
    add_products<kKind, kPrefetches>(tile, 0, acc);
#pragma GCC unroll 8
    for (int v = 0; v < kIntVectors; ++v) {
      const Floats scale = scale_at(panel, supers, header, v * kInts);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Floats& total = totals[r][v];
        if constexpr (has_offsets(kKind)) {
          const float row_sum = tile.row_scales[r] * static_cast<float>(-tile.minus_sums[r]);
          const Floats offset =
              scale_at(panel, supers + 128, header + offsets_at(panel), v * kInts);
          total = fma(offset, all_floats(row_sum), total);
        }
        total = fma(to_floats(acc[r][v]), mul(scale, all_floats(tile.row_scales[r])), total);
      }
    }
  }
  float* const to = panel.out != nullptr ? panel.out : panel.totals;
  const int64_t to_stride = panel.out != nullptr ? panel.out_stride : 64;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kIntVectors; ++v) store(to + r * to_stride + v * kInts, totals[r][v]);
  }
}

// True if there was a single row group that takes whole panels at a time.
template <QuantKind kKind, int kRows>
OUTRIDER_INLINE bool run_single_groups(const QuantPanel& panel) {
  if constexpr (kRows > 1) {
    if (panel.num_rows < kRows) return run_single_groups<kKind, kRows - 1>(panel);
  }
  if constexpr (int_vectors_for_rows(kRows) == kIntVectors) {
    if (panel.num_rows != kRows) return false;
    run_single_group<kKind, kRows>(panel);
    return true;
  }
  return false;
}

template <QuantKind kKind>
void quant_panel(const QuantPanel& panel) {
  if (run_single_groups<kKind, kMostIntRows>(panel)) return;
  const QuantActivations& in = panel.activations;
  for (int64_t i = 0; i < panel.num_rows * 64; i += kInts) store(panel.totals + i, all_floats(0));
  const int64_t num_groups = (panel.num_rows + kMostIntRows - 1) / kMostIntRows;
  // Divisions here, not at every stretch: of short ones they are a tenth of the work.
  const int64_t group_rows = num_groups == 0 ? 0 : panel.num_rows / num_groups;
  const int64_t groups_with_one_more = panel.num_rows - group_rows * num_groups;
  const int64_t share = num_groups == 0 ? 0 : (4 + num_groups - 1) / num_groups;
  constexpr int kBits = bits_of(kKind);
  const int64_t header_ahead =
      num_groups <= groups_of_one_reader(kBits) ? read_ahead(kBits) : kReadAheadShared;
  alignas(64) float widened[128];
  StretchTile tile{};
  tile.codes = panel.codes;
  for (int64_t s = panel.first_stretch; s < panel.end_stretch; ++s) {
    const QuantStretch& stretch = panel.stretches[s];
    tile.scales = scales_of<kKind>(panel, stretch, widened);
    for (int64_t at = 0; at < panel.header_bytes; at += 64) {
      prefetch(panel.panel + stretch.header + header_ahead + at);
    }
    tile.weights = panel.panel + stretch.weights;
    tile.padded = stretch.padded;
    const char* values = in.values + stretch.before * in.rows * kValueBytes;
    int64_t from = 0;
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t rows = group_rows + (group < groups_with_one_more ? 1 : 0);
      const int64_t row = panel.first_row + from;
      tile.values = values + row * stretch.padded * kValueBytes;
      tile.row_scales = in.scales + s * in.rows + row;
      tile.minus_sums = in.minus_sums + s * in.rows + row;
      tile.totals = panel.totals + from * 64;
      tile.to = panel.totals + from * 64;
      tile.to_stride = 64;
      if (panel.out != nullptr && s + 1 == panel.end_stretch) {
        tile.to = panel.out + from * panel.out_stride;
        tile.to_stride = panel.out_stride;
      }
      aim_prefetch<kBits>(tile, group, num_groups, share);
      run_row_group<kKind, kMostIntRows>(tile, rows);
      from += rows;
    }
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
  const float largest = float_of_bits(bits);
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
  to.scales[at] = !finite ? float_of_bits(0x7FC00000u) : zeros ? 0.0f : largest / 127.0f;
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
