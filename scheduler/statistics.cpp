// See statistics.h.
#include "scheduler/statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace outrider {
namespace {

constexpr uint32_t kEveryNoise = 0xffffffffu;

// Tokens whose Gumbel noise may lift them from `value` over `best`: -log(u) >= 1 - u, so noise
// above t needs 1 - u < exp(-t). With y = ~bits, 1 - u = (y + 1/2) / 2^32: only y <= limit can win.
// The margin covers the rounding of the score to a float, so that skipping never changes the
// maximum. Returns -1 when none can.
int64_t winning_limit(float value, float best) {
  const double margin =
      1e-6 * (2.0 + std::abs(static_cast<double>(best)) + std::abs(static_cast<double>(value)));
  const double needed = static_cast<double>(best) - value - margin;
  if (!(needed > 0.0)) return kEveryNoise;  // also for infinities that cancel
  if (needed > kMaxGumbel) return -1;
  const double limit = exact_exp(-needed) * 4294967296.0 * 1.000001;
  return limit < 4294967295.0 ? static_cast<int64_t>(limit) : kEveryNoise;
}

// One shard's search for the best noisy token.
class DrawSearch {
 public:
  DrawSearch(const RowView& row, float cut, const NoiseKey& noise, uint64_t key_to_beat)
      : row_(row),
        cut_(cut),
        noise_(noise),
        best_key_(std::max(pack_key(kMasked, row.first_token), key_to_beat)),
        best_(key_score(best_key_)) {}

  void visit(int32_t begin, int32_t count, const float* values) {
    const RowKernels& kernels = row_kernels();
    const float top = exact_mul(kernels.range(values, count).max, row_.inverse_temperature);
    if (top < cut_ || top == kMasked) return;
    const int64_t limit = winning_limit(top, best_);
    if (limit < 0) return;
    alignas(64) uint32_t bits[kTileNoise];
    const auto first_token = static_cast<uint32_t>(row_.first_token + begin);
    const uint32_t skipped = first_token % 4;
    const auto num_blocks = static_cast<int32_t>((skipped + static_cast<uint32_t>(count) + 3) / 4);
    const uint32_t largest = kernels.noise(noise_, first_token / 4, num_blocks, bits);
    if (static_cast<int64_t>(~largest) > limit) return;
    if (best_ == kMasked) {
      try_top(begin, count, values, bits + skipped, top);
      try_luckiest(begin, count, values, bits + skipped, largest);
    }
    scan(begin, count, values, bits + skipped);
  }

  uint64_t best_key() const { return best_key_; }

 private:
  // Something to beat, so that the first tile is not looked at token by token.
  void try_top(int32_t begin, int32_t count, const float* values, const uint32_t* bits, float top) {
    const int32_t at = row_kernels().first_equal(values, count, row_.inverse_temperature, top);
    if (at < count) consider(begin + at, top, bits[at]);
  }

  // The same, for tiles in which many are about equally likely.
  void try_luckiest(
      int32_t begin, int32_t count, const float* values, const uint32_t* bits, uint32_t largest) {
    const auto at = static_cast<int32_t>(std::find(bits, bits + count, largest) - bits);
    if (at == count) return;  // it belongs to a neighbour of the tile
    const float scaled = exact_mul(values[at], row_.inverse_temperature);
    if (scaled >= cut_) consider(begin + at, scaled, bits[at]);
  }

  void scan(int32_t begin, int32_t count, const float* values, const uint32_t* bits) {
    alignas(64) uint8_t hit[kTileTokens];
    row_kernels().may_win(values, bits, count, {row_.inverse_temperature, cut_, bound()}, hit);
    for_each_hit(hit, count, [&](int32_t i) {
      const float scaled = exact_mul(values[i], row_.inverse_temperature);
      if (static_cast<int64_t>(~bits[i]) > winning_limit(scaled, best_)) return;
      consider(begin + i, scaled, bits[i]);
    });
  }

  void consider(int32_t index, float scaled, uint32_t bits) {
    const auto score = static_cast<float>(static_cast<double>(scaled) + gumbel_from_bits(bits));
    const uint64_t key = pack_key(score, row_.first_token + index);
    if (key <= best_key_) return;
    best_key_ = key;
    best_ = score;
  }

  // What noise must lift a value above, less the margin of winning_limit() for any value that can
  // get there, and less the rounding of this float.
  float bound() const {
    const auto best = static_cast<double>(best_);
    return static_cast<float>(best - 1e-6 * (64.0 + 3.0 * std::abs(best)));
  }

  const RowView& row_;
  const float cut_;
  const NoiseKey noise_;
  uint64_t best_key_;
  float best_;
};

}  // namespace

RowScan scan_row(const RowView& row) {
  const RowKernels& kernels = row_kernels();
  RowScan scan;
  uint32_t magnitude = 0;
  float best = kMasked;
  int32_t best_index = 0;
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    TileRange range = kernels.range(values, count);
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
  const RowKernels& kernels = row_kernels();
  const WeightScale scale{row.inverse_temperature, static_cast<double>(max), cut};
  uint64_t sum = 0;
  for_each_tile(row, [&](int32_t, int32_t count, const float* values) {
    const float top = exact_mul(kernels.range(values, count).max, row.inverse_temperature);
    if (top < cut || static_cast<double>(top) - scale.max < kNothingBelow) return;
    sum += kernel(values, count, scale);
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

uint64_t draw_key(const RowView& row, float cut, const NoiseKey& noise, uint64_t key_to_beat) {
  if (row.size == 0) return key_to_beat;
  DrawSearch search(row, cut, noise, key_to_beat);
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    search.visit(begin, count, values);
  });
  return search.best_key();
}

uint64_t noisy_key(double log_weight, int32_t token, const NoiseKey& noise) {
  const double gumbel = gumbel_from_bits(noise_bits(noise, token));
  return pack_key(static_cast<float>(log_weight + gumbel), token);
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
