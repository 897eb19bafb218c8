// See speedup_account.h.
#include "scheduler/pacing/speedup_account.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kStallFactor = 10;
constexpr size_t kNumRecent =
    33;  // half of them is how long a load that is so much slower misleads

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

double SpeedupTotals::bubble() const { return ratio(waited_s, round_s); }

double SpeedupTotals::hit_rate() const {
  return ratio(static_cast<double>(num_hits), static_cast<double>(num_lookups));
}

double SpeedupTotals::plain_tokens_per_s() const {
  return ratio(static_cast<double>(num_tokens), plain_s);
}

double SpeedupTotals::measured_speedup() const { return ratio(plain_s, compared_s); }

double SpeedupTotals::acceptance() const {
  return ratio(static_cast<double>(num_accepted), static_cast<double>(num_examined));
}

double SpeedupTotals::mean_draft_len() const {
  return ratio(static_cast<double>(num_drafted), static_cast<double>(num_drafts));
}

double SpeedupTotals::cost_ratio() const {
  const double draft_step_s = ratio(draft_busy_s, static_cast<double>(num_draft_steps));
  return ratio(draft_step_s, ratio(plain_steps_s, static_cast<double>(num_rounds)));
}

double SpeedupTotals::predicted_speedup() const {
  if (num_turns == 0) return 0;
  const double alpha = acceptance();
  const double draft_len = mean_draft_len();
  const double drafting = draft_len * cost_ratio();
  const double tokens =
      alpha < 1 ? (1 - std::pow(alpha, draft_len + 1)) / (1 - alpha) : draft_len + 1;
  const double ready = ratio(static_cast<double>(num_ready), static_cast<double>(num_drafts));
  const double with_draft = ready * std::max(1.0, drafting) + (1 - ready) * (1 + drafting);
  const double drafted = static_cast<double>(num_drafts) / static_cast<double>(num_turns);
  return (drafted * tokens + 1 - drafted) / (drafted * with_draft + 1 - drafted);
}

bool RecentRounds::is_stall(double round_s) {
  if (seconds_.size() < kNumRecent) seconds_.push_back(0);
  seconds_[next_] = round_s;
  next_ = (next_ + 1) % kNumRecent;
  // The upper of two: of the first rounds none is a stall for one that was quick.
  std::vector<double> sorted = seconds_;
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return round_s > kStallFactor * *middle;
}

void SpeedupAccount::record_round(const RoundRecord& round) {
  totals_.round_s += round.round_s;
  totals_.waited_s += round.waited_s;
  totals_.step_s += round.step_s;
  totals_.num_rows += round.load.num_rows;
  totals_.num_wasted_rows += round.num_drafted - round.num_accepted;
  if (round.reads_prompt || round.num_sequences <= 0 || recent_.is_stall(round.round_s)) return;
  // Before anything is known of plain steps this one is taken for one.
  const double plain_step_s = round.plain_step_s > 0 ? round.plain_step_s : round.step_s;
  const double overhead_s = std::max(0.0, round.round_s - round.waited_s - round.step_s);
  const double num_plain_rounds = static_cast<double>(round.num_tokens) / round.num_sequences;
  totals_.compared_s += round.round_s;
  totals_.plain_s += num_plain_rounds * (plain_step_s + overhead_s);
  totals_.plain_steps_s += plain_step_s;
  ++totals_.num_rounds;
  totals_.num_tokens += round.num_tokens;
  totals_.num_turns += round.num_sequences;
  totals_.num_drafts += round.num_drafts;
  totals_.num_ready += round.num_ready;
  totals_.num_drafted += round.num_drafted;
  totals_.num_examined += round.num_examined;
  totals_.num_accepted += round.num_accepted;
}

void SpeedupAccount::record_lookups(int64_t num_lookups, int64_t num_hits) {
  totals_.num_lookups += num_lookups;
  totals_.num_hits += num_hits;
}

void SpeedupAccount::record_draft(int64_t num_steps, double busy_s, double idle_s) {
  totals_.num_draft_steps += num_steps;
  totals_.draft_busy_s += busy_s;
  totals_.draft_idle_s += idle_s;
}

}  // namespace outrider
