// See draft_length.h.
#include "scheduler/draft_length.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace outrider {
namespace {

constexpr int64_t kSeenOften = 2;
constexpr int64_t kMemory = 2000;  // rounds after which something is tried anew
constexpr double kUnseenDiscount = 0.9;
constexpr double kShorterWeight = 0.5;
constexpr double kLongerWeight = 0.1;
constexpr double kVerdictDecay = 0.998;
constexpr double kLeastStepS = 0.002;

// The three bits after the first one: widths of 1/8 to 1/16 of the value.
int32_t bucket_of(int32_t num_rows) {
  const int width = static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows)));
  const int shift = std::max(0, width - 4);
  return 8 * shift + (num_rows >> shift);
}

double moved(double average, double value) {
  return average + (value < average ? kShorterWeight : kLongerWeight) * (value - average);
}

}  // namespace

void RowCosts::add(int32_t num_rows, double seconds) {
  Bucket& bucket = buckets_[bucket_of(num_rows)];
  ++num_added_;
  if (bucket.num_seen == 0 || num_added_ - bucket.last_seen > kMemory) {
    bucket = {.rows = static_cast<double>(num_rows), .seconds = seconds};
  }
  bucket.rows += kLongerWeight * (num_rows - bucket.rows);
  bucket.seconds = moved(bucket.seconds, seconds);
  bucket.last_seen = num_added_;
  ++bucket.num_seen;
}

bool RowCosts::known(const Bucket& bucket) const {
  return bucket.num_seen >= kSeenOften && num_added_ - bucket.last_seen <= kMemory;
}

double RowCosts::at(int32_t num_rows) const {
  const auto found = buckets_.find(bucket_of(num_rows));
  if (found == buckets_.end()) return guess(num_rows);
  if (known(found->second)) return found->second.seconds;
  const double guessed = guess(num_rows);
  return guessed > 0 ? std::min(guessed, found->second.seconds) : found->second.seconds;
}

// From the nearest known below and above. A step's time curves upwards (memory first, arithmetic
// later), so beyond the largest the last two give the least that it can be.
double RowCosts::guess(int32_t num_rows) const {
  const Bucket* second = nullptr;  // below `below`
  const Bucket* below = nullptr;
  const Bucket* above = nullptr;
  for (const auto& [key, bucket] : buckets_) {
    if (!known(bucket) || key == bucket_of(num_rows)) continue;
    if (bucket.rows < num_rows) second = std::exchange(below, &bucket);
    if (bucket.rows > num_rows && above == nullptr) above = &bucket;
  }
  if (below == nullptr && above == nullptr) return 0;
  if (above == nullptr && second == nullptr) return below->seconds;
  if (above == nullptr) {
    const double slope = (below->seconds - second->seconds) / (below->rows - second->rows);
    return below->seconds + std::max(0.0, slope) * (num_rows - below->rows);
  }
  if (below == nullptr) return above->seconds * num_rows / above->rows;  // at the very least
  const double share = (num_rows - below->rows) / (above->rows - below->rows);
  const double line = below->seconds + share * (above->seconds - below->seconds);
  return std::max(below->seconds, kUnseenDiscount * line);
}

int32_t best_draft_len(const DraftCosts& costs, int32_t num_sequences, int32_t max_draft_len) {
  int32_t best = 0;
  double best_rate = 0;
  double expected_tokens = 0;
  double survival = 1;
  for (int32_t k = 0; k <= max_draft_len; ++k) {
    expected_tokens += survival;
    survival *= costs.acceptance;
    const double round_s = costs.steps.at(num_sequences * (k + 1)) + k * costs.draft_s;
    const double rate = round_s > 0 ? expected_tokens / round_s : 0;
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = k;
  }
  return best;
}

void DraftLength::note_round(int32_t num_rows, double seconds) {
  costs_.steps.add(num_rows, seconds);
  if (++num_rounds_undrafted_ <= kMemory) return;
  // Other texts may suit the draft better than those that made it lose.
  num_rounds_undrafted_ = 0;
  num_examined_ = 10;
  num_accepted_ = 7.5;
}

void DraftLength::note_wait(int32_t draft_len, double seconds) {
  const double each = seconds / draft_len;
  costs_.draft_s = costs_.draft_s == 0 ? each : moved(costs_.draft_s, each);
}

void DraftLength::note_verdict(int32_t num_drafted, int32_t num_accepted) {
  num_rounds_undrafted_ = 0;
  num_examined_ = kVerdictDecay * num_examined_ + std::min(num_drafted, num_accepted + 1);
  num_accepted_ = kVerdictDecay * num_accepted_ + num_accepted;
}

int32_t DraftLength::choose(int32_t num_sequences) const {
  if (num_sequences < 2 || costs_.steps.at(num_sequences) < kLeastStepS) return max_draft_len_;
  DraftCosts costs = costs_;
  costs.acceptance = num_accepted_ / num_examined_;
  return best_draft_len(costs, num_sequences, max_draft_len_);
}

}  // namespace outrider
