// See row_sums.h.
#include "scheduler/rows/row_sums.h"

#include <algorithm>

namespace outrider {

RowScan scan_row(const RowView& row, RowPeaks& peaks) {
  RowScan scan{.bad = !find_peaks(row, peaks)};
  if (row.size == 0) return scan;
  float best = kMasked;
  int32_t begin = 0;  // of the first stretch that has it
  for (size_t i = 0; i < peaks.size(); ++i) {
    const float top = exact_mul(peaks[i], row.inverse_temperature);
    if (!(top > best)) continue;
    best = top;
    begin = static_cast<int32_t>(i) * kStretchTokens;
  }
  alignas(64) float patched[kStretchTokens];
  const int32_t count = std::min(kStretchTokens, row.size - begin);
  const float* const values = processed_values(row, begin, count, patched);
  const int32_t at = row_kernels().first_equal(values, count, row.inverse_temperature, best);
  scan.key = pack_key(best, row.first_token + begin + at);
  return scan;
}

namespace {

// So far below the maximum weights and moments are 0 (fixed_weight, fixed_moment).
constexpr double kNothingBelow = -35.0;

using SumKernel = uint64_t (*)(const float* values, int32_t count, const WeightScale& scale);

uint64_t row_sum(
    const RowView& row, std::span<const float> peaks, float max, float cut, SumKernel kernel) {
  const WeightScale scale{row.inverse_temperature, static_cast<double>(max), cut};
  uint64_t sum = 0;
  const auto weighs = [&](int32_t begin) {
    const float top =
        exact_mul(peaks[static_cast<size_t>(begin / kStretchTokens)], row.inverse_temperature);
    return !(top < cut || static_cast<double>(top) - scale.max < kNothingBelow);
  };
  // Neighbouring stretches together, up to a tile.
  alignas(64) float patched[kTileTokens];
  for (int32_t begin = 0; begin < row.size;) {
    int32_t end = begin;
    while (end < row.size && end - begin < kTileTokens && weighs(end)) end += kStretchTokens;
    const int32_t count = std::min(end, row.size) - begin;
    if (count > 0) sum += kernel(processed_values(row, begin, count, patched), count, scale);
    begin = std::max(end, begin + kStretchTokens);
  }
  return sum;
}

}  // namespace

uint64_t row_mass(const RowView& row, std::span<const float> peaks, float max, float cut) {
  return row_sum(row, peaks, max, cut, row_kernels().mass);
}

uint64_t row_moment(const RowView& row, std::span<const float> peaks, float max, float cut) {
  return row_sum(row, peaks, max, cut, row_kernels().moment);
}

}  // namespace outrider
