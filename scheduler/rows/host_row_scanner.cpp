// See host_row_scanner.h.
#include "scheduler/rows/host_row_scanner.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "runtime/base/error.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/rows/top_search.h"

namespace outrider {
namespace {

// Fewer logits are looked at in about the time that a hand-over to other threads takes.
constexpr int64_t kWorthSpreading = 32768;

void answer_read(ReadQuestion& question) {
  float* out = question.values.data();
  for (int32_t row = 0; row < question.num_rows; ++row) {
    const float* logits = question.logits.behind() + row * question.stride;
    for (const int32_t index : question.index) *out++ = logits[index];
  }
}

RowView under(const RowView& row, float ceiling) {
  RowView kept = row;
  kept.ceiling = ceiling;
  return kept;
}

// Peaks are the row's own; under a lower ceiling, or with more masked, no value is higher, which is
// all that is asked of them.
void answer_about(const RowView& row, RowPeaks& peaks, ScanQuestion& question) {
  const RowScan scan = scan_row(row, peaks);
  question.bad = scan.bad;
  question.key =
      question.draws && !scan.bad ? draw_key(row, peaks, kMasked, question.noise) : scan.key;
}

void answer_about(const RowView& row, RowPeaks& peaks, SumQuestion& question) {
  const RowView kept = under(row, question.ceiling);
  if (peaks.empty()) find_peaks(row, peaks);
  question.mass = row_mass(kept, peaks, question.max, question.cut);
  if (question.wants_moment) question.moment = row_moment(kept, peaks, question.max, question.cut);
}

// ---- draws

struct Edits {
  std::vector<int32_t> index;
  std::vector<float> value;
};

// The row's own, and the `masked` ones; both ascending.
void join_edits(const RowView& row, std::span<const int32_t> masked, Edits& edits) {
  const std::span<const int32_t> own = row.edit_index;
  edits.index.clear();
  edits.value.clear();
  size_t next = 0;
  size_t next_masked = 0;
  while (next < own.size() || next_masked < masked.size()) {
    const bool is_masked =
        next_masked < masked.size() && (next == own.size() || masked[next_masked] <= own[next]);
    const int32_t index = is_masked ? masked[next_masked++] : own[next];
    edits.index.push_back(index);
    edits.value.push_back(is_masked ? kMasked : row.edit_value[next]);
    if (next < own.size() && own[next] == index) ++next;
  }
}

void answer_about(const RowView& row, RowPeaks& peaks, DrawQuestion& question) {
  if (peaks.empty()) find_peaks(row, peaks);
  RowView kept = under(row, question.ceiling);
  thread_local Edits edits;  // whose memory is kept
  if (!question.without.empty()) {
    join_edits(row, question.without, edits);
    kept.edit_index = edits.index;
    kept.edit_value = edits.value;
  }
  question.key = draw_key(kept, peaks, question.cut, question.noise, question.key_to_beat);
}

// ---- best tokens

uint32_t count_equal(const RowView& view, float value) {
  uint32_t count = 0;
  for_each_tile(view, [&](int32_t, int32_t tile_count, const float* values) {
    const float top =
        exact_mul(row_kernels().range(values, tile_count).max, view.inverse_temperature);
    if (top < value) return;
    for (int32_t i = 0; i < tile_count; ++i) {
      count += exact_mul(values[i], view.inverse_temperature) == value ? 1 : 0;
    }
  });
  return count;
}

void answer_about(const RowView& row, RowPeaks&, TopQuestion& question) {
  const RowView kept = under(row, question.ceiling);
  const size_t n = question.keys.size();
  const TopScan scan = scan_top(kept, question.keys, question.within);
  question.bad = scan.bad;
  question.keys = scan.keys;
  const bool has_last = !scan.bad && n > 0 && question.keys.size() == n;
  question.num_last =
      question.counts_last && has_last ? count_equal(kept, key_score(question.keys.back())) : 0;
}

// ---- bands

// Calls add(distance, amount) for the row's tokens at distances from `nearest` to `farthest`.
template <typename Add>
void for_each_distance(const RowView& row,
                       const BandQuestion& question,
                       uint32_t nearest,
                       uint32_t farthest,
                       Add&& add) {
  const KeepOrder& order = question.order;
  const WeightScale scale{row.inverse_temperature, static_cast<double>(order.max), question.cut};
  const float lowest = std::max(question.cut, order.lowest(farthest));
  for_each_tile(row, [&](int32_t, int32_t count, const float* values) {
    const float top = exact_mul(row_kernels().range(values, count).max, row.inverse_temperature);
    if (top < lowest) return;
    std::array<uint64_t, kTileTokens> weights;
    if (question.by_mass) row_kernels().weights(values, count, scale, weights.data());
    for (int32_t i = 0; i < count; ++i) {
      const float scaled = exact_mul(values[i], row.inverse_temperature);
      if (scaled < lowest) continue;
      const uint32_t distance = order.distance(scaled);
      if (distance < nearest || distance > farthest) continue;
      add(distance, question.by_mass ? weights[static_cast<size_t>(i)] : 1);
    }
  });
}

// Entries for which memory is kept, of each question: a flat row has as many as tokens.
constexpr size_t kKeptInside = 1024;

// Neighbours at one distance are one entry: most of a row may be so far away that all of it ties.
void add_inside(std::vector<BandQuestion::Entry>& inside, uint32_t distance, uint64_t amount) {
  if (!inside.empty() && inside.back().distance == distance) {
    inside.back().amount += amount;
  } else {
    inside.push_back({distance, amount});
  }
}

// Two passes over the row: into the bands of the first digit, then into a list of what lies in the
// chosen one.
void answer_about(const RowView& row, RowPeaks&, BandQuestion& question) {
  const std::span<uint64_t> bands = question.bands;
  std::fill(bands.begin(), bands.end(), 0);
  const int shift = 8 * (kNumDigits - 1 - question.digit);
  if (question.digit == 0) {
    for_each_distance(row, question, 0, kFarthest, [&](uint32_t distance, uint64_t amount) {
      bands[distance >> shift] += amount;
    });
    return;
  }
  if (question.digit == 1) {
    const uint32_t last = question.farthest | 0xffffffu;
    question.inside->clear();
    for_each_distance(
        row, question, question.farthest, last, [&](uint32_t distance, uint64_t amount) {
          add_inside(*question.inside, distance, amount);
        });
  }
  const uint32_t found = question.farthest >> (shift + 8);
  for (const BandQuestion::Entry& entry : *question.inside) {
    if (entry.distance >> (shift + 8) != found) continue;
    bands[(entry.distance >> shift) & 0xff] += entry.amount;
  }
  const bool is_over = question.digit == kNumDigits - 1;
  if (is_over && question.inside->capacity() > kKeptInside) *question.inside = {};
}

// ---- ranks

void answer_about(const RowView& row, RowPeaks&, RankQuestion& question) {
  const float* logits = row.logits.behind();
  const float value = question.value;
  const int32_t split = std::clamp(question.token - row.first_token, 0, row.size);
  uint64_t count = 0;
  for (int32_t i = 0; i < split; ++i) count += logits[i] >= value ? 1 : 0;
  for (int32_t i = split; i < row.size; ++i) count += logits[i] > value ? 1 : 0;
  question.num_before = count;
}

constexpr auto kRowOf = [](const auto& question) { return question.row; };

// Of the kinds that name a row, in the order in which a row's are answered.
template <typename Visit>
void for_each_kind(RowQuestions& questions, Visit&& visit) {
  visit(questions.scans);
  visit(questions.tops);
  visit(questions.sums);
  visit(questions.draws);
  visit(questions.bands);
  visit(questions.ranks);
}

}  // namespace

void HostRowScanner::hold(std::span<const RowView> rows) {
  rows_ = rows;
  if (peaks_.size() < rows.size()) peaks_.resize(rows.size());
  for (RowPeaks& peaks : peaks_) peaks.clear();
}

void HostRowScanner::answer(RowQuestions& questions) {
  for (ReadQuestion& question : questions.reads) answer_read(question);
  if (inside_.size() < questions.bands.size()) inside_.resize(questions.bands.size());
  for (size_t i = 0; i < questions.bands.size(); ++i) questions.bands[i].inside = &inside_[i];
  asked_.clear();
  for_each_kind(questions, [&](const auto& kind) {
    OUTRIDER_CHECK(std::ranges::is_sorted(kind, {}, kRowOf));
    std::ranges::transform(kind, std::back_inserter(asked_), kRowOf);
  });
  std::ranges::sort(asked_);
  asked_.erase(std::unique(asked_.begin(), asked_.end()), asked_.end());
  if (asked_.empty()) return;
  OUTRIDER_CHECK(asked_.front() >= 0 && static_cast<size_t>(asked_.back()) < rows_.size());
  int64_t num_logits = 0;
  for (const int32_t row : asked_) num_logits += rows_[static_cast<size_t>(row)].size;
  const auto body = [&](int64_t begin, int64_t end) {
    answer_rows(
        questions, asked_[static_cast<size_t>(begin)], asked_[static_cast<size_t>(end) - 1]);
  };
  if (num_logits < kWorthSpreading) return body(0, std::ssize(asked_));
  for_range(std::ssize(asked_), body);
}

void HostRowScanner::answer_rows(RowQuestions& questions, int32_t first, int32_t last) {
  for (int32_t row = first; row <= last; ++row) {
    const auto at = static_cast<size_t>(row);
    for_each_kind(questions, [&](auto& kind) {
      for (auto& question : std::ranges::equal_range(kind, row, {}, kRowOf))
        answer_about(rows_[at], peaks_[at], question);
    });
  }
}

}  // namespace outrider
