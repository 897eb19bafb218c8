// See top_search.h.
#include "scheduler/top_search.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "scheduler/draw_search.h"

namespace outrider {
namespace {

class TopSearch {
 public:
  TopSearch(const RowView& row, int32_t n)
      : row_(row), capacity_(static_cast<size_t>(std::clamp(n, 0, row.size))) {
    keys_.reserve(capacity_ + kStretchTokens);
  }

  // The row's keys, best first. peaks: of this very row.
  std::vector<uint64_t> run(std::span<const float> peaks) && {
    // Above every key of its stretch: the greatest value with the first token. So stretches come by
    // the best that they may hold, and equal values in the order of their tokens.
    thread_local std::vector<uint64_t> bounds;
    bounds.clear();
    for (size_t i = 0; i < peaks.size(); ++i) {
      const auto begin = static_cast<int32_t>(i) * kStretchTokens;
      bounds.push_back(
          pack_key(exact_mul(peaks[i], row_.inverse_temperature), row_.first_token + begin));
    }
    std::make_heap(bounds.begin(), bounds.end());
    for (auto end = bounds.end(); capacity_ > 0 && end != bounds.begin(); --end) {
      const uint64_t bound = bounds.front();
      if (full() && bound <= keys_.back()) break;
      visit(key_token(bound) - row_.first_token);
      std::pop_heap(bounds.begin(), end);
    }
    return std::move(keys_);
  }

 private:
  bool full() const { return keys_.size() == capacity_; }

  // keys_ is sorted before and after it.
  void visit(int32_t begin) {
    const int32_t count = std::min(kStretchTokens, row_.size - begin);
    const float scale = row_.inverse_temperature;
    alignas(64) float patched[kStretchTokens];
    const float* values = processed_values(row_, begin, count, patched);
    const uint64_t to_beat = full() ? keys_.back() : 0;
    const float least = full() ? key_score(to_beat) : kMasked;
    alignas(64) uint8_t hit[kStretchTokens];
    row_kernels().at_least(values, count, scale, least, hit);
    const auto num_before = static_cast<ptrdiff_t>(keys_.size());
    for_each_hit(hit, count, [&](int32_t i) {
      const uint64_t key = pack_key(exact_mul(values[i], scale), row_.first_token + begin + i);
      if (key > to_beat) keys_.push_back(key);
    });
    const auto best_first = std::greater<uint64_t>();
    std::sort(keys_.begin() + num_before, keys_.end(), best_first);
    std::inplace_merge(keys_.begin(), keys_.begin() + num_before, keys_.end(), best_first);
    if (keys_.size() > capacity_) keys_.resize(capacity_);
  }

  const RowView& row_;
  const size_t capacity_;
  std::vector<uint64_t> keys_;  // the best seen so far, best first
};

}  // namespace

TopScan scan_top(const RowView& row, int32_t n) {
  const RowKernels& kernels = row_kernels();
  thread_local RowPeaks peaks;
  peaks.resize(num_stretches(row.size));
  uint32_t magnitude = 0;
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    const TileRange range = kernels.peaks(values, count, peaks.data() + begin / kStretchTokens);
    const bool raw = values == row.logits.behind() + begin;
    magnitude = std::max(magnitude,
                         raw ? range.largest_magnitude
                             : kernels.range(row.logits.behind() + begin, count).largest_magnitude);
  });
  return {.keys = TopSearch(row, n).run(peaks), .bad = magnitude > bits_of(kLargestLogit)};
}

}  // namespace outrider
