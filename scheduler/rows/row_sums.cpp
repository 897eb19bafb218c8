// See row_sums.h.
#include "scheduler/rows/row_sums.h"

#include <algorithm>

namespace outrider {

RowScan scan_row(const RowView& row, RowPeaks* peaks) {
  const RowKernels& kernels = row_kernels();
  RowScan scan;
  uint32_t magnitude = 0;
  float best = kMasked;
  int32_t best_index = 0;
  if (peaks != nullptr) peaks->resize(num_stretches(row.size));
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    const TileRange range =
        peaks != nullptr ? kernels.peaks(values, count, peaks->data() + begin / kStretchTokens)
                         : kernels.range(values, count);
    if (values != row.logits.behind() + begin) {
      // A masked or penalised value may hide a NaN, and a mask is not a fault: judge the raw tile.
      magnitude =
          std::max(magnitude, kernels.range(row.logits.behind() + begin, count).largest_magnitude);
    } else {
      magnitude = std::max(magnitude, range.largest_magnitude);
    }
    const float top = exact_mul(range.max, row.inverse_temperature);
    if (!(top > best)) return;
    best = top;
    best_index = begin + kernels.first_equal(values, count, row.inverse_temperature, top);
  });
  scan.bad = magnitude > bits_of(kLargestLogit);
  if (row.size > 0) scan.key = pack_key(best, row.first_token + best_index);
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

uint64_t row_mass(const RowView& row, float max, float cut) {
  RowPeaks peaks;
  find_peaks(row, peaks);
  return row_mass(row, peaks, max, cut);
}

uint64_t row_moment(const RowView& row, float max, float cut) {
  RowPeaks peaks;
  find_peaks(row, peaks);
  return row_moment(row, peaks, max, cut);
}

}  // namespace outrider
