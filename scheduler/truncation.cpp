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
  struct Entry {
    uint32_t distance;
    uint64_t amount;
  };
  std::vector<Entry> inside;  // this shard's tokens in the band of the first digit
};

// Calls add(distance, amount) for this shard's tokens at distances from `nearest` to `farthest`.
template <typename Add>
void for_each_distance(const Selection& selection, uint32_t nearest, uint32_t farthest, Add&& add) {
  const TruncationRow& row = *selection.row;
  const float inverse_temperature = row.view.inverse_temperature;
  const WeightScale scale{inverse_temperature, static_cast<double>(row.max), row.cut};
  const float lowest = std::max(row.cut, cut_at_distance(row.max, farthest));
  for_each_tile(row.view, [&](int32_t, int32_t count, const float* values) {
    const float top = exact_mul(row_kernels().range(values, count).max, inverse_temperature);
    if (top < lowest) return;
    std::array<uint64_t, kTileTokens> weights;
    if (selection.by_mass) row_kernels().weights(values, count, scale, weights.data());
    for (int32_t i = 0; i < count; ++i) {
      const float scaled = exact_mul(values[i], inverse_temperature);
      if (scaled < lowest) continue;
      const uint32_t distance = distance_below(scaled, row.max);
      if (distance < nearest || distance > farthest) continue;
      add(distance, selection.by_mass ? weights[static_cast<size_t>(i)] : 1);
    }
  });
}

// Two passes over the row: into the bins of the first digit, then into a list of what lies in the
// chosen one.
void add_to_bins(Selection& selection, int digit, std::span<uint64_t> bins) {
  const int shift = 8 * (kNumDigits - 1 - digit);
  if (digit == 0) {
    for_each_distance(selection, 0, kFarthest, [&](uint32_t distance, uint64_t amount) {
      bins[distance >> shift] += amount;
    });
    return;
  }
  if (digit == 1) {
    const uint32_t last = selection.prefix | 0xffffffu;
    for_each_distance(selection, selection.prefix, last, [&](uint32_t distance, uint64_t amount) {
      selection.inside.push_back({distance, amount});
    });
  }
  const uint32_t found = selection.prefix >> (shift + 8);
  for (const Selection::Entry& entry : selection.inside) {
    if (entry.distance >> (shift + 8) != found) continue;
    bins[(entry.distance >> shift) & 0xff] += entry.amount;
  }
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

// ---- by one gather: the shards' best values, how often the last of them occurs, and their mass
// -----------------

struct ValueCount {
  float value = 0.0f;
  uint64_t count = 0;
};

// One row's part of the gathered words: [num_values] ordered bits of the best values, best first, 0
// where there are none; the number of tokens that equal the last one; the shard's mass in two
// halves (for top_p without top_k).
struct GatherLayout {
  size_t num_values;
  size_t count_at() const { return num_values; }
  size_t mass_at() const { return num_values + 1; }
  size_t size() const { return num_values + 3; }
};

GatherLayout layout_of(const SamplingParams& params) {
  const bool few = params.top_k > 0 && params.top_k < kMaxGatheredTopK;
  return {static_cast<size_t>(few ? params.top_k : kMaxGatheredTopK)};
}

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

void write_local_best(const TruncationRow& row, bool with_mass, std::span<uint32_t> out) {
  const GatherLayout layout = {out.size() - 3};
  const std::vector<uint64_t> best = top_keys(row.view, static_cast<int32_t>(layout.num_values));
  std::fill(out.begin(), out.end(), 0);
  for (size_t i = 0; i < best.size(); ++i) out[i] = static_cast<uint32_t>(best[i] >> 32);
  if (best.size() == layout.num_values) {
    out[layout.count_at()] = count_equal(row.view, key_score(best.back()));
  }
  if (!with_mass) return;
  const uint64_t mass = row_mass(row.view, row.max, kMasked);
  out[layout.mass_at()] = static_cast<uint32_t>(mass);
  out[layout.mass_at() + 1] = static_cast<uint32_t>(mass >> 32);
}

// What the gathered words say about the whole row: every value at or above `known_down_to`, with
// how often it occurs.
struct BestValues {
  std::vector<ValueCount> values;  // best first
  float known_down_to = kMasked;
  uint64_t mass = 0;

  void add_shard(std::span<const uint32_t> words) {
    const GatherLayout layout = {words.size() - 3};
    const uint32_t last = words[layout.num_values - 1];  // 0: the shard has told all its values
    for (size_t i = 0; i < layout.num_values && words[i] != 0 && words[i] != last; ++i) {
      values.push_back({from_ordered_bits(words[i]), 1});
    }
    if (last != 0) {
      values.push_back({from_ordered_bits(last), words[layout.count_at()]});
      known_down_to = std::max(known_down_to, from_ordered_bits(last));
    }
    const uint64_t high = words[layout.mass_at() + 1];
    mass += high << 32 | words[layout.mass_at()];
  }

  void sort() {
    std::stable_sort(values.begin(), values.end(), [](const ValueCount& a, const ValueCount& b) {
      return a.value > b.value;
    });
  }
};

void cut_to_top_k(TruncationRow& row, BestValues& best) {
  uint64_t count = 0;
  size_t kept = 0;
  while (kept < best.values.size() && count < static_cast<uint64_t>(row.params->top_k)) {
    row.cut = best.values[kept].value;
    count += best.values[kept++].count;
  }
  while (kept < best.values.size() && best.values[kept].value == row.cut) ++kept;
  best.values.resize(kept);
}

// False when the nucleus reaches below what is known.
bool cut_to_top_p(TruncationRow& row, const BestValues& best, uint64_t mass) {
  const uint64_t target = top_p_target(row.params->top_p, mass);
  uint64_t reached = 0;
  for (const ValueCount& entry : best.values) {
    if (entry.value < best.known_down_to) return false;
    const double below_max = static_cast<double>(entry.value) - static_cast<double>(row.max);
    reached += entry.count * fixed_weight(below_max);
    if (reached < target) continue;
    row.cut = std::max(row.cut, entry.value);
    return true;
  }
  return false;
}

bool cut_from_values(TruncationRow& row, BestValues& best, int32_t vocab_size) {
  best.sort();
  if (!has_top_k(*row.params, vocab_size)) return cut_to_top_p(row, best, best.mass);
  cut_to_top_k(row, best);
  if (!has_top_p(*row.params)) return true;
  uint64_t mass = 0;
  for (const ValueCount& entry : best.values) {
    mass += entry.count * fixed_weight(static_cast<double>(entry.value) - row.max);
  }
  cut_to_top_p(row, best, mass);  // all kept values are known
  return true;
}

// Returns the rows whose nucleus has more values than were gathered. Every rank decides so from the
// same words.
std::vector<TruncationRow*> cut_by_gather(const std::vector<TruncationRow*>& rows,
                                          int32_t vocab_size,
                                          ShardExchange& exchange) {
  std::vector<TruncationRow*> unresolved;
  if (rows.empty()) return unresolved;
  size_t size = 0;
  for (const TruncationRow* row : rows) size += layout_of(*row->params).size();
  std::vector<uint32_t> mine(size);
  const auto num_shards = static_cast<size_t>(exchange.num_shards());
  std::vector<uint32_t> all(size * num_shards);
  size_t offset = 0;
  for (const TruncationRow* row : rows) {
    const size_t length = layout_of(*row->params).size();
    const bool with_mass = !has_top_k(*row->params, vocab_size);
    write_local_best(*row, with_mass, std::span(mine).subspan(offset, length));
    offset += length;
  }
  exchange.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  offset = 0;
  for (TruncationRow* row : rows) {
    const size_t length = layout_of(*row->params).size();
    BestValues best;
    for (size_t shard = 0; shard < num_shards; ++shard) {
      best.add_shard(std::span(all).subspan(shard * size + offset, length));
    }
    if (!cut_from_values(*row, best, vocab_size)) unresolved.push_back(row);
    offset += length;
  }
  return unresolved;
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
    const bool top_k = has_top_k(params, vocab_size);
    const bool few = top_k && params.top_k <= kMaxGatheredTopK;
    if (few || (!top_k && has_top_p(params))) gathered.push_back(&row);
    if (few || !top_k) continue;
    by_count.push_back({.row = &row, .target = static_cast<uint64_t>(params.top_k), .inside = {}});
    if (has_top_p(params)) by_mass.push_back({.row = &row, .by_mass = true, .inside = {}});
  }
  for (TruncationRow* row : cut_by_gather(gathered, vocab_size, exchange)) {
    by_mass.push_back({.row = row, .by_mass = true, .inside = {}});
  }
  select_by_radix(by_count, exchange);
  select_by_radix(by_mass, exchange);
  for (TruncationRow& row : rows) apply_min_p(row);
}

}  // namespace outrider
