// See draw_search.h.
#include "scheduler/rows/draw_search.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr uint32_t kEveryNoise = 0xffffffffu;
constexpr size_t kMostTogether = kTileTokens / kStretchTokens;

// By how much noise must lift a token from `value` over `best`. The margin covers the rounding of
// the score to a float, so that skipping never changes the maximum.
double needed_noise(float value, float best) {
  const double margin =
      1e-6 * (2.0 + std::abs(static_cast<double>(best)) + std::abs(static_cast<double>(value)));
  return static_cast<double>(best) - value - margin;
}

// Of a token that noise may lift: -log(u) >= 1 - u, so noise above t needs 1 - u < exp(-t). With y
// = ~bits, 1 - u = (y + 1/2) / 2^32: only y <= limit can win.
int64_t winning_limit(double needed) {
  if (!(needed > 0.0)) return kEveryNoise;  // also for infinities that cancel
  if (needed > kMaxGumbel) return -1;
  const double limit = exact_exp(-needed) * 4294967296.0 * 1.000001;
  return limit < 4294967295.0 ? static_cast<int64_t>(limit) : kEveryNoise;
}

class DrawSearch {
 public:
  DrawSearch(const RowView& row,
             std::span<const float> peaks,
             float cut,
             const NoiseKey& noise,
             uint64_t key_to_beat)
      : row_(row),
        peaks_(peaks),
        cut_(cut),
        noise_(noise),
        best_key_(std::max(pack_key(kMasked, row.first_token), key_to_beat)),
        best_(key_score(best_key_)) {}

  // From the highest stretch, so that there is much to beat, then in order; neighbours together.
  uint64_t run() {
    const auto highest =
        static_cast<size_t>(std::max_element(peaks_.begin(), peaks_.end()) - peaks_.begin());
    if (may_win(highest)) visit(highest, highest + 1);
    for (size_t begin = 0; begin < peaks_.size();) {
      size_t end = begin;
      while (end < peaks_.size() && end - begin < kMostTogether && end != highest && may_win(end))
        ++end;
      if (end > begin) visit(begin, end);
      begin = std::max(end, begin + 1);
    }
    return best_key_;
  }

 private:
  float scaled_peak(size_t stretch) const {
    return exact_mul(peaks_[stretch], row_.inverse_temperature);
  }
  bool may_win(size_t stretch) const {
    const float top = scaled_peak(stretch);
    return !(top < cut_) && top != kMasked && !(needed_noise(top, best_) > kMaxGumbel);
  }

  void visit(size_t first, size_t end) {
    const auto begin = static_cast<int32_t>(first) * kStretchTokens;
    const int32_t count = std::min(static_cast<int32_t>(end) * kStretchTokens, row_.size) - begin;
    float top = scaled_peak(first);
    for (size_t i = first + 1; i < end; ++i) top = std::max(top, scaled_peak(i));
    alignas(64) uint32_t bits[kTileNoise];
    const auto first_token = static_cast<uint32_t>(row_.first_token + begin);
    const uint32_t skipped = first_token % 4;
    const auto num_blocks = static_cast<int32_t>((skipped + static_cast<uint32_t>(count) + 3) / 4);
    const uint32_t largest = row_kernels().noise(noise_, first_token / 4, num_blocks, bits);
    if (static_cast<int64_t>(~largest) > winning_limit(needed_noise(top, best_))) return;
    alignas(64) float patched[kTileTokens];
    const float* values = processed_values(row_, begin, count, patched);
    if (best_ == kMasked) {
      try_top(begin, count, values, bits + skipped, top);
      try_luckiest(begin, count, values, bits + skipped, largest);
    }
    scan(begin, count, values, bits + skipped);
  }

  // Something to beat, so that the first stretch is not looked at token by token.
  void try_top(int32_t begin, int32_t count, const float* values, const uint32_t* bits, float top) {
    const int32_t at = row_kernels().first_equal(values, count, row_.inverse_temperature, top);
    if (at < count) consider(begin + at, top, bits[at]);
  }

  // The same, for stretches in which many are about equally likely.
  void try_luckiest(
      int32_t begin, int32_t count, const float* values, const uint32_t* bits, uint32_t largest) {
    const auto at = static_cast<int32_t>(std::find(bits, bits + count, largest) - bits);
    if (at == count) return;  // it belongs to a neighbour
    const float scaled = exact_mul(values[at], row_.inverse_temperature);
    if (scaled >= cut_) consider(begin + at, scaled, bits[at]);
  }

  void scan(int32_t begin, int32_t count, const float* values, const uint32_t* bits) {
    alignas(64) uint8_t hit[kTileTokens];
    row_kernels().may_win(values, bits, count, {row_.inverse_temperature, cut_, bound()}, hit);
    for_each_hit(hit, count, [&](int32_t i) {
      const float scaled = exact_mul(values[i], row_.inverse_temperature);
      if (static_cast<int64_t>(~bits[i]) > winning_limit(needed_noise(scaled, best_))) return;
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

  // What noise must lift a value above, less the margin of needed_noise() for any value that can
  // get there, and less the rounding of this float.
  float bound() const {
    const auto best = static_cast<double>(best_);
    return static_cast<float>(best - 1e-6 * (64.0 + 3.0 * std::abs(best)));
  }

  const RowView& row_;
  const std::span<const float> peaks_;
  const float cut_;
  const NoiseKey noise_;
  uint64_t best_key_;
  float best_;
};

}  // namespace

uint64_t draw_key(const RowView& row,
                  std::span<const float> peaks,
                  float cut,
                  const NoiseKey& noise,
                  uint64_t key_to_beat) {
  if (row.size == 0) return key_to_beat;
  return DrawSearch(row, peaks, cut, noise, key_to_beat).run();
}

bool find_peaks(const RowView& row, RowPeaks& peaks) {
  const RowKernels& kernels = row_kernels();
  peaks.resize((static_cast<size_t>(row.size) + kStretchTokens - 1) / kStretchTokens);
  uint32_t magnitude = 0;
  for_each_tile(row, [&](int32_t begin, int32_t count, const float* values) {
    TileRange range = kernels.peaks(values, count, peaks.data() + begin / kStretchTokens);
    // A masked or penalised value may hide a NaN, and a mask is not a fault: judge the raw tile.
    const float* const raw = row.logits.behind() + begin;
    if (values != raw) range = kernels.range(raw, count);
    magnitude = std::max(magnitude, range.largest_magnitude);
  });
  return magnitude <= bits_of(kLargestLogit);
}

uint64_t noisy_key(double log_weight, int32_t token, const NoiseKey& noise) {
  const double gumbel = gumbel_from_bits(noise_bits(noise, token));
  return pack_key(static_cast<float>(log_weight + gumbel), token);
}

}  // namespace outrider
