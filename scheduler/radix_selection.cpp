// See radix_selection.h.
#include "scheduler/radix_selection.h"

#include <algorithm>
#include <array>
#include <span>

#include "scheduler/row_kernels.h"

namespace outrider {
namespace {

constexpr int kNumDigits = 4;
constexpr size_t kNumBins = 256;

// Calls add(distance, amount) for this shard's tokens at distances from `nearest` to `farthest`.
template <typename Add>
void for_each_distance(const Selection& selection, uint32_t nearest, uint32_t farthest, Add&& add) {
  const RowView& view = selection.view;
  const KeepOrder& order = selection.order;
  const WeightScale scale{view.inverse_temperature, static_cast<double>(order.max), selection.cut};
  const float lowest = std::max(selection.cut, order.lowest(farthest));
  for_each_tile(view, [&](int32_t, int32_t count, const float* values) {
    const float top = exact_mul(row_kernels().range(values, count).max, view.inverse_temperature);
    if (top < lowest) return;
    std::array<uint64_t, kTileTokens> weights;
    if (selection.by_mass) row_kernels().weights(values, count, scale, weights.data());
    for (int32_t i = 0; i < count; ++i) {
      const float scaled = exact_mul(values[i], view.inverse_temperature);
      if (scaled < lowest) continue;
      const uint32_t distance = order.distance(scaled);
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
    const uint32_t last = selection.farthest | 0xffffffu;
    for_each_distance(selection, selection.farthest, last, [&](uint32_t distance, uint64_t amount) {
      selection.inside.push_back({distance, amount});
    });
  }
  const uint32_t found = selection.farthest >> (shift + 8);
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
    selection.target = mass_target(selection.share, mass);
  }
  uint32_t chosen = 0;
  while (chosen + 1 < kNumBins && selection.reached + bins[chosen] < selection.target) {
    selection.reached += bins[chosen];
    ++chosen;
  }
  selection.farthest |= chosen << shift;
}

}  // namespace

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
}

}  // namespace outrider
