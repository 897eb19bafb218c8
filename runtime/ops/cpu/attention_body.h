// Attention over one chunk of positions and the small vector ops, written once over 16-lane
// vectors. Included by kernels_body.h only. Invariant: lane l of a sum over positions holds those
// with (slot in chunk) % 16 == l, folded by one tree (l + 8, l + 4, l + 2, l + 1), a score is one
// chain over head_dim, a value sum one over the chunk's positions; so bits are the same on every
// ISA and for every tile.
#pragma once

// exp(x) by x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 (remainder below
// 6e-9). Relative error below 2e-7; 0 below -104, inf above 88.73, NaN stays NaN.
OUTRIDER_INLINE Lanes exponential(Lanes x) {
  const Lanes magic = constant(12582912.0f);  // adding it rounds to an integer kept in the low bits
  x = clamp_keeping_nan(x, -104.0f, 89.0f);
  const Lanes shifted = fma(x, constant(1.44269504088896341f), magic);
  const Lanes n = sub(shifted, magic);
  Lanes r =
      fma(n, constant(-0.693145751953125f), x);  // ln 2 in two parts: n times the first is exact
  r = fma(n, constant(-1.42860682030941723e-6f), r);
  Lanes y = fma(constant(1.0f / 5040.0f), r, constant(1.0f / 720.0f));
  y = fma(y, r, constant(1.0f / 120.0f));
  y = fma(y, r, constant(1.0f / 24.0f));
  y = fma(y, r, constant(1.0f / 6.0f));
  y = fma(y, r, constant(0.5f));
  y = fma(y, r, constant(1.0f));
  y = fma(y, r, constant(1.0f));
  return scale_by_power_of_two(y, shifted);
}

template <typename Element>
OUTRIDER_INLINE Lanes load_up_to(const Element* x, int64_t count) {
  return count >= kLanes ? load(x) : load_partial(x, static_cast<int>(count));
}

OUTRIDER_INLINE void store_up_to(float* x, Lanes value, int64_t count) {
  if (count >= kLanes) {
    store(x, value);
  } else {
    store_partial(x, value, static_cast<int>(count));
  }
}

float sum_of_squares(const float* x, int64_t n) {
  Lanes sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes value = load_up_to(x + i, n - i);
    sum = fma(value, value, sum);
  }
  return fold_add(sum);
}

float add_sum_of_squares(float* x, const float* y, int64_t n) {
  Lanes sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes value = add(load_up_to(x + i, n - i), load_up_to(y + i, n - i));
    store_up_to(x + i, value, n - i);
    sum = fma(value, value, sum);
  }
  return fold_add(sum);
}

void rotate(float* x, const float* angles, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const Lanes first = load_up_to(x + i, half - i);
    const Lanes second = load_up_to(x + half + i, half - i);
    const Lanes cosine = load_up_to(angles + i, half - i);
    const Lanes sine = load_up_to(angles + half + i, half - i);
    store_up_to(x + i, sub(mul(first, cosine), mul(second, sine)), half - i);
    store_up_to(x + half + i, add(mul(second, cosine), mul(first, sine)), half - i);
  }
}

void scale_by_weight(float* out, const float* x, float scale, const float* weight, int64_t n) {
  const Lanes factor = constant(scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes scaled = mul(load_up_to(x + i, n - i), factor);
    store_up_to(out + i, mul(scaled, load_up_to(weight + i, n - i)), n - i);
  }
}

void silu_mul(float* out, const float* gate, const float* up, int64_t n) {
  const Lanes one = constant(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes x = load_up_to(gate + i, n - i);
    const Lanes activated = div(x, add(one, exponential(sub(zero(), x))));
    store_up_to(out + i, mul(activated, load_up_to(up + i, n - i)), n - i);
  }
}

void exponential_of_array(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store_up_to(out + i, exponential(load_up_to(x + i, n - i)), n - i);
  }
}

// Asks for a vector of head_dim that will be read after some thousand cycles.
template <typename Element>
OUTRIDER_INLINE void fetch_vector(const Element* at, int64_t head_dim) {
  constexpr int64_t kLine = 64 / sizeof(Element);
#pragma GCC unroll 4
  for (int64_t d = 0; d < head_dim; d += kLine) prefetch_far(at + d);
}

// Only integers have a scale.
template <typename Element>
constexpr bool kIsScaled = sizeof(Element) == 1;

// The keys of slots first .. last - 1, turned over: panels of kScoreVectors * 16 slots, each
// [head_dim, slots of the panel]. Lanes of a vector without such a slot get some other slot's key.
template <typename Element>
void turn_keys(const AttentionTile& tile, float* turned) {
  constexpr int64_t kPanelSlots = kScoreVectors * kLanes;
  const Element* const all_keys = static_cast<const Element*>(tile.keys);
  const Element* const all_values = static_cast<const Element*>(tile.values);
  for (int64_t slot = tile.first / kLanes * kLanes; slot < tile.last; slot += kLanes) {
    const Element* keys[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      int64_t from = slot + lane < tile.first ? tile.first : slot + lane;
      from = from < tile.last ? from : tile.last - 1;
      keys[lane] = all_keys + tile.offsets[from];
      fetch_vector(all_values + tile.offsets[from], tile.head_dim);
      if (!tile.keys_asked_for && from + kLanes < tile.last) {
        fetch_vector(all_keys + tile.offsets[from + kLanes], tile.head_dim);
      }
    }
    float* panel = turned + slot / kPanelSlots * kPanelSlots * tile.head_dim + slot % kPanelSlots;
    for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
      const int64_t rest = tile.head_dim - d < kLanes ? tile.head_dim - d : kLanes;
      Lanes block[kLanes];
#pragma GCC unroll 16
      for (int lane = 0; lane < kLanes; ++lane) block[lane] = load_up_to(keys[lane] + d, rest);
      transpose(block);
      if constexpr (kIsScaled<Element>) {
        const Lanes scales = load(tile.key_scales + slot);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) block[i] = mul(block[i], scales);
      }
      for (int64_t i = 0; i < rest; ++i) store(panel + (d + i) * kPanelSlots, block[i]);
    }
  }
}

// The values of slots first .. last - 1 as floats, each at slot * head_dim.
template <typename Element>
void widen_values(const AttentionTile& tile, float* widened) {
  const Element* const keys = static_cast<const Element*>(tile.keys);
  const Element* const values = static_cast<const Element*>(tile.values);
  for (int64_t slot = tile.first; slot < tile.last; ++slot) {
    if (slot < tile.num_next) fetch_vector(keys + tile.next_offsets[slot], tile.head_dim);
    const Element* const from = values + tile.offsets[slot];
    float* const to = widened + slot * tile.head_dim;
    for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
      const int64_t rest = tile.head_dim - d;
      Lanes value = load_up_to(from + d, rest);
      if constexpr (kIsScaled<Element>) value = mul(value, constant(tile.value_scales[slot]));
      store_up_to(to + d, value, rest);
    }
  }
}

// scores = scale * (query . key) of kQueries queries at kVectors * 16 slots of a panel: one fma
// chain over head_dim in ascending order for each.
template <int kQueries, int kVectors>
OUTRIDER_NOINLINE void score_slots(
    const float* queries, int64_t head_dim, const float* keys, float scale, float* scores) {
  Lanes acc[kQueries][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[q][v] = zero();
  }
  for (int64_t d = 0; d < head_dim; ++d, keys += kScoreVectors * kLanes) {
    Lanes key[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) key[v] = load(keys + v * kLanes);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Lanes x = broadcast(queries + q * head_dim + d);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[q][v] = fma(key[v], x, acc[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store(scores + q * kPositionChunk + v * kLanes, mul(acc[q][v], constant(scale)));
    }
  }
}

template <int kQueries, int kVectors>
OUTRIDER_INLINE void score_part_of_panel(const float* queries,
                                         int64_t head_dim,
                                         const float* keys,
                                         float scale,
                                         float* scores,
                                         int64_t vectors) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return score_part_of_panel<kQueries, kVectors - 1>(
          queries, head_dim, keys, scale, scores, vectors);
    }
  }
  score_slots<kQueries, kVectors>(queries, head_dim, keys, scale, scores);
}

// Turns the scores of slots first .. last - 1 into exp(score - max), the other lanes of their
// vectors into 0; writes max and sum.
void soften(float* scores, int64_t first, int64_t last, float* partial) {
  const int64_t begin = first / kLanes * kLanes;
  Lanes top = constant(-__builtin_inff());
  for (int64_t slot = begin; slot < last; slot += kLanes) {
    Lanes score = load(scores + slot);
    if (slot < first || slot + kLanes > last) {
      const int64_t low = first > slot ? first - slot : 0;
      const int64_t high = last - slot < kLanes ? last - slot : kLanes;
      score = keep_lanes(score, static_cast<int>(low), static_cast<int>(high));
      store(scores + slot, score);
    }
    top = max(top, score);
  }
  const float most = fold_max(top);
  Lanes sum = zero();
  for (int64_t slot = begin; slot < last; slot += kLanes) {
    const Lanes weight = exponential(sub(load(scores + slot), constant(most)));
    store(scores + slot, weight);
    sum = add(sum, weight);
  }
  partial[0] = most;
  partial[1] = fold_add(sum);
}

struct SlotRange {
  int64_t first;
  int64_t last;
  int64_t num_next;  // of these slots, keys of the next call to ask for
};

// Adds the weighted values of a range of slots, in ascending order, to dims d .. of kQueries
// queries' sums; kVectors * 16 dims, of a single vector those that head_dim has.
template <int kQueries, int kVectors>
OUTRIDER_NOINLINE void weigh_values(const AttentionTile& tile,
                                    const float* weights,
                                    float* sums,
                                    int64_t d,
                                    const SlotRange& range) {
  const int64_t stride = tile.head_dim + 2;
  const int64_t rest = kVectors > 1 ? kLanes : tile.head_dim - d;
  Lanes acc[kQueries][kVectors];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[q][v] = load_up_to(sums + q * stride + v * kLanes, rest);
  }
  const int64_t num_next = d == 0 ? range.num_next : 0;
  const float* const keys = static_cast<const float*>(tile.keys);
  const float* const values = static_cast<const float*>(tile.values);
  for (int64_t slot = range.first; slot < range.last; ++slot) {
    if (slot < num_next) fetch_vector(keys + tile.next_offsets[slot], tile.head_dim);
    const float* from = values + tile.offsets[slot] + d;
    Lanes value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = load_up_to(from + v * kLanes, rest);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; ++q) {
      const Lanes weight = broadcast(weights + q * kPositionChunk + slot);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[q][v] = fma(value[v], weight, acc[q][v]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store_up_to(sums + q * stride + v * kLanes, acc[q][v], rest);
    }
  }
}

template <int kQueries>
void weigh_values_of_all(const AttentionTile& tile,
                         const float* weights,
                         float* partials,
                         const SlotRange& range) {
  if (range.first >= range.last) return;
  int64_t d = 0;
  for (; d + kScoreVectors * kLanes <= tile.head_dim; d += kScoreVectors * kLanes) {
    weigh_values<kQueries, kScoreVectors>(tile, weights, partials + 2 + d, d, range);
  }
  for (; d < tile.head_dim; d += kLanes) {
    weigh_values<kQueries, 1>(tile, weights, partials + 2 + d, d, range);
  }
}

// Folds a later part's partial state of one head into the running one.
void attention_merge(float* running, const float* partial, int64_t head_dim) {
  const float most = running[0] > partial[0] ? running[0] : partial[0];
  const Lanes old_factor = exponential(constant(running[0] - most));
  const Lanes new_factor = exponential(constant(partial[0] - most));
  const Lanes sum = fma(constant(running[1]), old_factor, mul(constant(partial[1]), new_factor));
  running[0] = most;
  store_partial(running + 1, sum, 1);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t rest = head_dim - d;
    const Lanes added = mul(load_up_to(partial + 2 + d, rest), new_factor);
    store_up_to(running + 2 + d, fma(load_up_to(running + 2 + d, rest), old_factor, added), rest);
  }
}

// Where the parts of a tile's scratch memory lie: turned keys, widened values, scores of all
// queries, their maxima and sums, states of one group of queries.
struct TileScratch {
  float* keys;
  float* values;
  float* scores;
  float* tops;
  float* partials;
  OUTRIDER_INLINE explicit TileScratch(const AttentionTile& tile)
      : keys(tile.scratch),
        values(keys + kPositionChunk * tile.head_dim),
        scores(values + kPositionChunk * tile.head_dim),
        tops(scores + kPositionChunk * tile.num_queries),
        partials(tops + 2 * tile.num_queries) {}
};

// The slots that each of kQueries queries sees, any of them and all of them.
template <int kQueries>
struct SeenSlots {
  int64_t first[kQueries];
  int64_t last[kQueries];
  int64_t any_first = kPositionChunk;
  int64_t any_last = 0;
  int64_t all_first = 0;
  int64_t all_last = kPositionChunk;
  OUTRIDER_INLINE SeenSlots(const AttentionTile& tile, int64_t query) {
    for (int q = 0; q < kQueries; ++q) {
      first[q] = tile.begins[query + q] > 0 ? tile.begins[query + q] : 0;
      last[q] = tile.ends[query + q] < kPositionChunk ? tile.ends[query + q] : kPositionChunk;
      any_first = first[q] < any_first ? first[q] : any_first;
      any_last = last[q] > any_last ? last[q] : any_last;
      all_first = first[q] > all_first ? first[q] : all_first;
      all_last = last[q] < all_last ? last[q] : all_last;
    }
    if (all_first > all_last) all_first = all_last = any_last;
  }
};

// Soft cap and ALiBi on the scores of one query; lanes of no slot may get anything.
OUTRIDER_NOINLINE void bend_scores(
    const AttentionTile& tile, int64_t query, float* scores, int64_t first, int64_t last) {
  const Lanes cap = constant(tile.softcap);
  const Lanes inverse = constant(tile.softcap != 0.0f ? 2.0f / tile.softcap : 0.0f);
  const Lanes one = constant(1.0f);
  for (int64_t slot = first / kLanes * kLanes; slot < last; slot += kLanes) {
    Lanes score = load(scores + slot);
    if (tile.softcap != 0.0f) {  // c tanh(x / c) = c - 2 c / (1 + exp(2 x / c))
      const Lanes grown = add(one, exponential(mul(score, inverse)));
      score = sub(cap, div(add(cap, cap), grown));
    }
    if (tile.slopes != nullptr) {
      float positions[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        positions[lane] = static_cast<float>(tile.first_position + slot + lane);
      }
      score = fma(constant(tile.slopes[query]), load(positions), score);
    }
    store(scores + slot, score);
  }
}

// Scales of slots that the query does not see may be anything.
OUTRIDER_INLINE void scale_weights(const float* scales,
                                   int64_t first,
                                   int64_t last,
                                   float* weights) {
  for (int64_t slot = first / kLanes * kLanes; slot < last; slot += kLanes) {
    Lanes scale = load(scales + slot);
    if (slot < first || slot + kLanes > last) {
      float seen[kLanes] = {};
      for (int64_t i = slot < first ? first : slot; i < last && i < slot + kLanes; ++i) {
        seen[i - slot] = scales[i];
      }
      scale = load(seen);
    }
    store(weights + slot, mul(load(weights + slot), scale));
  }
}

// The other slots of the tile's vectors get weight 0.
void attention_softmax(const AttentionTile& tile, int64_t query, float* scores, float* partial) {
  const int64_t first = tile.begins[query] > 0 ? tile.begins[query] : 0;
  const int64_t last = tile.ends[query] < kPositionChunk ? tile.ends[query] : kPositionChunk;
  const int64_t begin = first / kLanes * kLanes;
  const int64_t end = (last + kLanes - 1) / kLanes * kLanes;
  const bool scaled = tile.key_scales != nullptr;
  for (int64_t slot = tile.first / kLanes * kLanes; slot < tile.last; slot += kLanes) {
    const bool seen = slot >= begin && slot < end;
    Lanes score = seen ? mul(load(scores + slot), constant(tile.scale)) : zero();
    if (scaled && seen) score = mul(score, load(tile.key_scales + slot));
    store(scores + slot, score);
  }
  if (tile.softcap != 0.0f || tile.slopes != nullptr) {
    bend_scores(tile, query, scores, first, last);
  }
  soften(scores, first, last, partial);
  if (scaled) scale_weights(tile.value_scales, first, last, scores);
}

void bf16_of_int8(uint16_t* out, const int8_t* in, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store_high_halves(out + i, load(in + i));
}

template <int kQueries>
void score_queries(const AttentionTile& tile, int64_t query) {
  const TileScratch scratch(tile);
  const SeenSlots<kQueries> seen(tile, query);
  const float* queries = static_cast<const float*>(tile.queries) + query * tile.head_dim;
  float* scores = scratch.scores + query * kPositionChunk;
  constexpr int64_t kPanelSlots = kScoreVectors * kLanes;
  for (int64_t slot = seen.any_first / kPanelSlots * kPanelSlots; slot < seen.any_last;
       slot += kPanelSlots) {
    score_part_of_panel<kQueries, kScoreVectors>(queries,
                                                 tile.head_dim,
                                                 scratch.keys + slot * tile.head_dim,
                                                 tile.scale,
                                                 scores + slot,
                                                 (seen.any_last - slot + kLanes - 1) / kLanes);
  }
  if (tile.softcap != 0.0f || tile.slopes != nullptr) {
    for (int q = 0; q < kQueries; ++q) {
      bend_scores(tile, query + q, scores + q * kPositionChunk, seen.any_first, seen.any_last);
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    soften(
        scores + q * kPositionChunk, seen.first[q], seen.last[q], scratch.tops + 2 * (query + q));
  }
}

// Slots that all of the queries see are taken side by side, those before and after by each alone: a
// value that a query does not see must not touch it, be it NaN.
template <int kQueries>
void weigh_queries(const AttentionTile& tile, int64_t query) {
  const TileScratch scratch(tile);
  const SeenSlots<kQueries> seen(tile, query);
  const float* weights = scratch.scores + query * kPositionChunk;
  const int64_t stride = tile.head_dim + 2;
  bool any_goes_on = false;
  for (int q = 0; q < kQueries; ++q) any_goes_on |= tile.begins[query + q] < 0;
  float* running = tile.running + query * stride;
  float* partials = any_goes_on ? scratch.partials : running;
  for (int q = 0; q < kQueries; ++q) {
    float* partial = partials + q * stride;
    partial[0] = scratch.tops[2 * (query + q)];
    partial[1] = scratch.tops[2 * (query + q) + 1];
    for (int64_t d = 0; d < tile.head_dim; d += kLanes) {
      store_up_to(partial + 2 + d, zero(), tile.head_dim - d);
    }
  }
  const auto alone = [&](int q, int64_t first, int64_t last) {
    const float* own = weights + q * kPositionChunk;
    weigh_values_of_all<1>(tile, own, partials + q * stride, {first, last, 0});
  };
  for (int q = 0; q < kQueries; ++q) {
    alone(q, seen.first[q], seen.all_first < seen.last[q] ? seen.all_first : seen.last[q]);
  }
  const int64_t num_next = query == 0 ? tile.num_next : 0;
  weigh_values_of_all<kQueries>(tile, weights, partials, {seen.all_first, seen.all_last, num_next});
  for (int q = 0; q < kQueries; ++q) alone(q, seen.all_last, seen.last[q]);
  if (!any_goes_on) return;
  for (int q = 0; q < kQueries; ++q) {
    if (tile.begins[query + q] < 0) {
      attention_merge(running + q * stride, partials + q * stride, tile.head_dim);
    } else {
      for (int64_t i = 0; i < stride; ++i) running[q * stride + i] = partials[q * stride + i];
    }
  }
}

template <int kQueries>
OUTRIDER_INLINE void attend_group(const AttentionTile& tile,
                                  int64_t query,
                                  int64_t count,
                                  bool weigh) {
  if constexpr (kQueries > 1) {
    if (count < kQueries) return attend_group<kQueries - 1>(tile, query, count, weigh);
  }
  if (weigh) {
    weigh_queries<kQueries>(tile, query);
  } else {
    score_queries<kQueries>(tile, query);
  }
}

void attend_all(const AttentionTile& tile, bool weigh) {
  const int64_t num_groups = (tile.num_queries + kScoreQueries - 1) / kScoreQueries;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t query = tile.num_queries * group / num_groups;
    const int64_t end = tile.num_queries * (group + 1) / num_groups;
    attend_group<kScoreQueries>(tile, query, end - query, weigh);
  }
}

// All scores first, then all value sums: so the keys stay in the first cache, and then the values.
// Values that are no floats become such once for all queries.
template <typename Element>
void attention_tile(const AttentionTile& tile) {
  const TileScratch scratch(tile);
  turn_keys<Element>(tile, scratch.keys);
  attend_all(tile, false);
  if constexpr (sizeof(Element) == sizeof(float)) {
    attend_all(tile, true);
  } else {
    widen_values<Element>(tile, scratch.values);
    int64_t offsets[kPositionChunk];
    for (int64_t slot = 0; slot < kPositionChunk; ++slot) offsets[slot] = slot * tile.head_dim;
    AttentionTile widened = tile;
    widened.values = scratch.values;
    widened.offsets = offsets;
    widened.num_next = 0;  // have been asked for
    attend_all(widened, true);
  }
}

void attention_finish(float* out, const float* running, int64_t head_dim) {
  const Lanes sum = constant(running[1]);
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t rest = head_dim - d;
    store_up_to(out + d, div(load_up_to(running + 2 + d, rest), sum), rest);
  }
}
