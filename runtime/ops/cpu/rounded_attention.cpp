// See rounded_attention.h.
#include "runtime/ops/cpu/rounded_attention.h"

#include <algorithm>
#include <cmath>

namespace outrider::ops::cpu {
namespace {

// Queries at once: their scores and weights stay in the second cache. A multiple of the products'
// 6 rows.
constexpr int64_t kBlockQueries = 48;

int64_t dim_panels(int64_t head_dim) { return (head_dim + kPanel - 1) / kPanel; }
// [max, sum, value sums], these in whole panels.
int64_t partial_stride(int64_t head_dim) { return 2 + dim_panels(head_dim) * kPanel; }

// Slots of whole vectors: [low, high).
int64_t low_slot(const AttentionTile& tile) { return tile.first / kLanes * kLanes; }
int64_t high_slot(const AttentionTile& tile) { return (tile.last + kLanes - 1) / kLanes * kLanes; }

struct Scratch {
  uint32_t* keys;    // [panels of slots][head_dim / 2][kPanel] pairs of a slot's numbers
  uint32_t* values;  // [panels of dims][slots / 2][kPanel] pairs of a dim's numbers
  float* scores;     // [kBlockQueries, kPositionChunk]
  float* totals;     // [kBlockQueries, kPanel]
  float* partials;   // [kBlockQueries, partial_stride]
  std::byte* weights;
  explicit Scratch(const AttentionTile& tile)
      : keys(reinterpret_cast<uint32_t*>(tile.scratch)),
        values(keys + kPositionChunk / 2 * tile.head_dim),
        scores(reinterpret_cast<float*>(values) +
               dim_panels(tile.head_dim) * kPanel * kPositionChunk / 2),
        totals(scores + kBlockQueries * kPositionChunk),
        partials(totals + kBlockQueries * kPanel),
        weights(reinterpret_cast<std::byte*>(partials +
                                             kBlockQueries * partial_stride(tile.head_dim))) {}
};

const uint16_t* vector_at(const void* vectors, int64_t offset) {
  return static_cast<const uint16_t*>(vectors) + offset;
}

// Asks for a vector that will be read after some thousand cycles.
void fetch(const uint16_t* vector, int64_t head_dim) {
  constexpr int64_t kLine = 64 / sizeof(uint16_t);
  for (int64_t d = 0; d < head_dim; d += kLine) __builtin_prefetch(vector + d, 0, 2);
}

// Columns without a slot get some other slot's key.
void pack_keys(const KernelTable& table, const AttentionTile& tile, uint32_t* panels) {
  for (int64_t slot = low_slot(tile); slot < tile.last; slot += kLanes) {
    const char* keys[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t from = std::clamp(slot + lane, tile.first, tile.last - 1);
      keys[lane] = reinterpret_cast<const char*>(vector_at(tile.keys, tile.offsets[from]));
      fetch(vector_at(tile.values, tile.offsets[from]), tile.head_dim);
      if (!tile.keys_asked_for && from + kLanes < tile.last) {
        fetch(vector_at(tile.keys, tile.offsets[from + kLanes]), tile.head_dim);
      }
    }
    uint32_t* panel = panels + slot / kPanel * kPanel * tile.head_dim / 2 + slot % kPanel;
    table.pack_dwords(panel, keys, tile.head_dim / 2);
  }
}

// Values of slots without a position are zero.
void pack_values(const AttentionTile& tile, uint32_t* panels) {
  static constexpr uint16_t kZeros[kInnerChunk] = {};
  const auto value = [&](int64_t slot) {
    const bool seen = slot >= tile.first && slot < tile.last;
    return seen ? vector_at(tile.values, tile.offsets[slot]) : kZeros;
  };
  for (int64_t slot = low_slot(tile); slot < high_slot(tile); slot += 2) {
    for (int64_t next = slot; next < std::min(slot + 2, tile.num_next); ++next) {
      fetch(vector_at(tile.keys, tile.next_offsets[next]), tile.head_dim);
    }
    const uint16_t* const even = value(slot);
    const uint16_t* const odd = value(slot + 1);
    uint32_t* const pair = panels + slot * kPanel / 2;
    for (int64_t dim = 0; dim < tile.head_dim; dim += kRoundedDims) {
      uint32_t* const out = pair + dim / kPanel * kPanel * kPositionChunk / 2 + dim % kPanel;
      for (int64_t i = 0; i < kRoundedDims; ++i) {
        out[i] = even[dim + i] | static_cast<uint32_t>(odd[dim + i]) << 16;
      }
    }
  }
}

bool all_finite(const AttentionTile& tile) {
  constexpr uint16_t kExponent = 0x7F80;
  for (int64_t slot = tile.first; slot < tile.last; ++slot) {
    if (tile.key_scales != nullptr && !std::isfinite(tile.value_scales[slot])) return false;
    const uint16_t* const value = vector_at(tile.values, tile.offsets[slot]);
    uint16_t bad = 0;
    for (int64_t d = 0; d < tile.head_dim; ++d) {
      bad |= static_cast<uint16_t>((value[d] & kExponent) == kExponent);
    }
    if (bad != 0) return false;
  }
  return true;
}

bool all_see_all(const AttentionTile& tile) {
  for (int64_t q = 0; q < tile.num_queries; ++q) {
    if (tile.begins[q] > tile.first || tile.ends[q] < tile.last) return false;
  }
  return true;
}

class Chunk {
 public:
  Chunk(const KernelTable& table, const RoundedProducts& products, const AttentionTile& tile)
      : table_(table),
        products_(products),
        tile_(tile),
        scratch_(tile),
        row_bytes_(kInnerChunk * products.element_bytes) {}

  void run() {
    // Zero times a value that is not finite is NaN: then none may see another's values.
    if (!all_see_all(tile_) && !all_finite(tile_)) return run_one_by_one();
    pack_keys(table_, tile_, scratch_.keys);
    pack_values(tile_, scratch_.values);
    for (int64_t query = 0; query < tile_.num_queries; query += kBlockQueries) {
      attend(query, std::min(kBlockQueries, tile_.num_queries - query));
    }
  }

 private:
  void run_one_by_one() {
    for (int64_t query = 0; query < tile_.num_queries; ++query) {
      AttentionTile one = tile_;
      one.queries = row(tile_.queries, query);
      one.num_queries = 1;
      if (one.slopes != nullptr) one.slopes += query;
      one.begins += query;
      one.ends += query;
      one.first = std::max<int64_t>(0, *one.begins);
      one.last = std::min<int64_t>(kPositionChunk, *one.ends);
      one.num_next = 0;
      one.running += query * (tile_.head_dim + 2);
      Chunk(table_, products_, one).run();
    }
  }

  const std::byte* row(const void* rows, int64_t index) const {
    return static_cast<const std::byte*>(rows) + index * row_bytes_;
  }

  void attend(int64_t query, int64_t count) {
    score(query, count);
    const int64_t low = low_slot(tile_);
    const int64_t stride = partial_stride(tile_.head_dim);
    for (int64_t q = 0; q < count; ++q) {
      float* const scores = scratch_.scores + q * kPositionChunk;
      table_.attention_softmax(tile_, query + q, scores, scratch_.partials + q * stride);
      products_.round_row(scratch_.weights + q * row_bytes_, scores + low, high_slot(tile_) - low);
    }
    weigh(count);
    for (int64_t q = 0; q < count; ++q) {
      float* const running = tile_.running + (query + q) * (tile_.head_dim + 2);
      const float* const partial = scratch_.partials + q * stride;
      if (tile_.begins[query + q] < 0) {
        table_.attention_merge(running, partial, tile_.head_dim);
      } else {
        std::copy_n(partial, tile_.head_dim + 2, running);
      }
    }
  }

  // Query by key, not scaled.
  void score(int64_t query, int64_t count) {
    LinearPanel call;
    call.n_in = tile_.head_dim;
    call.in = row(tile_.queries, query);
    call.in_stride = kInnerChunk;
    call.rows = count;
    call.totals = scratch_.totals;
    call.out_stride = kPositionChunk;
    for (int64_t slot = tile_.first / kPanel * kPanel; slot < tile_.last; slot += kPanel) {
      call.weights = scratch_.keys + slot * tile_.head_dim / 2;
      call.out = scratch_.scores + slot;
      products_.panel(call);
    }
  }

  void weigh(int64_t count) {
    LinearPanel call;
    call.n_in = high_slot(tile_) - low_slot(tile_);
    call.in = scratch_.weights;
    call.in_stride = kInnerChunk;
    call.rows = count;
    call.totals = scratch_.totals;
    call.out_stride = partial_stride(tile_.head_dim);
    for (int64_t d = 0; d < tile_.head_dim; d += kPanel) {
      call.weights = scratch_.values + (d * kPositionChunk + low_slot(tile_) * kPanel) / 2;
      call.out = scratch_.partials + 2 + d;
      products_.panel(call);
    }
  }

  const KernelTable& table_;
  const RoundedProducts& products_;
  const AttentionTile& tile_;
  const Scratch scratch_;
  const int64_t row_bytes_;
};

// Integers as bf16, at the end of the scratch memory.
void convert(const KernelTable& table,
             const AttentionTile& tile,
             int64_t* offsets,
             AttentionTile& converted) {
  const int64_t head_dim = tile.head_dim;
  auto* const keys =
      reinterpret_cast<uint16_t*>(tile.scratch + rounded_attention_scratch(head_dim)) -
      2 * kPositionChunk * head_dim;
  uint16_t* const values = keys + kPositionChunk * head_dim;
  const auto* const from_keys = static_cast<const int8_t*>(tile.keys);
  const auto* const from_values = static_cast<const int8_t*>(tile.values);
  for (int64_t slot = tile.first; slot < tile.last; ++slot) {
    if (slot < tile.num_next) {
      __builtin_prefetch(from_keys + tile.next_offsets[slot], 0, 2);
      __builtin_prefetch(from_values + tile.next_offsets[slot], 0, 2);
    }
    offsets[slot] = slot * head_dim;
    table.bf16_of_int8(keys + offsets[slot], from_keys + tile.offsets[slot], head_dim);
    table.bf16_of_int8(values + offsets[slot], from_values + tile.offsets[slot], head_dim);
  }
  converted.keys = keys;
  converted.values = values;
  converted.offsets = offsets;
  converted.keys_asked_for = true;
  converted.num_next = 0;
}

}  // namespace

int64_t rounded_attention_scratch(int64_t head_dim) {
  const int64_t of_a_query = kPositionChunk + kPanel + kInnerChunk + partial_stride(head_dim);
  return kPositionChunk / 2 * (3 * head_dim + dim_panels(head_dim) * kPanel) +
         kBlockQueries * of_a_query;
}

void rounded_attention_tile(const KernelTable& table,
                            const RoundedProducts& products,
                            const AttentionTile& tile) {
  if (tile.key_scales == nullptr) return Chunk(table, products, tile).run();
  int64_t offsets[kPositionChunk];
  AttentionTile converted = tile;
  convert(table, tile, offsets, converted);
  Chunk(table, products, converted).run();
}

}  // namespace outrider::ops::cpu
