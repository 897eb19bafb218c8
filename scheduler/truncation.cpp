// See truncation.h. Values are compared by their distance below the row's maximum in units of 2^-26
// nats: a 32-bit number whose first radix digit is a band of a quarter nat. Values 64 nats and more
// below the maximum tie; their fixed-point weight is zero anyway.
#include "scheduler/truncation.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "scheduler/statistics.h"

namespace outrider {
namespace {

constexpr int kNumDigits = 4;
constexpr size_t kNumBins = 256;
constexpr uint32_t kFarthest = 0xffffffffu;
constexpr double kDistanceUnit = 67108864.0;  // 2^26 per nat

bool has_top_k(const SamplingParams& params, int32_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}
bool has_gathered_top_k(const SamplingParams& params, int32_t vocab_size) {
  return has_top_k(params, vocab_size) && params.top_k <= kMaxGatheredTopK;
}
bool has_top_p(const SamplingParams& params) { return params.top_p < 1.0f; }
bool has_min_p(const SamplingParams& params) { return params.min_p > 0.0f; }

uint32_t distance_below(float scaled, float max) {
  const double distance = static_cast<double>(max) - static_cast<double>(scaled);
  return distance < 64.0 ? static_cast<uint32_t>(distance * kDistanceUnit) : kFarthest;
}

float next_up(float x) {
  const uint32_t ordered = ordered_bits(x);
  return from_ordered_bits(ordered + 1);
}

float smallest_above(double bound) {
  auto candidate = static_cast<float>(bound);
  return static_cast<double>(candidate) > bound ? candidate : next_up(candidate);
}

// The threshold that keeps exactly the values at distance <= farthest.
float cut_at_distance(float max, uint32_t farthest) {
  if (farthest == kFarthest) return kMasked;
  return smallest_above(static_cast<double>(max) -
                        (static_cast<double>(farthest) + 1.0) / kDistanceUnit);
}

uint64_t top_p_target(float top_p, uint64_t mass) {
  const double wanted = static_cast<double>(top_p) * static_cast<double>(mass);
  const auto target = static_cast<uint64_t>(wanted > 0.0 ? wanted : 0.0);
  return std::clamp<uint64_t>(
      target + (static_cast<double>(target) < wanted ? 1 : 0), 1, std::max<uint64_t>(mass, 1));
}

void apply_min_p(TruncationRow& row) {
  if (!has_min_p(*row.params) || row.max == kMasked) return;
  const double bound = static_cast<double>(row.max) + exact_log(row.params->min_p);
  auto threshold = static_cast<float>(bound);
  if (static_cast<double>(threshold) < bound) threshold = next_up(threshold);
  row.cut = std::max(row.cut, std::min(threshold, row.max));
}

// ---- radix selection
// ------------------------------------------------------------------------------------------

// Finds, digit by digit, the smallest distance whose set {value : distance <= it} reaches the
// target, counted in tokens or in mass.
struct Selection {
  TruncationRow* row = nullptr;
  bool by_mass = false;
  uint64_t target = 0;   // of the set; with by_mass known after the first pass
  uint64_t reached = 0;  // by the bands before `prefix`
  uint32_t prefix = 0;   // the digits found so far
};

void add_to_bins(const Selection& selection, int digit, std::span<uint64_t> bins) {
  const TruncationRow& row = *selection.row;
  const int shift = 8 * (kNumDigits - 1 - digit);
  const WeightScale scale{row.view.inverse_temperature, static_cast<double>(row.max), row.cut};
  for_each_tile(row.view, [&](int32_t, int32_t count, const float* values) {
    const float top =
        exact_mul(row_kernels().range(values, count).max, row.view.inverse_temperature);
    if (top < row.cut) return;
    const uint32_t nearest = distance_below(top, row.max);
    if (digit > 0 && nearest >> (shift + 8) > selection.prefix >> (shift + 8)) return;
    std::array<uint64_t, kTileTokens> weights;
    if (selection.by_mass) row_kernels().weights(values, count, scale, weights.data());
    for (int32_t i = 0; i < count; ++i) {
      const float scaled = exact_mul(values[i], row.view.inverse_temperature);
      if (scaled < row.cut) continue;
      const uint32_t distance = distance_below(scaled, row.max);
      if (digit > 0 && distance >> (shift + 8) != selection.prefix >> (shift + 8)) continue;
      bins[(distance >> shift) & 0xff] += selection.by_mass ? weights[static_cast<size_t>(i)] : 1;
    }
  });
}

void choose_bin(Selection& selection, int digit, std::span<const uint64_t> bins) {
  const int shift = 8 * (kNumDigits - 1 - digit);
  if (digit == 0 && selection.by_mass) {
    uint64_t mass = 0;
    for (uint64_t bin : bins) mass += bin;
    selection.target = top_p_target(selection.row->params->top_p, mass);
  }
  uint32_t chosen = 0;
  while (chosen + 1 < kNumBins && selection.reached + bins[chosen] < selection.target) {
    selection.reached += bins[chosen];
    ++chosen;
  }
  selection.prefix |= chosen << shift;
}

void select_by_radix(std::vector<Selection>& selections, ShardExchange& exchange) {
  if (selections.empty()) return;
  std::vector<uint64_t> bins(selections.size() * kNumBins);
  for (int digit = 0; digit < kNumDigits; ++digit) {
    std::fill(bins.begin(), bins.end(), 0);
    for (size_t i = 0; i < selections.size(); ++i) {
      add_to_bins(selections[i], digit, std::span(bins).subspan(i * kNumBins, kNumBins));
    }
    exchange.sum(bins);
    for (size_t i = 0; i < selections.size(); ++i) {
      choose_bin(selections[i], digit, std::span(bins).subspan(i * kNumBins, kNumBins));
    }
  }
  for (const Selection& selection : selections) {
    TruncationRow& row = *selection.row;
    row.cut = std::max(row.cut, cut_at_distance(row.max, selection.prefix));
  }
}

// ---- small top-k: the shards' best k values, and how often the last of them occurs
// ----------------------------

struct ValueCount {
  float value = 0.0f;
  uint64_t count = 0;
};

uint32_t count_equal(const RowView& view, float value) {
  uint32_t count = 0;
  for_each_tile(view, [&](int32_t, int32_t tile_count, const float* values) {
    const float top =
        exact_mul(row_kernels().range(values, tile_count).max, view.inverse_temperature);
    if (top < value) return;
    for (int32_t i = 0; i < tile_count; ++i) {
      count += exact_mul(values[i], view.inverse_temperature) == value ? 1 : 0;
    }
  });
  return count;
}

// [k] ordered bits of the best values, best first, 0 where there are none; then the count of the
// last one.
void write_local_best(const TruncationRow& row, std::span<uint32_t> out) {
  const size_t k = out.size() - 1;
  const std::vector<uint64_t> best = top_keys(row.view, static_cast<int32_t>(k));
  for (size_t i = 0; i < k; ++i) {
    out[i] = i < best.size() ? static_cast<uint32_t>(best[i] >> 32) : 0;
  }
  out[k] = best.size() == k ? count_equal(row.view, key_score(best.back())) : 0;
}

// All values that can be at or above the k-th best, with how often they occur over all shards, best
// first.
void add_shard_best(std::span<const uint32_t> from, std::vector<ValueCount>& values) {
  const size_t k = from.size() - 1;
  for (size_t i = 0; i < k && from[i] != 0; ++i) {
    const bool ties_with_last = from[k - 1] != 0 && from[i] == from[k - 1];
    if (ties_with_last) {
      values.push_back({from_ordered_bits(from[i]), from[k]});
      return;
    }
    values.push_back({from_ordered_bits(from[i]), 1});
  }
}

void cut_from_values(TruncationRow& row, std::vector<ValueCount>& values) {
  std::stable_sort(values.begin(), values.end(), [](const ValueCount& a, const ValueCount& b) {
    return a.value > b.value;
  });
  const auto k = static_cast<uint64_t>(row.params->top_k);
  uint64_t count = 0;
  for (const ValueCount& entry : values) {
    row.cut = entry.value;
    count += entry.count;
    if (count >= k) break;
  }
  if (!has_top_p(*row.params)) return;
  const auto weight = [&](const ValueCount& entry) {
    return entry.count * fixed_weight(static_cast<double>(entry.value) - row.max);
  };
  uint64_t mass = 0;
  for (const ValueCount& entry : values) mass += entry.value >= row.cut ? weight(entry) : 0;
  const uint64_t target = top_p_target(row.params->top_p, mass);
  uint64_t reached = 0;
  for (const ValueCount& entry : values) {
    reached += weight(entry);
    if (reached < target) continue;
    row.cut = std::max(row.cut, entry.value);
    return;
  }
}

void cut_by_gather(const std::vector<TruncationRow*>& rows, ShardExchange& exchange) {
  if (rows.empty()) return;
  size_t size = 0;
  for (const TruncationRow* row : rows) size += static_cast<size_t>(row->params->top_k) + 1;
  std::vector<uint32_t> mine(size);
  const auto num_shards = static_cast<size_t>(exchange.num_shards());
  std::vector<uint32_t> all(size * num_shards);
  size_t offset = 0;
  for (const TruncationRow* row : rows) {
    const size_t length = static_cast<size_t>(row->params->top_k) + 1;
    write_local_best(*row, std::span(mine).subspan(offset, length));
    offset += length;
  }
  exchange.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  offset = 0;
  for (TruncationRow* row : rows) {
    const size_t length = static_cast<size_t>(row->params->top_k) + 1;
    std::vector<ValueCount> values;
    for (size_t shard = 0; shard < num_shards; ++shard) {
      add_shard_best(std::span(all).subspan(shard * size + offset, length), values);
    }
    cut_from_values(*row, values);
    offset += length;
  }
}

}  // namespace

bool filters(const SamplingParams& params, int32_t vocab_size) {
  return has_top_k(params, vocab_size) || has_top_p(params) || has_min_p(params);
}

void truncate(std::span<TruncationRow> rows, const VocabShard& shard, ShardExchange& exchange) {
  const int32_t vocab_size = shard.vocab_size;
  std::vector<TruncationRow*> gathered;
  std::vector<Selection> by_count;
  std::vector<Selection> by_mass;
  for (TruncationRow& row : rows) {
    const SamplingParams& params = *row.params;
    const bool gather = has_gathered_top_k(params, vocab_size);
    if (gather) gathered.push_back(&row);
    if (!gather && has_top_k(params, vocab_size)) {
      by_count.push_back({.row = &row, .target = static_cast<uint64_t>(params.top_k)});
    }
    if (!gather && has_top_p(params)) by_mass.push_back({.row = &row, .by_mass = true});
  }
  cut_by_gather(gathered, exchange);
  select_by_radix(by_count, exchange);
  select_by_radix(by_mass, exchange);
  for (TruncationRow& row : rows) apply_min_p(row);
}

}  // namespace outrider
