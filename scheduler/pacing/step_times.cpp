// See step_times.h.
#include "scheduler/pacing/step_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

constexpr int64_t kSeenOften = 2;

// The three bits after the first one: widths of 1/8 to 1/16 of the value.
int32_t bucket_of(int32_t num_rows) {
  const int width = static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows)));
  const int shift = std::max(0, width - 4);
  return 8 * shift + (num_rows >> shift);
}

double moved(double average, double value) {
  return average +
         (value < average ? pacing.faster_step_weight : pacing.average_weight) * (value - average);
}

}  // namespace

void StepTimes::add_probe(const StepLoad& load, double seconds) {
  probes_[load.num_rows] = seconds;
  for (int i = 0; i < kSeenOften; ++i) add(load, seconds);
}

void StepTimes::add(const StepLoad& load, double seconds) {
  Bucket& bucket = buckets_[bucket_of(load.num_rows)];
  ++num_added_;
  if (const double usual = probed(load.num_rows); usual > 0) {
    const double apart = kv_position_s() * static_cast<double>(load.kv_positions) +
                         row_position_s() * static_cast<double>(load.row_positions);
    pace_ = moved(pace_, std::max(0.0, seconds - apart) / usual);
  }
  const std::array<double, 2> positions = {static_cast<double>(load.kv_positions),
                                           static_cast<double>(load.row_positions)};
  if (bucket.num_seen == 0 || age(bucket) > pacing.step_memory) {
    bucket = {.rows = static_cast<double>(load.num_rows),
              .seconds = seconds,
              .positions = positions,
              .seconds_in_all = seconds};
  }
  slopes_.add({.kv_positions = positions[0] - bucket.positions[0],
               .row_positions = positions[1] - bucket.positions[1],
               .rows = load.num_rows - bucket.rows,
               .seconds = seconds - bucket.seconds_in_all});
  bucket.seconds_in_all += pacing.average_weight * (seconds - bucket.seconds_in_all);
  bucket.rows += pacing.average_weight * (load.num_rows - bucket.rows);
  // What the change of positions explains is no news about the rows.
  double expected = bucket.seconds;
  for (size_t i = 0; i < 2; ++i) {
    const double step = pacing.average_weight * (positions[i] - bucket.positions[i]);
    expected += slopes_.seconds()[i] * (positions[i] - bucket.positions[i]);
    bucket.seconds += slopes_.seconds()[i] * step;
    bucket.positions[i] += step;
  }
  bucket.seconds += moved(expected, seconds) - expected;
  bucket.last_seen = num_added_;
  ++bucket.num_seen;
  level();
}

void StepTimes::level() {
  levels_.clear();
  for (const auto& [key, bucket] : buckets_)
    levels_.push_back({key, known(bucket), bucket.rows, without_positions(bucket)});
}

bool StepTimes::known(const Bucket& bucket) const {
  return bucket.num_seen >= kSeenOften && age(bucket) <= pacing.step_memory;
}

double StepTimes::without_positions(const Bucket& bucket) const {
  const double seconds = bucket.seconds - kv_position_s() * bucket.positions[0] -
                         row_position_s() * bucket.positions[1];
  const double own = std::max(0.0, seconds);
  if (probes_.empty() || age(bucket) <= pacing.step_fresh) return own;
  return std::min(own, pace_ * probed(bucket.rows));
}

// On the line between the probes, level before the first and behind the last; 0 without any.
double StepTimes::probed(double num_rows) const {
  if (probes_.empty()) return 0;
  const auto above = probes_.lower_bound(static_cast<int32_t>(std::ceil(num_rows)));
  if (above == probes_.end()) return probes_.rbegin()->second;
  if (above == probes_.begin()) return above->second;
  const auto below = std::prev(above);
  const double share = (num_rows - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

// Through a bucket's average goes the line to the next known one on that side.
double StepTimes::of_rows(int32_t num_rows, double unseen) const {
  const int32_t key = bucket_of(num_rows);
  const auto own = std::ranges::lower_bound(levels_, key, {}, &Level::key);
  if (own == levels_.end() || own->key != key) return guess(num_rows, unseen);
  if (!own->known) {
    const double guessed = guess(num_rows, unseen);
    return guessed > 0 ? std::min(guessed, own->seconds) : own->seconds;
  }
  const Level* other = nullptr;
  if (num_rows > own->rows) {
    for (auto up = own + 1; up != levels_.end() && other == nullptr; ++up)
      if (up->known) other = &*up;
  } else {
    for (auto down = own; down != levels_.begin() && other == nullptr; --down)
      if ((down - 1)->known) other = &*(down - 1);
  }
  if (other == nullptr || std::abs(other->rows - own->rows) < 1) return own->seconds;
  const double slope = (other->seconds - own->seconds) / (other->rows - own->rows);
  return own->seconds + std::max(0.0, slope) * (num_rows - own->rows);
}

// From the nearest known below and above. A step's time curves upwards (memory first, arithmetic
// later), so beyond the largest the last two give the least that it can be.
double StepTimes::guess(int32_t num_rows, double unseen) const {
  const Level* second = nullptr;  // below `below`
  const Level* below = nullptr;
  const Level* above = nullptr;
  for (const Level& level : levels_) {
    if (!level.known || level.key == bucket_of(num_rows)) continue;
    if (level.rows < num_rows) second = std::exchange(below, &level);
    if (level.rows > num_rows && above == nullptr) above = &level;
  }
  if (below == nullptr && above == nullptr) return 0;
  if (below == nullptr) return above->seconds * num_rows / above->rows;  // at least
  const double from = below->seconds;
  if (above == nullptr && second == nullptr) return from;
  if (above == nullptr) {
    const double slope = (from - second->seconds) / (below->rows - second->rows);
    return from + std::max(0.0, slope) * (num_rows - below->rows);
  }
  const double share = (num_rows - below->rows) / (above->rows - below->rows);
  const double line = from + share * (above->seconds - from);
  return std::max(from, unseen * line);
}

double StepTimes::at(const StepLoad& load) const { return estimate(load, pacing.unseen_discount); }

double StepTimes::likely(const StepLoad& load) const { return estimate(load, 1); }

double StepTimes::estimate(const StepLoad& load, double unseen) const {
  // Never less than what fewer rows take. Where that was measured under worse conditions, the row
  // more looks free, is tried, and found out.
  double seconds = of_rows(load.num_rows, unseen);
  for (const Level& level : levels_) {
    if (level.rows < load.num_rows && level.known) seconds = std::max(seconds, level.seconds);
  }
  if (seconds == 0) return 0;
  return seconds + kv_position_s() * static_cast<double>(load.kv_positions) +
         row_position_s() * static_cast<double>(load.row_positions);
}

std::vector<double> StepTimes::range(const StepLoad& load,
                                     int32_t most_rows,
                                     double positions_per_row) const {
  std::vector<double> seconds;
  if (most_rows < load.num_rows) return seconds;
  seconds.reserve(static_cast<size_t>(most_rows - load.num_rows) + 1);
  const double further_s = row_position_s() * positions_per_row;
  // Only the ends of each bucket are worked out; between them it is nearly a line.
  int32_t rows = load.num_rows;
  while (rows <= most_rows) {
    int32_t end = rows;
    while (end < most_rows && bucket_of(end + 1) == bucket_of(rows)) ++end;
    const double first = at({rows, load.kv_positions, load.row_positions});
    const double last = at({end, load.kv_positions, load.row_positions});
    for (int32_t r = rows; r <= end; ++r) {
      const double share = end > rows ? static_cast<double>(r - rows) / (end - rows) : 0;
      const double further = first > 0 ? further_s * (r - load.num_rows) : 0;
      const double here = first + share * (last - first) + further;
      seconds.push_back(seconds.empty() ? here : std::max(here, seconds.back()));
    }
    rows = end + 1;
  }
  return seconds;
}

}  // namespace outrider
