// See speculation.h.
#include "scheduler/speculation.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace outrider {
namespace {

constexpr double kAverageWeight = 0.1;
constexpr double kHitWeight = 0.05;
// Rounds that count.
constexpr double kPriceMemory = 64;
constexpr double kVerdictMemory = 4000;
constexpr double kRoundsForPrice = 8;
constexpr double kRoundsForVerdict = 24;
constexpr double kRoundsForQuickVerdict = 6;
constexpr double kClearlyWorse = 0.7;
// The draft is idle when it makes the job slower than this share of plain decoding.
constexpr double kTolerance = 0.99;
// A try that fails may take this share of the time until the next one.
constexpr double kShareOfTries = 0.005;
constexpr double kShortestPause = 256;
constexpr double kLongestPause = 65536;
// How often rounds with an idle draft are measured again, where it could matter.
constexpr int64_t kCheckAfter = 1024;
constexpr int64_t kCheckRounds = 8;
constexpr double kCheckBelow = 1.3;
// Without probes: when, and for how many rounds, a batch of a new size runs with an idle draft.
constexpr int64_t kMeasureAfter = 16;
constexpr int64_t kMeasureRounds = 4;
// Before anything was measured.
constexpr int32_t kBlindDraftLen = 4;

void update(double* average, double value, double weight) {
  *average = *average == 0 ? value : (1 - weight) * *average + weight * value;
}

}  // namespace

void Speculation::Rate::add(double tokens, double round_s, double plain_round_s, double memory) {
  const double kept = 1 - 1 / memory;
  num_rounds = kept * num_rounds + 1;
  num_tokens = kept * num_tokens + tokens;
  squares = kept * squares + tokens * tokens;
  seconds = kept * seconds + round_s;
  plain_s = kept * plain_s + plain_round_s;
}

double Speculation::Rate::relative_error() const {
  if (num_tokens <= 0) return 1;
  const double mean = num_tokens / num_rounds;
  const double variance = std::max(0.0, squares / num_rounds - mean * mean);
  return std::sqrt(variance / num_rounds) / mean;
}

Speculation::Speculation(const Config& config) : config_(config) {}

int32_t Speculation::class_of(int32_t num_sequences) {
  return static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(num_sequences)));
}

const Speculation::Batch* Speculation::batch_of(int32_t num_sequences) const {
  const auto found = batches_.find(class_of(num_sequences));
  return found == batches_.end() ? nullptr : &found->second;
}

void Speculation::note_probe(const StepLoad& load, double seconds) {
  probed_ = true;
  for (StepCosts* steps : {&idle_steps_, &working_steps_}) {
    // The shortest of several steps: as good as seen often.
    steps->add(load, seconds);
    steps->add(load, seconds);
  }
}

void Speculation::note_verdict(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted) {
  survival_.note_verdict(sequence_id, num_drafted, num_accepted);
  evidence_ = evidence_ || num_drafted > 0;
}

void Speculation::note_shadow(uint64_t sequence_id, bool stood) {
  survival_.note_shadow(sequence_id, stood);
  evidence_ = true;
}

void Speculation::note_lookup(bool all_stood, bool hit, int32_t num_prepared) {
  double* average = all_stood ? &hit_if_all_stand_ : &hit_if_not_;
  *average += kHitWeight * ((hit ? 1 : 0) - *average);
  if (hit) update(&num_prepared_, num_prepared, kHitWeight);
}

void Speculation::note_first_tokens(double seconds, int32_t num_sequences, double num_tokens) {
  const double beside = std::max(0.0, seconds - num_tokens * draft_token_s(num_sequences));
  link_s_ += kAverageWeight * (beside - link_s_);
}

void Speculation::note_draft_work(uint32_t num_steps, uint32_t num_rows, double seconds) {
  if (num_steps == 0 || !(seconds >= 0)) return;
  const auto rows = static_cast<int32_t>(std::max(1u, num_rows / num_steps));
  draft_steps_.add({.num_rows = rows}, seconds / num_steps);
}

double Speculation::draft_token_s(int32_t num_sequences) const {
  return draft_steps_.at({.num_rows = std::max(1, num_sequences)});
}

double Speculation::plain_round_s(const StepLoad& load) const {
  const double step_s = idle_steps_.at(load);
  return step_s == 0 ? 0 : idle_bias_ * (step_s + overhead_s_);
}

void Speculation::note_round(const RoundFacts& facts) {
  if (!evidence_) survival_.note_nothing();
  evidence_ = false;
  if (facts.has_prompts || facts.num_sequences == 0) return;
  StepCosts& steps = facts.draft_worked ? working_steps_ : idle_steps_;
  steps.add(facts.load, facts.step_s);
  const double outside_s = std::max(0.0, facts.total_s - facts.wait_s - facts.step_s);
  // With the draft at work some of it is the draft's.
  if (!facts.draft_worked || !seen_idle_) update(&overhead_s_, outside_s, kAverageWeight);
  seen_idle_ = seen_idle_ || !facts.draft_worked;
  StepLoad plain = facts.load;  // what the round would have been
  plain.row_positions = plain.row_positions * facts.num_sequences / std::max(1, plain.num_rows);
  plain.num_rows = facts.num_sequences;
  const double plain_s = plain_round_s(plain);
  Batch& batch = batches_[class_of(facts.num_sequences)];
  if (!facts.draft_worked && config_.has_worker) return note_idle(batch, facts, plain_s);
  const double tokens = static_cast<double>(facts.num_tokens) / facts.num_sequences;
  batch.recent.add(tokens, facts.total_s, plain_s, kPriceMemory);
  if (!config_.has_worker) return;
  batch.working.add(tokens, facts.total_s, plain_s, kVerdictMemory);
  ++batch.num_rounds_working;
  if (batch.measured || probed_) return judge(batch);
  if (batch.num_rounds_working >= kMeasureAfter) batch.num_rounds_idle_left = kMeasureRounds;
}

void Speculation::note_idle(Batch& batch, const RoundFacts& facts, double plain_s) {
  if (plain_s > 0) {
    idle_bias_ +=
        kAverageWeight * (idle_bias_ * (facts.total_s - facts.wait_s) / plain_s - idle_bias_);
    idle_bias_ = std::clamp(idle_bias_, 0.5, 2.0);
  }
  if (batch.num_rounds_idle_left == 0 || --batch.num_rounds_idle_left > 0) return;
  batch.num_rounds_working = 0;
  if (!batch.measured && !probed_) {
    batch.recent.plain_s = batch.recent.num_rounds * plain_s;
    batch.working.plain_s = batch.working.num_rounds * plain_s;
  }
  batch.measured = true;
  if (!batch.lost) return;
  batch.lost = false;
  batch.working = {};
  batch.recent = {};
}

// Beyond what chance explains, or soon when it is much.
bool Speculation::loses(const Rate& rate, double num_deviations) {
  if (rate.num_rounds < kRoundsForQuickVerdict) return false;
  const double at_best = rate.against_plain() * (1 + num_deviations * rate.relative_error());
  return at_best < (rate.num_rounds < kRoundsForVerdict ? kClearlyWorse : kTolerance);
}

void Speculation::judge(Batch& batch) {
  const bool lost_of_late = loses(batch.recent, 3);
  if (lost_of_late || loses(batch.working, 2)) {
    const Rate& rate = lost_of_late ? batch.recent : batch.working;
    const double num_lost = rate.seconds * rate.num_rounds / rate.plain_s - rate.num_tokens;
    batch.lost = true;
    batch.num_rounds_idle_left =
        static_cast<int64_t>(std::clamp(num_lost / kShareOfTries, kShortestPause, kLongestPause));
  } else if (batch.num_rounds_working >= kCheckAfter) {
    batch.num_rounds_working = 0;
    if (batch.recent.against_plain() < kCheckBelow) batch.num_rounds_idle_left = kCheckRounds;
  }
}

// Tokens per second if this round went with what is at hand, and all to come like it, as far as
// their blocks will be prepared. The rate that was made says less while waits that do not pay still
// keep it low.
double Speculation::rate_of_going(const RoundOutlook& outlook,
                                  const GoodputInputs& inputs,
                                  StepLoad load) const {
  double num_tokens = 0;
  for (size_t i = 0; i < outlook.sequences.size(); ++i) {
    const SequenceOutlook& one = outlook.sequences[i];
    const int32_t num_rows = std::min(one.num_at_hand, one.limit);
    double expected = 1;
    for (int32_t j = 0; j < num_rows; ++j) expected += inputs.survival[i][static_cast<size_t>(j)];
    const double all = num_rows > 0 ? inputs.survival[i][static_cast<size_t>(num_rows) - 1] : 1.0;
    num_tokens += expected * (all * inputs.hit_if_all_stand + (1 - all) * inputs.hit_if_not);
    load.num_rows += num_rows;
  }
  const double step_s = inputs.steps->at(load);
  return step_s > 0 ? num_tokens / (step_s + overhead_s_) : 0;
}

RoundChoice Speculation::choose(const RoundOutlook& outlook) const {
  const auto num_sequences = static_cast<int32_t>(outlook.sequences.size());
  if (num_sequences == 0) return {};
  const Batch* batch = batch_of(num_sequences);
  const bool any_fixed = std::any_of(outlook.sequences.begin(),
                                     outlook.sequences.end(),
                                     [](const SequenceOutlook& one) { return one.fixed; });
  const bool works = any_fixed || batch == nullptr || batch->num_rounds_idle_left == 0;
  GoodputInputs inputs;
  StepLoad plain{.num_rows = num_sequences};
  for (const SequenceOutlook& sequence : outlook.sequences) {
    inputs.survival.push_back(survival_.curve(sequence.sequence_id, config_.longest_draft_len));
    plain.kv_positions += sequence.num_context;
  }
  plain.row_positions = plain.kv_positions;
  const double plain_s = plain_round_s(plain);
  inputs.steps = works ? &working_steps_ : &idle_steps_;
  inputs.price = plain_s > 0 ? num_sequences / plain_s : 0;
  if (batch != nullptr && batch->recent.num_rounds >= kRoundsForPrice)
    inputs.price = std::max(inputs.price, num_sequences * batch->recent.value());
  inputs.token_s = draft_token_s(num_sequences);
  inputs.first_token_s = link_s_ + inputs.token_s;
  inputs.hit_if_all_stand = hit_if_all_stand_;
  inputs.hit_if_not = hit_if_not_;
  inputs.num_prepared = static_cast<int32_t>(num_prepared_);
  if (inputs.price > 0)
    inputs.price = std::max(inputs.price, rate_of_going(outlook, inputs, plain));
  RoundOutlook seen = outlook;
  for (SequenceOutlook& sequence : seen.sequences) {
    sequence.limit = std::min(sequence.limit, config_.longest_draft_len);
    if (inputs.price == 0 && !sequence.fixed)
      sequence.limit = std::min(sequence.limit, kBlindDraftLen);
  }
  seen.may_wait = seen.may_wait && works;
  RoundChoice choice = choose_round(seen, inputs);
  choice.draft_works = works;
  for (size_t i = 0; i < choice.sequences.size(); ++i) {
    // One token at least: what becomes of it costs no row and says how good the draft is.
    int32_t& wanted_len = choice.sequences[i].wanted_len;
    const bool whole = choice.wait && seen.sequences[i].in_one_piece && !seen.sequences[i].fixed;
    if (whole) wanted_len = choice.sequences[i].draft_len;  // no longer than is waited for
    wanted_len = works ? std::max(wanted_len, std::min(1, seen.sequences[i].limit)) : 0;
  }
  return choice;
}

}  // namespace outrider
