// See draft_trials.h.
#include "scheduler/pacing/draft_trials.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "scheduler/pacing/constants.h"

namespace outrider {

double RoundRate::without_outlier(double seconds) {
  last_s_[num_seen_++ % last_s_.size()] = seconds;
  std::array<double, 9> sorted = last_s_;
  const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(num_seen_, last_s_.size()));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return std::min(seconds, pacing.outlier * *middle);
}

void RoundRate::add(double tokens, double seconds) {
  const double kept = 1 - 1 / pacing.rate_memory_rounds;
  const double counted_s = without_outlier(seconds);
  num_rounds_ = kept * num_rounds_ + 1;
  num_tokens_ = kept * num_tokens_ + tokens;
  seconds_ = kept * seconds_ + counted_s;
  tokens_tokens_ = kept * tokens_tokens_ + tokens * tokens;
  tokens_seconds_ = kept * tokens_seconds_ + tokens * counted_s;
  seconds_seconds_ = kept * seconds_seconds_ + counted_s * counted_s;
}

// Of a ratio of sums: the squares of tokens - value() * seconds.
double RoundRate::relative_error(int32_t num_sequences) const {
  if (num_tokens_ <= 0) return 1;
  const double rate = value();
  const double squares =
      std::max(0.0, tokens_tokens_ - 2 * rate * tokens_seconds_ + rate * rate * seconds_seconds_);
  const double seen = std::sqrt(squares) / num_tokens_;
  return seen + pacing.rate_doubt / (num_rounds_ * std::sqrt(static_cast<double>(num_sequences)));
}

int32_t DraftTrials::usual_size(int32_t num_sequences) {
  const auto doubled_square = 2 * static_cast<uint64_t>(num_sequences) * num_sequences;
  return 1 << ((std::bit_width(doubled_square) - 1) / 2);
}

// Of a size that was never measured. Drafts pay the less the more sequences there are.
DraftTrials::Arm DraftTrials::guess(int32_t size, Arm expected) const {
  const auto above = batches_.lower_bound(size);
  const bool smaller_idles = above != batches_.begin() && std::prev(above)->second.in_use == kIdle;
  return smaller_idles ? kIdle : expected;
}

DraftTrials::Batch& DraftTrials::batch_of(int32_t num_sequences, Arm expected) {
  const int32_t size = usual_size(num_sequences);
  const Arm guessed = guess(size, expected);
  const auto found = batches_.find(size);
  if (found != batches_.end() && !(found->second.idles_untried() && guessed == kWorking))
    return found->second;
  Batch begun;
  begun.in_use = guessed;
  // A draft that may not pay is not tried by jobs that are too short for its longest trial.
  const double longest_trial = pacing.warm_up_rounds + pacing.most_trial_rounds;
  begun.num_until_trial = std::llround(begun.in_use == kIdle ? longest_trial / pacing.trial_share
                                                             : pacing.rounds_before_trial);
  if (found != batches_.end()) begun.rates[kIdle] = found->second.rates[kIdle];
  return batches_.insert_or_assign(size, begun).first->second;
}

DraftTrials::Arm DraftTrials::arm(int32_t num_sequences, Arm expected) const {
  const int32_t size = usual_size(num_sequences);
  const auto own = batches_.find(size);
  const bool is_known = own != batches_.end() && !own->second.idles_untried();
  return is_known ? own->second.arm() : guess(size, expected);
}

bool DraftTrials::warms_up(int32_t num_sequences) const {
  const auto own = batches_.find(usual_size(num_sequences));
  return own == batches_.end() ||
         static_cast<double>(own->second.num_rounds) < pacing.warm_up_rounds;
}

const RoundRate* DraftTrials::rate(int32_t num_sequences, Arm arm) const {
  const auto own = batches_.find(usual_size(num_sequences));
  if (own == batches_.end() || own->second.rates[arm].num_rounds() == 0) return nullptr;
  return &own->second.rates[arm];
}

std::optional<double> DraftTrials::gain(int32_t num_sequences) const {
  const auto own = batches_.find(usual_size(num_sequences));
  if (own == batches_.end() || own->second.weight == 0) return std::nullopt;
  return std::exp(own->second.log_gain);
}

void DraftTrials::record_round(
    int32_t num_sequences, int32_t num_tokens, double seconds, Arm arm, Arm expected) {
  Batch& batch = batch_of(num_sequences, expected);
  if (arm != batch.arm()) return;
  const double tokens = static_cast<double>(num_tokens) / num_sequences;
  ++batch.num_rounds;
  if (batch.trying) {
    batch.trial_tokens += tokens;
    batch.trial_s += seconds;
  }
  if (arm == kWorking && static_cast<double>(batch.num_rounds) <= pacing.warm_up_rounds) return;
  RoundRate& rate = batch.rates[arm];
  rate.add(tokens, seconds);
  if (batch.trying) return judge(batch, num_sequences);
  const bool rejected_since =
      static_cast<double>(batch.num_rounds) >= pacing.rounds_between_trials &&
      rate.value() < pacing.fallen_rate * batch.rate_at_trial;
  if (rejected_since || batch.num_rounds >= batch.num_until_trial) begin_trial(batch);
}

void DraftTrials::begin_trial(Batch& batch) {
  batch.trying = true;
  batch.num_rounds = 0;
  batch.trial_tokens = 0;
  batch.trial_s = 0;
  batch.rates[batch.arm()] = {};
}

void DraftTrials::judge(Batch& batch, int32_t num_sequences) {
  const RoundRate& working = batch.rates[kWorking];
  const RoundRate& idle = batch.rates[kIdle];
  const RoundRate& tried = batch.rates[batch.arm()];
  const RoundRate& used = batch.rates[batch.in_use];
  const double num_measured =
      static_cast<double>(batch.num_rounds) - (batch.in_use == kIdle ? pacing.warm_up_rounds : 0);
  if (num_measured < pacing.least_trial_rounds) return;
  if (!(working.value() > 0 && idle.value() > 0)) return end_trial(batch, false);
  const double tried_error = tried.relative_error(num_sequences);
  const double used_error = used.relative_error(num_sequences);
  const double precision = 1 / (tried_error * tried_error + used_error * used_error);
  const double seen = std::log(working.value() / idle.value());
  const double before = std::min(batch.weight, pacing.earlier_trials_weight * precision);
  const double weight = before + precision;
  const double log_gain = (before * batch.log_gain + precision * seen) / weight;
  const double needed = num_sequences >= pacing.many_sequences ? std::log(pacing.gain_of_many) : 0;
  const double deviations = (log_gain - needed) * std::sqrt(weight);  // that drafts are ahead
  const bool is_certain = std::abs(deviations) >= pacing.certain_deviations;
  // More rounds help only as long as it is they that leave it open.
  if (!is_certain && num_measured < pacing.most_trial_rounds && tried_error > used_error) return;
  batch.log_gain = log_gain;
  batch.weight = weight;
  const double likely = pacing.certain_deviations / 2;
  end_trial(batch, batch.in_use == kWorking ? deviations < -likely : deviations > likely);
}

void DraftTrials::end_trial(Batch& batch, bool changes) {
  batch.trying = false;
  batch.num_rounds = 0;
  batch.num_confirmed = changes ? 0 : batch.num_confirmed + 1;
  if (changes) batch.in_use = batch.in_use == kIdle ? kWorking : kIdle;
  const RoundRate& used = batch.rates[batch.in_use];
  batch.rate_at_trial = used.value();
  // By the rounds of the trial that were not of the better kind.
  double num_lost = 0;
  if (used.value() > 0)
    num_lost = (batch.trial_s - batch.trial_tokens / used.value()) / used.round_s();
  // The first result may be of disturbed rounds, and is soon looked at again.
  const bool is_first = batch.num_confirmed <= 1;
  const double share = is_first ? pacing.first_trial_share : pacing.trial_share;
  const double least = pacing.rounds_between_trials * (is_first ? 1 : 2);
  batch.num_until_trial = std::llround(std::clamp(num_lost / share, least, 1e9));
}

}  // namespace outrider
