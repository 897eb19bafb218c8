// See truncation.h. A filter is settled from values that were gathered where they are few, else by
// radix selection; both decide by the numbers of keep_order.h, hence alike.
#include "scheduler/sampling/truncation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/rows/keep_order.h"

namespace outrider {
namespace {

bool has_top_k(const SamplingParams& params, int32_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}
bool has_top_p(const SamplingParams& params) { return params.top_p < 1.0f; }
bool has_min_p(const SamplingParams& params) { return params.min_p > 0.0f; }
bool has_typical_p(const SamplingParams& params) { return params.typical_p < 1.0f; }

void apply_min_p(TruncationRow& row) {
  if (!has_min_p(*row.params) || row.max == kMasked) return;
  const double bound = static_cast<double>(row.max) + exact_log(row.params->min_p);
  auto threshold = static_cast<float>(bound);
  if (static_cast<double>(threshold) < bound) {
    threshold = from_ordered_bits(ordered_bits(threshold) + 1);
  }
  row.cut = std::max(row.cut, std::min(threshold, row.max));
}

// The mean surprisal, as a distance below the maximum: moment / mass. Entropy and every surprisal
// differ from these distances by the same log of the normaliser.
KeepOrder typical_order(const TruncationRow& row, uint64_t mass, uint64_t moment) {
  return {row.max, exact_div(static_cast<double>(moment), static_cast<double>(mass))};
}

// Keeps what lies within `farthest` of the mean surprisal.
void keep_around(TruncationRow& row, const KeepOrder& order, uint32_t farthest) {
  row.cut = std::max(row.cut, order.lowest(farthest));
  const float highest = order.highest(farthest);
  row.ceiling = highest < row.max ? highest : kNoCeiling;
}

SumQuestion sums_of(const TruncationRow& row, bool wants_moment) {
  return {.row = row.row, .max = row.max, .cut = row.cut, .wants_moment = wants_moment};
}

// What a row still needs. Settled in this order.
struct Filters {
  TruncationRow* row = nullptr;
  bool top_k = false;
  bool top_p = false;
  bool typical_p = false;
};

// ---- by one gather: the shards' best values, how often the last of them occurs, and their sums
// -----------------

struct ValueCount {
  float value = 0.0f;
  uint64_t count = 0;
};

// One row's part of the gathered words: [num_values] ordered bits of the best values, best first, 0
// where there are none; the number of tokens that equal the last one; then, as two halves each, the
// shard's mass and moment as far as they are needed.
struct GatherLayout {
  size_t num_values = 0;
  size_t num_sums = 0;
  size_t count_at() const { return num_values; }
  size_t sum_at(size_t i) const { return num_values + 1 + 2 * i; }
  size_t size() const { return sum_at(num_sums); }
};

// With top_k the values tell all; otherwise top_p needs the row's mass, typical_p its moment too.
GatherLayout layout_of(const Filters& filters) {
  if (filters.top_k) return {static_cast<size_t>(filters.row->params->top_k), 0};
  return {static_cast<size_t>(kMaxGatheredTopK), filters.top_p ? size_t{1} : size_t{2}};
}

bool is_gathered(const Filters& filters) {
  if (filters.top_k) return filters.row->params->top_k <= kMaxGatheredTopK;
  return filters.top_p || filters.typical_p;
}

void write_local_best(const TopQuestion& top,
                      const SumQuestion* sums,
                      const GatherLayout& layout,
                      std::span<uint32_t> out) {
  std::fill(out.begin(), out.end(), 0);
  for (size_t i = 0; i < top.keys.size(); ++i) out[i] = static_cast<uint32_t>(top.keys[i] >> 32);
  out[layout.count_at()] = top.num_last;
  for (size_t i = 0; i < layout.num_sums; ++i) {
    const uint64_t sum = i == 0 ? sums->mass : sums->moment;
    out[layout.sum_at(i)] = static_cast<uint32_t>(sum);
    out[layout.sum_at(i) + 1] = static_cast<uint32_t>(sum >> 32);
  }
}

// What the gathered words say about the whole row: every value at or above `known_down_to`, with
// how often it occurs, and the sums over the row.
struct BestValues {
  std::vector<ValueCount> values;  // best first, once all shards are added
  float known_down_to = kMasked;
  uint64_t sums[2] = {0, 0};                           // mass, moment
  std::vector<std::pair<uint32_t, uint64_t>> nearest;  // distance, mass: of farthest_of()

  void clear() {
    values.clear();
    known_down_to = kMasked;
    sums[0] = sums[1] = 0;
  }

  void add_shard(const GatherLayout& layout, std::span<const uint32_t> words) {
    const uint32_t last = words[layout.num_values - 1];  // 0: the shard has told all its values
    for (size_t i = 0; i < layout.num_values && words[i] != 0 && words[i] != last; ++i) {
      values.push_back({from_ordered_bits(words[i]), 1});
    }
    if (last != 0) {
      values.push_back({from_ordered_bits(last), words[layout.count_at()]});
      known_down_to = std::max(known_down_to, from_ordered_bits(last));
    }
    for (size_t i = 0; i < layout.num_sums; ++i) {
      const uint64_t high = words[layout.sum_at(i) + 1];
      sums[i] += high << 32 | words[layout.sum_at(i)];
    }
  }

  void sort() { std::ranges::sort(values, std::greater<float>(), &ValueCount::value); }

  // For when all kept values are known: what lies below the cut is not in the row any more.
  void reduce_to(const TruncationRow& row) {
    while (!values.empty() && values.back().value < row.cut) values.pop_back();
    sums[0] = sums[1] = 0;
    for (const ValueCount& entry : values) {
      const double below_max = static_cast<double>(entry.value) - static_cast<double>(row.max);
      sums[0] += entry.count * fixed_weight(below_max);
      sums[1] += entry.count * fixed_moment(below_max);
    }
  }
};

void cut_to_top_k(TruncationRow& row, const BestValues& best) {
  uint64_t count = 0;
  for (const ValueCount& entry : best.values) {
    if (count >= static_cast<uint64_t>(row.params->top_k)) break;
    row.cut = entry.value;
    count += entry.count;
  }
}

// How far the smallest set of nearest values with `target` mass reaches; nothing when that, or
// anything else that lies as near, is below what is known.
std::optional<uint32_t> farthest_of(const TruncationRow& row,
                                    const KeepOrder& order,
                                    BestValues& best,
                                    uint64_t target) {
  best.nearest.clear();
  for (const ValueCount& entry : best.values) {
    const double below_max = static_cast<double>(entry.value) - static_cast<double>(row.max);
    const uint64_t mass = entry.value < row.cut ? 0 : entry.count * fixed_weight(below_max);
    best.nearest.emplace_back(order.distance(entry.value), mass);
  }
  std::ranges::sort(best.nearest);
  uint64_t reached = 0;
  for (const auto& [distance, mass] : best.nearest) {
    reached += mass;
    if (reached < target) continue;
    if (std::max(order.lowest(distance), row.cut) < best.known_down_to) return std::nullopt;
    return distance;
  }
  return std::nullopt;
}

bool cut_to_top_p(TruncationRow& row, BestValues& best) {
  const KeepOrder order{row.max, 0.0};
  const auto farthest = farthest_of(row, order, best, mass_target(row.params->top_p, best.sums[0]));
  if (farthest) row.cut = std::max(row.cut, order.lowest(*farthest));
  return farthest.has_value();
}

bool cut_to_typical(TruncationRow& row, BestValues& best) {
  const KeepOrder order = typical_order(row, best.sums[0], best.sums[1]);
  const auto farthest =
      farthest_of(row, order, best, mass_target(row.params->typical_p, best.sums[0]));
  if (farthest) keep_around(row, order, *farthest);
  return farthest.has_value();
}

// Leaves on what reaches below the known values.
void settle(Filters& filters, BestValues& best) {
  TruncationRow& row = *filters.row;
  if (row.max == kMasked) {  // nothing to choose from
    filters.top_k = filters.top_p = filters.typical_p = false;
    return;
  }
  const bool knows_all_kept = filters.top_k || filters.top_p;
  best.sort();
  if (filters.top_k) {
    cut_to_top_k(row, best);
    best.reduce_to(row);
    filters.top_k = false;
  }
  if (filters.top_p && !cut_to_top_p(row, best)) return;
  filters.top_p = false;
  if (!filters.typical_p) return;
  apply_min_p(row);
  if (knows_all_kept) best.reduce_to(row);
  filters.typical_p = !cut_to_typical(row, best);
}

// This shard's words of the rows, one layout after the other.
std::vector<uint32_t> local_best(const std::vector<Filters*>& rows, RowScanner& scanner) {
  size_t num_keys = 0;
  size_t size = 0;
  for (const Filters* filters : rows) {
    num_keys += layout_of(*filters).num_values;
    size += layout_of(*filters).size();
  }
  std::vector<uint64_t> keys(num_keys);
  RowQuestions questions;
  questions.tops.reserve(rows.size());
  questions.sums.reserve(rows.size());
  std::span<uint64_t> left = keys;
  for (const Filters* filters : rows) {
    const GatherLayout layout = layout_of(*filters);
    const TruncationRow& row = *filters->row;
    questions.tops.push_back(
        {.row = row.row, .counts_last = true, .keys = left.first(layout.num_values)});
    left = left.subspan(layout.num_values);
    if (layout.num_sums > 0) questions.sums.push_back(sums_of(row, layout.num_sums > 1));
  }
  scanner.answer(questions);
  std::vector<uint32_t> words(size);
  size_t offset = 0;
  const SumQuestion* next = questions.sums.data();
  for (size_t i = 0; i < rows.size(); ++i) {
    const GatherLayout layout = layout_of(*rows[i]);
    const SumQuestion* sums = layout.num_sums > 0 ? next++ : nullptr;
    write_local_best(
        questions.tops[i], sums, layout, std::span(words).subspan(offset, layout.size()));
    offset += layout.size();
  }
  return words;
}

// Every rank settles the same rows from the same words.
void cut_by_gather(const std::vector<Filters*>& rows,
                   RowScanner& scanner,
                   ShardExchange& exchange) {
  if (rows.empty()) return;
  const std::vector<uint32_t> mine = local_best(rows, scanner);
  const auto num_shards = static_cast<size_t>(exchange.num_shards());
  std::vector<uint32_t> all(mine.size() * num_shards);
  exchange.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  size_t offset = 0;
  BestValues best;
  for (Filters* filters : rows) {
    const GatherLayout layout = layout_of(*filters);
    best.clear();
    for (size_t shard = 0; shard < num_shards; ++shard) {
      best.add_shard(layout, std::span(all).subspan(shard * mine.size() + offset, layout.size()));
    }
    settle(*filters, best);
    offset += layout.size();
  }
}

// ---- by radix selection
// ----------------------------------------------------------------------------------------

// The smallest distance whose set {token of the row : distance <= it} reaches a number of tokens or
// a share of the row's mass, found digit by digit over sharded rows: four SUMs of 256 bands a row,
// whatever the vocabulary. Tokens below the row's cut are not in it any more.
struct Selection {
  TruncationRow* row = nullptr;
  KeepOrder order;
  bool by_mass = false;
  float share = 0.0f;   // by mass
  uint64_t target = 0;  // tokens; by mass it is found on the way

  uint32_t farthest = 0;  // out; its leading digits on the way
  uint64_t reached = 0;   // before the band of `farthest`
};

void choose_band(Selection& selection, int digit, std::span<const uint64_t> bands) {
  const int shift = 8 * (kNumDigits - 1 - digit);
  if (digit == 0 && selection.by_mass) {
    uint64_t mass = 0;
    for (uint64_t band : bands) mass += band;
    selection.target = mass_target(selection.share, mass);
  }
  uint32_t chosen = 0;
  while (chosen + 1 < kNumBands && selection.reached + bands[chosen] < selection.target) {
    selection.reached += bands[chosen];
    ++chosen;
  }
  selection.farthest |= chosen << shift;
}

// In ascending order of rows.
void select_by_radix(std::vector<Selection>& selections,
                     RowScanner& scanner,
                     ShardExchange& exchange) {
  if (selections.empty()) return;
  std::vector<uint64_t> bands(selections.size() * kNumBands);
  RowQuestions questions;
  questions.bands.reserve(selections.size());
  for (size_t i = 0; i < selections.size(); ++i) {
    const Selection& selection = selections[i];
    questions.bands.push_back({.row = selection.row->row,
                               .cut = selection.row->cut,
                               .order = selection.order,
                               .by_mass = selection.by_mass,
                               .bands = std::span(bands).subspan(i * kNumBands, kNumBands)});
  }
  for (int digit = 0; digit < kNumDigits; ++digit) {
    for (size_t i = 0; i < selections.size(); ++i) {
      questions.bands[i].digit = digit;
      questions.bands[i].farthest = selections[i].farthest;
    }
    scanner.answer(questions);
    exchange.sum(bands);
    for (size_t i = 0; i < selections.size(); ++i) {
      choose_band(selections[i], digit, questions.bands[i].bands);
    }
  }
}

// top_p, or top_k when it is not by mass.
void cut_from_below(std::vector<Filters>& work,
                    bool by_mass,
                    RowScanner& scanner,
                    ShardExchange& exchange) {
  std::vector<Selection> selections;
  selections.reserve(work.size());
  for (const Filters& filters : work) {
    if (!(by_mass ? filters.top_p : filters.top_k)) continue;
    const SamplingParams& params = *filters.row->params;
    selections.push_back({.row = filters.row,
                          .order = {filters.row->max, 0.0},
                          .by_mass = by_mass,
                          .share = params.top_p,
                          .target = static_cast<uint64_t>(params.top_k)});
  }
  select_by_radix(selections, scanner, exchange);
  for (const Selection& selection : selections) {
    TruncationRow& row = *selection.row;
    row.cut = std::max(row.cut, selection.order.lowest(selection.farthest));
  }
}

// Mass and moment of what the other filters left, in one SUM, before the selection.
void cut_to_wide_typical(std::vector<Filters>& work, RowScanner& scanner, ShardExchange& exchange) {
  std::vector<Selection> selections;
  RowQuestions questions;
  selections.reserve(work.size());
  questions.sums.reserve(work.size());
  for (const Filters& filters : work) {
    TruncationRow& row = *filters.row;
    if (!filters.typical_p || row.max == kMasked) continue;
    selections.push_back({.row = &row, .by_mass = true, .share = row.params->typical_p});
    questions.sums.push_back(sums_of(row, true));
  }
  if (selections.empty()) return;
  scanner.answer(questions);
  std::vector<uint64_t> sums;
  sums.reserve(2 * questions.sums.size());
  for (const SumQuestion& answered : questions.sums) {
    sums.push_back(answered.mass);
    sums.push_back(answered.moment);
  }
  exchange.sum(sums);
  for (size_t i = 0; i < selections.size(); ++i) {
    selections[i].order = typical_order(*selections[i].row, sums[2 * i], sums[2 * i + 1]);
  }
  select_by_radix(selections, scanner, exchange);
  for (const Selection& selection : selections) {
    keep_around(*selection.row, selection.order, selection.farthest);
  }
}

}  // namespace

bool filters(const SamplingParams& params, int32_t vocab_size) {
  return has_top_k(params, vocab_size) || has_top_p(params) || has_min_p(params) ||
         has_typical_p(params);
}

void truncate(std::span<TruncationRow> rows,
              int32_t vocab_size,
              RowScanner& scanner,
              ShardExchange& exchange) {
  std::vector<Filters> work;
  work.reserve(rows.size());
  for (TruncationRow& row : rows) {
    const SamplingParams& params = *row.params;
    work.push_back({.row = &row,
                    .top_k = has_top_k(params, vocab_size),
                    .top_p = has_top_p(params),
                    .typical_p = has_typical_p(params)});
    if (!work.back().top_k && !work.back().top_p) apply_min_p(row);
  }
  std::vector<Filters*> gathered;
  gathered.reserve(work.size());
  for (Filters& filters : work) {
    if (is_gathered(filters)) gathered.push_back(&filters);
  }
  cut_by_gather(gathered, scanner, exchange);
  cut_from_below(work, false, scanner, exchange);
  cut_from_below(work, true, scanner, exchange);
  for (TruncationRow& row : rows) apply_min_p(row);
  cut_to_wide_typical(work, scanner, exchange);
}

}  // namespace outrider
