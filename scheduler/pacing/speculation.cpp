// See speculation.h.
#include "scheduler/pacing/speculation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::max();

// One row for each sequence.
StepLoad plain_load(const RoundState& state) {
  StepLoad plain{.num_rows = static_cast<int32_t>(state.sequences.size())};
  for (const SequenceState& one : state.sequences) plain.kv_positions += one.num_context;
  plain.row_positions = plain.kv_positions;
  return plain;
}

bool drafts_any(const RoundChoice& choice) {
  return std::ranges::any_of(choice.sequences,
                             [](const SequenceChoice& one) { return one.draft_len > 0; });
}

// So many tokens more must another source bring than a draft model's block that is coming.
constexpr double kBackupMargin = 0.5;
// Of a match; longer ones count as this long.
constexpr int32_t kLongestMatch = 8;

int32_t blind_draft_len() { return static_cast<int32_t>(pacing.blind_draft_len); }

}  // namespace

Speculation::Speculation(const Config& config) : config_(config) {}

void Speculation::record_probe(const StepLoad& load, double seconds) {
  for (StepTimes* steps : {&idle_steps_, &working_steps_}) steps->add_probe(load, seconds);
}

void Speculation::record_draft(const DraftResult& result) {
  const bool is_backup = result.judged_backup();
  if (result.backup_source != BlockSource::kNone) {
    AcceptanceModel& backup =
        backups_[{result.backup_source, std::min(result.match_len, kLongestMatch)}];
    if (is_backup)
      backup.record_result(result.sequence_id, result.num_drafted, result.num_accepted);
    if (result.backup_counterfactual)
      backup.record_result(result.sequence_id, 1, *result.backup_counterfactual ? 1 : 0);
  }
  if (!is_backup && result.num_drafted > 0)
    record_result(result.sequence_id, result.num_drafted, result.num_accepted);
  if (result.counterfactual) record_result(result.sequence_id, 1, *result.counterfactual ? 1 : 0);
  if (!result.num_prepared) return;
  const bool hit = *result.num_prepared > 0;
  if (is_backup) {
    hit_after_backup_ += pacing.average_weight * ((hit ? 1 : 0) - hit_after_backup_);
  } else {
    record_lookup(result.all_accepted, hit, *result.num_prepared);
  }
}

void Speculation::forget(uint64_t sequence_id) {
  acceptance_.forget(sequence_id);
  for (auto& [kind, backup] : backups_) backup.forget(sequence_id);
}

void Speculation::record_result(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted) {
  acceptance_.record_result(sequence_id, num_drafted, num_accepted);
  heard_ = heard_ || num_drafted > 0;
}

void Speculation::record_lookup(bool all_accepted, bool hit, int32_t num_prepared) {
  double* average = all_accepted ? &hit_if_all_stand_ : &hit_if_not_;
  *average += pacing.average_weight * ((hit ? 1 : 0) - *average);
  if (hit) update_average(&num_prepared_, num_prepared);
}

void Speculation::record_first_tokens(double seconds, int32_t num_sequences, double num_tokens) {
  const double token_s = draft_token_s(num_sequences);
  // So a link that is truly slow is learned in some twenty waits.
  const double most_s = pacing.outlier * std::max(link_s_, token_s);
  const double beside = std::clamp(seconds - num_tokens * token_s, 0.0, most_s);
  link_s_ += pacing.average_weight * (beside - link_s_);
}

void Speculation::record_draft_work(uint32_t num_steps,
                                    uint32_t num_rows,
                                    double seconds,
                                    bool awaited) {
  if (num_steps == 0 || !(seconds >= 0)) return;
  const auto rows = static_cast<int32_t>(std::max(1u, num_rows / num_steps));
  const double step_s = seconds / num_steps;
  // One beside the target's step says only that a wait costs no more.
  const bool says_little = !config_.drafts_async && !awaited && seen_awaited_;
  if (says_little && step_s >= draft_steps_.at({.num_rows = rows})) return;
  if (awaited && !std::exchange(seen_awaited_, true) && !config_.drafts_async) draft_steps_ = {};
  draft_steps_.add({.num_rows = rows}, step_s);
}

double Speculation::draft_token_s(int32_t num_sequences) const {
  return draft_steps_.at({.num_rows = std::max(1, num_sequences)});
}

// What a round of one row a sequence takes with an idle draft, all in all; 0 = not known.
double Speculation::plain_round_s(const StepLoad& load) const {
  const double step_s = idle_steps_.likely(load);
  if (step_s == 0) return 0;
  const StepTimes& overhead = idle_overhead_.empty() ? working_overhead_ : idle_overhead_;
  return step_s + overhead.likely({.num_rows = load.num_rows});
}

// Of a batch that was never tried both ways, with a draft that works in turns with the target: by
// what its best length would bring, as far as steps and acceptance are known. Few sequences draft
// in any case, to learn these. Of many a wave is over before the loss of a trial is made good.
// kv_positions: of num_sequences.
DraftTrials::Arm Speculation::expected_arm(int32_t num_sequences, int64_t kv_positions) const {
  const int32_t size = DraftTrials::usual_size(num_sequences);
  const bool in_turns = config_.has_worker && !config_.drafts_async;
  if (!in_turns || size < pacing.many_sequences) return DraftTrials::kWorking;
  const int64_t positions = kv_positions * size / num_sequences;
  StepLoad load = {size, positions, positions};
  const double plain_s = plain_round_s(load);
  if (plain_s == 0) return DraftTrials::kWorking;
  // Large models are probed with few rows only; how step times go on from there is not known.
  if (2 * size > idle_steps_.most_rows())
    return size < 2 * pacing.many_sequences ? DraftTrials::kWorking : DraftTrials::kIdle;
  constexpr uint64_t kNobody = 0;
  const SurvivalCurve survival = acceptance_.curve(kNobody, blind_draft_len());
  double num_tokens = 1;  // of a sequence
  double beside_step_s = plain_s - idle_steps_.likely(load) + link_s_;
  for (int32_t i = 0; i < blind_draft_len(); ++i) {
    num_tokens += survival[static_cast<size_t>(i)];
    load.num_rows += size;
    load.row_positions += positions;
    beside_step_s += draft_token_s(size);
    const double round_s = beside_step_s + idle_steps_.likely(load);
    if (num_tokens * plain_s >= pacing.gain_of_many * round_s) return DraftTrials::kWorking;
  }
  return DraftTrials::kIdle;
}

// One row for each sequence, over the texts that were read anyway.
double Speculation::plain_step_s(const RoundRecord& round) const {
  const StepLoad plain = {round.num_sequences, round.load.kv_positions, round.load.kv_positions};
  const double idle_s = idle_steps_.likely(plain);
  return idle_s > 0 ? idle_s : working_steps_.likely(plain);
}

void Speculation::record_round(const RoundRecord& round) {
  const bool heard = std::exchange(heard_, false);
  // Of a worker that is idle nothing is to be heard.
  if (!heard && (round.draft_worked || !config_.has_worker)) acceptance_.record_nothing();
  // Measured by waits alone, it would end them for good.
  if (round.waited_s == 0) link_s_ *= 1 - 1 / pacing.step_memory;
  if (round.reads_prompt || round.num_sequences == 0) return;
  RecentRounds& recent = recent_[std::bit_width(static_cast<uint32_t>(round.num_sequences))];
  if (recent.is_stall(round.total_s - round.waited_s)) return;
  StepTimes& steps = round.draft_worked ? working_steps_ : idle_steps_;
  const double usual_s = steps.at(round.load);
  steps.add(round.load,
            usual_s > 0 ? std::min(round.step_s, pacing.outlier * usual_s) : round.step_s);
  StepTimes& overhead = round.draft_worked ? working_overhead_ : idle_overhead_;
  const StepLoad rows{.num_rows = round.load.num_rows};
  const double usual_overhead_s = overhead.at(rows);
  const double overhead_s = std::max(0.0, round.total_s - round.waited_s - round.step_s);
  overhead.add(
      rows,
      usual_overhead_s > 0 ? std::min(overhead_s, pacing.outlier * usual_overhead_s) : overhead_s);
  const DraftTrials::Arm arm = round.draft_worked ? DraftTrials::kWorking : DraftTrials::kIdle;
  trials_.record_round(round.num_sequences,
                       round.num_tokens,
                       round.total_s,
                       arm,
                       expected_arm(round.num_sequences, round.load.kv_positions));
}

// Tokens per second if this round went with what is at hand, and all to come like it, as far as
// their blocks will be prepared. The rate that was made says less while waits that do not pay still
// keep it low.
double Speculation::rate_of_going(const RoundState& state,
                                  const GoodputInputs& inputs,
                                  StepLoad load) const {
  double num_tokens = 0;
  for (size_t i = 0; i < state.sequences.size(); ++i) {
    const SequenceState& one = state.sequences[i];
    const int32_t num_rows = std::min(one.num_at_hand, one.limit);
    double expected = 1;
    for (int32_t j = 0; j < num_rows; ++j) expected += inputs.survival[i][static_cast<size_t>(j)];
    const double all = num_rows > 0 ? inputs.survival[i][static_cast<size_t>(num_rows) - 1] : 1.0;
    num_tokens += expected * (all * inputs.hit_if_all_stand + (1 - all) * inputs.hit_if_not);
    load.num_rows += num_rows;
  }
  const double step_s = inputs.steps->at(load);
  return step_s > 0 ? num_tokens / (step_s + inputs.overhead->at({.num_rows = load.num_rows})) : 0;
}

// Tokens per second that the job is making, or would make with an idle draft; 0 = not known. A
// batch that has just become smaller gains no less by its drafts than it did.
double Speculation::price_of(int32_t num_sequences, double plain_s) const {
  const double plain = plain_s > 0 ? 1 / plain_s : 0;
  const RoundRate* const working = trials_.rate(num_sequences, DraftTrials::kWorking);
  if (working == nullptr || working->num_rounds() < pacing.rounds_before_trial)
    return num_sequences * plain * std::max(1.0, trials_.gain(2 * num_sequences).value_or(1));
  const std::optional<double> gain = trials_.gain(num_sequences);
  return num_sequences * std::max(working->value(), gain ? working->value() / *gain : plain);
}

GoodputInputs Speculation::what_is_known(const RoundState& state, const StepLoad& plain) const {
  const auto num_sequences = static_cast<int32_t>(state.sequences.size());
  const double plain_s = plain_round_s(plain);
  GoodputInputs inputs;
  inputs.survival.reserve(state.sequences.size());
  for (const SequenceState& sequence : state.sequences)
    inputs.survival.push_back(acceptance_.curve(sequence.sequence_id, config_.longest_draft_len));
  inputs.steps = &working_steps_;
  inputs.overhead = working_overhead_.empty() ? &idle_overhead_ : &working_overhead_;
  inputs.price = price_of(num_sequences, plain_s);
  inputs.token_s = draft_token_s(num_sequences);
  inputs.first_token_s = link_s_ + inputs.token_s;
  inputs.hit_if_all_stand = hit_if_all_stand_;
  inputs.hit_if_not = hit_if_not_;
  inputs.num_prepared = static_cast<int32_t>(num_prepared_);
  if (inputs.price > 0) inputs.price = std::max(inputs.price, rate_of_going(state, inputs, plain));
  return inputs;
}

// A draft that has just begun gets a part of a round to show how fast it is: with one token, where
// it answers with whole blocks.
RoundChoice Speculation::choose_to_learn(RoundState state,
                                         GoodputInputs inputs,
                                         double plain_s) const {
  double rest_s = kNoLimit;
  if (plain_s > 0) {
    rest_s = pacing.blind_wait * plain_s;
    for (const SequenceState& one : state.sequences)
      rest_s = std::min(rest_s, pacing.blind_wait * plain_s - one.waited_s);
  }
  for (SequenceState& one : state.sequences)
    one.limit = std::min(one.limit, one.in_one_piece ? 1 : blind_draft_len());
  state.may_wait = state.may_wait && rest_s > 0;
  inputs.first_token_s = inputs.token_s = 0;
  RoundChoice choice = choose_round(state, inputs);
  choice.wait_s = std::min(choice.wait_s, rest_s);
  return choice;
}

// The sources in order: blocks of the draft model, waited for where that pays; in their place,
// where that brings more, what others have at hand.
RoundChoice Speculation::choose(const RoundState& state) const {
  const auto num_sequences = static_cast<int32_t>(state.sequences.size());
  // By all that run: a draft that is to rest with them need not read their prompts.
  const int32_t num_running = std::max(num_sequences, state.num_running);
  if (num_running == 0) return {};
  const bool any_fixed = std::ranges::any_of(state.sequences, &SequenceState::fixed);
  const DraftTrials::Arm expected = expected_arm(num_running, plain_load(state).kv_positions);
  const bool rests = !any_fixed && trials_.arm(num_running, expected) == DraftTrials::kIdle;
  if (num_sequences == 0) return {.draft_works = !rests, .sequences = {}};
  GoodputInputs inputs = what_is_known(state, plain_load(state));
  RoundState seen = state;
  if (rests) {
    inputs.steps = &idle_steps_;
    if (!idle_overhead_.empty()) inputs.overhead = &idle_overhead_;
    for (SequenceState& one : seen.sequences) one.limit = one.num_at_hand = 0;
  }
  RoundChoice choice = rests ? choose_round(seen, inputs) : choose_blocks(seen, inputs);
  choice.draft_works = !rests;
  return choose_backups(seen, std::move(inputs), choice);
}

RoundChoice Speculation::choose_backups(const RoundState& state,
                                        GoodputInputs inputs,
                                        const RoundChoice& without) const {
  if (std::ranges::none_of(state.sequences, [](const auto& one) { return one.backup_len > 0; }))
    return without;
  RoundState other = state;
  std::vector<double> lost(state.sequences.size(), 0);
  bool any = false;
  for (size_t i = 0; i < state.sequences.size(); ++i) {
    SequenceState& one = other.sequences[i];
    const auto known = backups_.find({one.backup_source, std::min(one.match_len, kLongestMatch)});
    if (one.fixed && without.wait) return without;  // it was promised the draft's
    if (one.backup_len == 0 || !(inputs.price > 0)) continue;
    const SurvivalCurve curve = (known == backups_.end() ? AcceptanceModel() : known->second)
                                    .curve(one.sequence_id, one.backup_len);
    // What the draft prepares meanwhile is seldom for what comes of other tokens than its own.
    if (one.more_coming && without.draft_works) {
      lost[i] =
          kBackupMargin + std::max(0.0, hit_if_all_stand_ - hit_after_backup_) *
                              worth_of_hit(inputs, inputs.survival[i], state.sequences.size());
    }
    const SurvivalCurve& block = inputs.survival[i];
    const double instead = std::accumulate(
        block.begin(), block.begin() + std::min(one.limit, one.num_at_hand), lost[i]);
    if (std::accumulate(curve.begin(), curve.end(), 0.0) <= instead) continue;
    inputs.survival[i] = curve;
    one.limit = one.num_at_hand = one.backup_len;
    one.more_coming = one.fixed = false;
    one.judges_backup = any = true;
  }
  if (!any) return without;
  RoundChoice choice = choose_round(other, inputs);
  choice.draft_works = without.draft_works;
  for (size_t i = 0; i < state.sequences.size(); ++i) {
    SequenceChoice& own = choice.sequences[i];
    own.wanted_len = without.sequences[i].wanted_len;
    own.uses_backup = own.draft_len > 0 && other.sequences[i].judges_backup;
    if (own.uses_backup) choice.value -= lost[i];
  }
  return choice.value > without.value ? choice : without;
}

RoundChoice Speculation::choose_blocks(const RoundState& state, const GoodputInputs& inputs) const {
  const auto num_sequences = static_cast<int32_t>(state.sequences.size());
  const bool any_fixed = std::ranges::any_of(state.sequences, &SequenceState::fixed);
  RoundState seen = state;
  for (SequenceState& sequence : seen.sequences) {
    sequence.limit = std::min(sequence.limit, config_.longest_draft_len);
    if (inputs.price == 0 && !sequence.fixed)
      sequence.limit = std::min(sequence.limit, blind_draft_len());
  }
  const bool is_blind = config_.has_worker && inputs.token_s == 0;
  const bool learns = config_.has_worker && !any_fixed && (is_blind || !config_.drafts_async) &&
                      trials_.warms_up(num_sequences);
  if (is_blind && !any_fixed) seen.may_wait = false;
  RoundChoice choice = choose_round(seen, inputs);
  if (learns && !drafts_any(choice)) {
    seen.may_wait = state.may_wait;
    choice = choose_to_learn(seen, inputs, plain_round_s(plain_load(state)));
  }
  for (size_t i = 0; i < choice.sequences.size(); ++i) {
    // One token at least: what becomes of it costs no row and says how good the draft is.
    int32_t& wanted_len = choice.sequences[i].wanted_len;
    const bool whole = choice.wait && seen.sequences[i].in_one_piece && !seen.sequences[i].fixed;
    if (whole) wanted_len = choice.sequences[i].draft_len;  // no longer than is waited for
    wanted_len = std::max(wanted_len, std::min(1, seen.sequences[i].limit));
  }
  return choice;
}

}  // namespace outrider
