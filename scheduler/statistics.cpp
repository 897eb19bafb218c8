// See statistics.h.
#include "scheduler/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

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
constexpr double kNothingBelow = -40.0;

using SumKernel = uint64_t (*)(const float* values, int32_t count, const WeightScale& scale);

uint64_t row_sum(const RowView& row, float max, float cut, SumKernel kernel) {
  const WeightScale scale{row.inverse_temperature, static_cast<double>(max), cut};
  uint64_t sum = 0;
  for_each_tile(row, [&](int32_t, int32_t count, const float* values) {
    std::array<float, kTileTokens / kStretchTokens> peaks;
    row_kernels().peaks(values, count, peaks.data());
    const auto weighs = [&](int32_t begin) {
      const float top =
          exact_mul(peaks[static_cast<size_t>(begin / kStretchTokens)], row.inverse_temperature);
      return !(top < cut || static_cast<double>(top) - scale.max < kNothingBelow);
    };
    // Neighbouring stretches together.
    for (int32_t begin = 0; begin < count;) {
      int32_t end = begin;
      while (end < count && weighs(end)) end += kStretchTokens;
      if (end > begin) sum += kernel(values + begin, std::min(end, count) - begin, scale);
      begin = std::max(end, begin + kStretchTokens);
    }
  });
  return sum;
}

}  // namespace

uint64_t row_mass(const RowView& row, float max, float cut) {
  return row_sum(row, max, cut, row_kernels().mass);
}

uint64_t row_moment(const RowView& row, float max, float cut) {
  return row_sum(row, max, cut, row_kernels().moment);
}

namespace {

float next_above(float value) { return from_ordered_bits(ordered_bits(value) + 1); }

// A value that `capacity` of the tile reach, or kMasked when the lanes do not tell.
float reached_by(const float* values, int32_t count, float scale, size_t capacity) {
  if (capacity > static_cast<size_t>(std::min(count, kLanes))) return kMasked;
  float lanes[kLanes];
  row_kernels().lane_max(values, count, scale, lanes);
  const auto last = static_cast<ptrdiff_t>(capacity) - 1;
  std::nth_element(lanes, lanes + last, lanes + kLanes, std::greater<float>());
  return lanes[last];
}

// The n best keys seen so far.
class TopSearch {
 public:
  TopSearch(const RowView& row, int32_t n)
      : row_(row), capacity_(static_cast<size_t>(std::clamp(n, 0, row.size))) {
    heap_.reserve(capacity_ + 1);
  }

  // largest: of the values.
  void visit(int32_t begin, int32_t count, const float* values, float largest) {
    const float scale = row_.inverse_temperature;
    // Later tokens lose ties, so an equal value cannot enter a full heap.
    if (capacity_ == 0 || (full() && !(exact_mul(largest, scale) > lowest()))) return;
    // Of equal values, of which there may be many, only the first count, and only while there is
    // room after those above.
    const float reached = full() ? lowest() : reached_by(values, count, scale, capacity_);
    alignas(64) uint8_t hit[kTileTokens];
    row_kernels().at_least(values, count, scale, next_above(reached), hit);
    for_each_hit(hit, count, [&](int32_t i) { offer(begin + i, exact_mul(values[i], scale)); });
    for (int32_t i = 0; i < count && !full(); ++i) {
      if (exact_mul(values[i], scale) == reached) offer(begin + i, reached);
    }
  }

  std::vector<uint64_t> best_first() && {
    std::sort(heap_.begin(), heap_.end(), std::greater<uint64_t>());
    return std::move(heap_);
  }

 private:
  bool full() const { return heap_.size() == capacity_; }
  float lowest() const { return key_score(heap_.front()); }

  void offer(int32_t index, float scaled) {
    const auto lowest_first = std::greater<uint64_t>();
    if (full()) {
      if (!(scaled > lowest())) return;
      std::pop_heap(heap_.begin(), heap_.end(), lowest_first);
      heap_.pop_back();
    }
    heap_.push_back(pack_key(scaled, row_.first_token + index));
    std::push_heap(heap_.begin(), heap_.end(), lowest_first);
  }

  const RowView& row_;
  const size_t capacity_;
  std::vector<uint64_t> heap_;  // the lowest of the best so far on top
};

}  // namespace

TopScan scan_top(const RowView& row, int32_t n) {
  const RowKernels& kernels = row_kernels();
  TopSearch search(row, n);
  uint32_t magnitude = 0;
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    const TileRange range = kernels.range(values, count);
    const bool raw = values == row.logits.behind() + begin;
    magnitude = std::max(magnitude,
                         raw ? range.largest_magnitude
                             : kernels.range(row.logits.behind() + begin, count).largest_magnitude);
    search.visit(begin, count, values, range.max);
  });
  return {.keys = std::move(search).best_first(), .bad = magnitude > bits_of(kLargestLogit)};
}

}  // namespace outrider
