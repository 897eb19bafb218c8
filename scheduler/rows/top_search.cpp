// See top_search.h.
#include "scheduler/rows/top_search.h"

#include <algorithm>
#include <functional>

#include "scheduler/rows/draw_search.h"

namespace outrider {
namespace {

// Memory that is kept from row to row.
struct Scratch {
  RowPeaks peaks;
  std::vector<uint64_t> bounds;
  std::vector<uint64_t> merged;
  std::vector<uint64_t> keys;  // the best seen so far, best first
};

class TopSearch {
 public:
  TopSearch(const RowView& row, size_t n, Scratch& scratch)
      : row_(row), capacity_(std::min(n, static_cast<size_t>(row.size))), scratch_(scratch) {
    keys_.clear();
    keys_.reserve(2 * capacity_ + kStretchTokens);
  }

  // Fills scratch.keys.
  void run(float within) {
    if (capacity_ == 0) return;
    float top = kMasked;
    for (const float peak : scratch_.peaks) top = std::max(top, peak);
    floor_ = exact_mul(top, row_.inverse_temperature) - within;
    if (!take_all_near()) take_by_stretch();
  }

 private:
  bool full() const { return keys_.size() == capacity_; }
  float scaled_peak(size_t stretch) const {
    return exact_mul(scratch_.peaks[stretch], row_.inverse_temperature);
  }

  // All that lie above the floor, when they are few: the usual case where there is one.
  bool take_all_near() {
    if (!(floor_ > kMasked)) return false;
    for (size_t i = 0; i < scratch_.peaks.size(); ++i) {
      if (scaled_peak(i) < floor_) continue;
      const auto begin = static_cast<int32_t>(i) * kStretchTokens;
      const int32_t count = std::min(kStretchTokens, row_.size - begin);
      alignas(64) float patched[kStretchTokens];
      add_hits(begin, count, processed_values(row_, begin, count, patched), floor_, 0);
      if (keys_.size() > capacity_ + kStretchTokens) {
        keys_.clear();
        return false;
      }
    }
    std::sort(keys_.begin(), keys_.end(), std::greater<uint64_t>());
    cut_to_capacity();
    return true;
  }

  void take_by_stretch() {
    // Above every key of its stretch: the greatest value with the first token. So stretches come by
    // the best that they may hold, and equal values in the order of their tokens.
    std::vector<uint64_t>& bounds = scratch_.bounds;
    bounds.clear();
    for (size_t i = 0; i < scratch_.peaks.size(); ++i) {
      const auto begin = static_cast<int32_t>(i) * kStretchTokens;
      bounds.push_back(pack_key(scaled_peak(i), row_.first_token + begin));
    }
    std::make_heap(bounds.begin(), bounds.end());
    for (auto end = bounds.end(); end != bounds.begin(); --end) {
      const uint64_t bound = bounds.front();
      if (key_score(bound) < floor_ || (full() && bound <= keys_.back())) break;
      visit(key_token(bound) - row_.first_token);
      std::pop_heap(bounds.begin(), end);
    }
  }

  // keys_ is sorted before and after it.
  void visit(int32_t begin) {
    const int32_t count = std::min(kStretchTokens, row_.size - begin);
    alignas(64) float patched[kStretchTokens];
    const float* values = processed_values(row_, begin, count, patched);
    const uint64_t to_beat = full() ? keys_.back() : 0;
    const float least = full() ? std::max(floor_, key_score(to_beat)) : floor_;
    const auto num_before = static_cast<ptrdiff_t>(keys_.size());
    add_hits(begin, count, values, least, to_beat);
    if (keys_.size() > static_cast<size_t>(num_before) + capacity_) {
      keys_.resize(static_cast<size_t>(num_before));
      add_few(begin, count, values, to_beat);
    }
    const auto best_first = std::greater<uint64_t>();
    std::sort(keys_.begin() + num_before, keys_.end(), best_first);
    if (num_before == 0) return cut_to_capacity();
    scratch_.merged.resize(keys_.size());
    std::merge(keys_.begin(),
               keys_.begin() + num_before,
               keys_.begin() + num_before,
               keys_.end(),
               scratch_.merged.begin(),
               best_first);
    keys_.assign(scratch_.merged.begin(), scratch_.merged.end());
    cut_to_capacity();
  }
  void cut_to_capacity() {
    if (keys_.size() > capacity_) keys_.resize(capacity_);
  }

  uint64_t key_of(int32_t begin, int32_t i, const float* values) const {
    return pack_key(exact_mul(values[i], row_.inverse_temperature), row_.first_token + begin + i);
  }

  void add_hits(int32_t begin, int32_t count, const float* values, float least, uint64_t to_beat) {
    alignas(64) uint8_t hit[kStretchTokens];
    row_kernels().at_least(values, count, row_.inverse_temperature, least, hit);
    for_each_hit(hit, count, [&](int32_t i) {
      const uint64_t key = key_of(begin, i, values);
      if (key > to_beat) keys_.push_back(key);
    });
  }

  // Of a stretch with more than are wanted. Of equal values, of which there may be many, the first.
  void add_few(int32_t begin, int32_t count, const float* values, uint64_t to_beat) {
    float scaled[kStretchTokens];
    for (int32_t i = 0; i < count; ++i) scaled[i] = exact_mul(values[i], row_.inverse_temperature);
    const auto last = static_cast<ptrdiff_t>(capacity_) - 1;
    std::nth_element(scaled, scaled + last, scaled + count, std::greater<float>());
    const float least = scaled[last];
    const size_t most = keys_.size() + capacity_;
    add_hits(begin, count, values, from_ordered_bits(ordered_bits(least) + 1), to_beat);
    for (int32_t i = 0; i < count && keys_.size() < most; ++i) {
      if (exact_mul(values[i], row_.inverse_temperature) != least) continue;
      if (key_of(begin, i, values) > to_beat) keys_.push_back(key_of(begin, i, values));
    }
  }

  const RowView& row_;
  const size_t capacity_;
  Scratch& scratch_;
  std::vector<uint64_t>& keys_ = scratch_.keys;
  float floor_ = kMasked;
};

}  // namespace

TopScan scan_top(const RowView& row, std::span<uint64_t> memory, float within) {
  thread_local Scratch scratch;
  const bool bad = !find_peaks(row, scratch.peaks);
  TopSearch(row, memory.size(), scratch).run(within);
  std::ranges::copy(scratch.keys, memory.begin());
  return {.keys = memory.first(scratch.keys.size()), .bad = bad};
}

}  // namespace outrider
