// See speculation.h.
#include "scheduler/speculation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace outrider {
namespace {

constexpr double kAverageWeight = 0.1;
constexpr double kIdleWeight = 0.03;
constexpr double kHitWeight = 0.05;
// Rounds that count.
constexpr double kPriceMemory = 64;
constexpr double kVerdictMemory = 4000;
constexpr double kRoundsForPrice = 8;
constexpr double kRoundsForVerdict = 6;
// A verdict's error, beside what its rounds show: this by the number of rounds. So a few rounds
// find a large loss, and a small one takes many.
constexpr double kDoubt = 0.5;
// Rounds of a draft that begins anew: it reads what it has not heard, and its memory is cold.
constexpr int64_t kWarmUpRounds = 2;
// The draft is idle when it makes the job slower than this share of plain decoding.
constexpr double kTolerance = 0.99;
// A try that fails may take this share of the time until the next one; by how many failed in a row,
// the last for all further ones. The first verdict may be of disturbed rounds, or by an expectation
// from better times: it is soon looked at again, beside rounds with an idle draft.
struct Pause {
  double share_of_tries;
  double least;  // rounds
};
constexpr std::array<Pause, 3> kPauses = {Pause{1, 32}, {0.01, 64}, {0.005, 256}};
// With so many at once a wrong verdict costs little, for drafts bring little, and a try costs as
// much.
constexpr int32_t kManySequences = 32;
constexpr double kLongestPause = 65536;
// With many sequences the draft rests after so many rounds whose rows took in less than one of its
// tokens for so many sequences, or after so many times as many rounds without a word of it; each
// time in a row twice as long.
constexpr int64_t kUnusedRounds = 8;
constexpr int64_t kSilentRounds = 8;
constexpr int32_t kUsefulPart = 32;
// Also when rounds bring less than this over plain ones. Drafts make requests of equal lengths end
// one by one where steps without drafts would have stayed full, which no single round shows. With
// lengths that differ it takes next to nothing.
constexpr double kWorthOfMany = 1.05;
constexpr double kRoundsForWorth = 24;
constexpr int64_t kShortestRest = 32;
constexpr int64_t kLongestRest = 512;
// So many rounds without a verdict against it, and the next one counts as the first.
constexpr int64_t kTrustAfter = 256;
// How often rounds with an idle draft are measured again, where it could matter: twice as many
// rounds each time.
constexpr int64_t kLongestCheckAfter = 1024;
constexpr int64_t kCheckRounds = 8;
constexpr double kCheckBelow = 1.6;
// Without probes: when, and for how many rounds, a batch of a new size runs with an idle draft.
constexpr int64_t kMeasureAfter = 16;
constexpr int64_t kMeasureRounds = 4;
// Before anything was measured.
constexpr int32_t kBlindDraftLen = 4;
constexpr double kBlindWait = 0.25;  // of a plain round
constexpr int32_t kBlindWaits = 4;
// Where the draft does not ride ahead: a wait is hoped to be half as long after so many rounds in
// a row that did not wait, and one that is hoped to be shorter still may take this part of a plain
// round.
constexpr int64_t kFirstRoundsToHalve = 8;
constexpr int64_t kRoundsToHalve = 128;
constexpr double kHopefulWait = 1;
constexpr double kNoLimit = std::numeric_limits<double>::max();
// A round counts as so many typical ones at most.
constexpr double kOutlier = 3;

// One row for each sequence.
StepLoad plain_load(const RoundOutlook& outlook) {
  StepLoad plain{.num_rows = static_cast<int32_t>(outlook.sequences.size())};
  for (const SequenceOutlook& one : outlook.sequences) plain.kv_positions += one.num_context;
  plain.row_positions = plain.kv_positions;
  return plain;
}

RoundChoice idle_choice(const RoundOutlook& outlook) {
  RoundChoice choice;
  choice.draft_works = false;
  for (const SequenceOutlook& one : outlook.sequences)
    choice.sequences.push_back({.sequence_id = one.sequence_id});
  return choice;
}

void update(double* average, double value, double weight) {
  *average = *average == 0 ? value : (1 - weight) * *average + weight * value;
}

}  // namespace

void Speculation::Rate::add(double tokens, double round_s, double plain_round_s, double memory) {
  const double kept = 1 - 1 / memory;
  num_rounds = kept * num_rounds + 1;
  num_tokens = kept * num_tokens + tokens;
  seconds = kept * seconds + round_s;
  plain_s = kept * plain_s + plain_round_s;
  tokens_tokens = kept * tokens_tokens + tokens * tokens;
  tokens_seconds = kept * tokens_seconds + tokens * round_s;
  seconds_seconds = kept * seconds_seconds + round_s * round_s;
}

// Of a ratio of sums: the squares of tokens - value() * seconds.
double Speculation::Rate::relative_error(int32_t num_sequences) const {
  if (num_tokens <= 0) return 1;
  const double rate = value();
  const double squares =
      std::max(0.0, tokens_tokens - 2 * rate * tokens_seconds + rate * rate * seconds_seconds);
  const double seen = std::sqrt(squares) / num_tokens;
  return seen + kDoubt / (num_rounds * std::sqrt(static_cast<double>(num_sequences)));
}

double Speculation::Typical::take_in(double ratio) {
  last_[num_seen_++ % last_.size()] = ratio;
  std::array<double, 9> sorted = last_;
  const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(num_seen_, last_.size()));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return std::min(ratio, kOutlier * *middle);
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
  for (StepCosts* steps : {&idle_steps_, &working_steps_}) steps->add_probe(load, seconds);
}

void Speculation::note_verdict(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted) {
  survival_.note_verdict(sequence_id, num_drafted, num_accepted);
  num_heard_of_ += num_drafted > 0 ? 1 : 0;
}

void Speculation::note_shadow(uint64_t sequence_id, bool stood) {
  survival_.note_shadow(sequence_id, stood);
  ++num_heard_of_;
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

void Speculation::note_draft_work(uint32_t num_steps,
                                  uint32_t num_rows,
                                  double seconds,
                                  bool awaited) {
  if (num_steps == 0 || !(seconds >= 0)) return;
  const auto rows = static_cast<int32_t>(std::max(1u, num_rows / num_steps));
  const double step_s = seconds / num_steps;
  // One beside the target's step says only that a wait costs no more.
  const bool says_little = !config_.rides_ahead && !awaited && seen_awaited_;
  if (says_little && step_s >= draft_steps_.at({.num_rows = rows})) return;
  if (awaited && !std::exchange(seen_awaited_, true) && !config_.rides_ahead) draft_steps_ = {};
  draft_steps_.add({.num_rows = rows}, step_s);
}

double Speculation::draft_token_s(int32_t num_sequences) const {
  return draft_steps_.at({.num_rows = std::max(1, num_sequences)});
}

// Nobody sees what a wait would cost while none is made: so one is hoped to be shorter and shorter,
// until it is tried. Soon, while all that was seen of the draft was beside the target's steps.
double Speculation::hope() const {
  const int64_t num_tries = std::min<int64_t>(num_vain_waits_, 8);
  const int64_t to_halve =
      seen_awaited_ ? kRoundsToHalve : std::min(kFirstRoundsToHalve << num_tries, kRoundsToHalve);
  return std::exp2(-static_cast<double>(num_unawaited_) / static_cast<double>(to_halve));
}

double Speculation::plain_round_s(const StepLoad& load) const {
  const double step_s = idle_steps_.likely(load);
  if (step_s == 0) return 0;
  const StepCosts& overhead = idle_overhead_.empty() ? working_overhead_ : idle_overhead_;
  return idle_bias_ * (step_s + overhead.likely({.num_rows = load.num_rows}));
}

void Speculation::note_round(const RoundFacts& facts) {
  const int32_t num_heard_of = std::exchange(num_heard_of_, 0);
  // Of a worker that is idle nothing is to be heard.
  if (num_heard_of == 0 && (facts.draft_worked || !config_.has_worker)) survival_.note_nothing();
  if (facts.has_prompts || facts.num_sequences == 0) return;
  StepCosts& steps = facts.draft_worked ? working_steps_ : idle_steps_;
  const double usual_s = steps.at(facts.load);
  steps.add(facts.load, usual_s > 0 ? std::min(facts.step_s, kOutlier * usual_s) : facts.step_s);
  if (facts.wait_s > 0 && draft_token_s(facts.num_sequences) == 0) ++num_blind_waits_;
  if (facts.draft_worked && !config_.rides_ahead) {
    num_unawaited_ = facts.wait_s > 0 ? 0 : num_unawaited_ + 1;
    num_vain_waits_ += facts.wait_s > 0 && !seen_awaited_ ? 1 : 0;
  }
  num_idle_in_a_row_ = facts.draft_worked ? 0 : num_idle_in_a_row_ + 1;
  StepCosts& overhead = facts.draft_worked ? working_overhead_ : idle_overhead_;
  overhead.add({.num_rows = facts.load.num_rows},
               std::max(0.0, facts.total_s - facts.wait_s - facts.step_s));
  StepLoad plain = facts.load;  // what the round would have been
  plain.row_positions = plain.row_positions * facts.num_sequences / std::max(1, plain.num_rows);
  plain.num_rows = facts.num_sequences;
  const double plain_s = plain_round_s(plain);
  Batch& batch = batches_[class_of(facts.num_sequences)];
  if (!facts.draft_worked && config_.has_worker) return note_idle(batch, facts, plain_s);
  double total_s = facts.total_s;
  if (plain_s > 0) {
    const double beside_wait_s = facts.total_s - facts.wait_s;
    total_s = facts.wait_s + plain_s * batch.typical.take_in(beside_wait_s / plain_s);
  }
  if (config_.has_worker && ++batch.num_rounds_working <= kWarmUpRounds) return;
  const double tokens = static_cast<double>(facts.num_tokens) / facts.num_sequences;
  batch.recent.add(tokens, total_s, plain_s, kPriceMemory);
  if (!config_.has_worker) return;
  batch.working.add(tokens, total_s, plain_s, kVerdictMemory);
  note_use(batch, facts, num_heard_of);
  if (batch.rests) return;
  if (batch.measured || probed_) return judge(batch, facts.num_sequences);
  if (batch.num_rounds_working >= kMeasureAfter) batch.num_rounds_idle_left = kMeasureRounds;
}

void Speculation::note_idle(Batch& batch, const RoundFacts& facts, double plain_s) {
  if (plain_s > 0) {
    const double ratio = idle_typical_.take_in((facts.total_s - facts.wait_s) / plain_s);
    // The mean of the rounds in a row, and a little of what was known before.
    const double weight = std::max(kIdleWeight, 1.0 / static_cast<double>(num_idle_in_a_row_ + 3));
    idle_bias_ = std::clamp(idle_bias_ * (1 + weight * (ratio - 1)), 0.5, 4.0);
  }
  if (batch.num_rounds_idle_left == 0 || --batch.num_rounds_idle_left > 0) return;
  batch.num_rounds_working = 0;
  batch.check_after = std::min(2 * batch.check_after, kLongestCheckAfter);
  if (!batch.measured && !probed_) {
    batch.recent.plain_s = batch.recent.num_rounds * plain_s;
    batch.working.plain_s = batch.working.num_rounds * plain_s;
  }
  batch.measured = true;
  const bool had_verdict = std::exchange(batch.rests, false) || batch.lost;
  if (!had_verdict) return;
  batch.lost = false;
  batch.working = {};
  batch.recent = {};
}

// With many sequences a draft whose tokens are there and get no rows may as well rest: the host's
// work for it is saved, and where it shares the machine with the target, its own. One that has said
// nothing, because it still reads or is slow, is given more rounds.
void Speculation::note_use(Batch& batch, const RoundFacts& facts, int32_t num_heard_of) {
  const int32_t num_drafted = facts.load.num_rows - facts.num_sequences;
  if (facts.num_sequences < kManySequences) return;
  const bool brings_little =
      batch.recent.num_rounds >= kRoundsForWorth && batch.recent.against_plain() < kWorthOfMany;
  if (brings_little) {
    batch.unused = kUnusedRounds * kSilentRounds;
  } else if (num_drafted * kUsefulPart >= facts.num_sequences) {
    batch.unused = 0;
    batch.num_rests = 0;
    return;
  }
  if (!brings_little) batch.unused += 2 * num_heard_of >= facts.num_sequences ? kSilentRounds : 1;
  if (batch.unused < kUnusedRounds * kSilentRounds) return;
  batch.unused = 0;
  batch.rests = true;
  batch.num_rounds_idle_left = std::min(kShortestRest << batch.num_rests, kLongestRest);
  batch.num_rests = std::min<int64_t>(batch.num_rests + 1, 16);
}

// Beyond what chance explains.
bool Speculation::loses(const Rate& rate, int32_t num_sequences, double num_deviations) {
  if (rate.num_rounds < kRoundsForVerdict - 0.5) return false;  // a sum that decays
  const double error = rate.relative_error(num_sequences);
  return rate.against_plain() * (1 + num_deviations * error) < kTolerance;
}

void Speculation::judge(Batch& batch, int32_t num_sequences) const {
  const bool lost_of_late = loses(batch.recent, num_sequences, 3);
  if (lost_of_late || loses(batch.working, num_sequences, 2)) {
    const Rate& rate = lost_of_late ? batch.recent : batch.working;
    const double num_lost = rate.seconds * rate.num_rounds / rate.plain_s - rate.num_tokens;
    const size_t num_before = num_sequences >= kManySequences ? kPauses.size() : batch.num_losses;
    const Pause& pause = kPauses[std::min(num_before, kPauses.size() - 1)];
    batch.lost = true;
    ++batch.num_losses;
    batch.num_rounds_idle_left = static_cast<int64_t>(
        std::clamp(num_lost / pause.share_of_tries, pause.least, kLongestPause));
    return;
  }
  if (batch.num_rounds_working >= kTrustAfter) batch.num_losses = 0;
  if (batch.num_rounds_working >= batch.check_after) {
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
  return step_s > 0 ? num_tokens / (step_s + inputs.overhead->at({.num_rows = load.num_rows})) : 0;
}

double Speculation::longest_wait(const RoundOutlook& outlook, double plain_s) const {
  const auto num_sequences = static_cast<int32_t>(outlook.sequences.size());
  const bool blind = draft_token_s(num_sequences) == 0;
  if (plain_s == 0 || (!blind && hope() > 0.5)) return kNoLimit;
  if (blind && num_blind_waits_ >= kBlindWaits) return 0;
  double waited_s = 0;
  for (const SequenceOutlook& one : outlook.sequences) waited_s = std::max(waited_s, one.waited_s);
  return std::max(0.0, (blind ? kBlindWait : kHopefulWait) * plain_s - waited_s);
}

// Tokens per second that the job is making, 0 = not known. A batch that has just become smaller
// gains no less by its drafts than it did.
double Speculation::price_of(int32_t num_sequences, double plain_s) const {
  const double plain = plain_s > 0 ? num_sequences / plain_s : 0;
  const Batch* own = batch_of(num_sequences);
  if (own != nullptr && own->recent.num_rounds >= kRoundsForPrice)
    return std::max(plain, num_sequences * own->recent.value());
  const Batch* larger = batch_of(2 * num_sequences);
  if (larger == nullptr || larger->recent.num_rounds < kRoundsForPrice) return plain;
  return plain * std::max(1.0, larger->recent.against_plain());
}

GoodputInputs Speculation::what_is_known(const RoundOutlook& outlook, const StepLoad& plain) const {
  const auto num_sequences = static_cast<int32_t>(outlook.sequences.size());
  const double plain_s = plain_round_s(plain);
  GoodputInputs inputs;
  for (const SequenceOutlook& sequence : outlook.sequences)
    inputs.survival.push_back(survival_.curve(sequence.sequence_id, config_.longest_draft_len));
  inputs.steps = &working_steps_;
  inputs.overhead = working_overhead_.empty() ? &idle_overhead_ : &working_overhead_;
  inputs.price = price_of(num_sequences, plain_s);
  inputs.token_s = hope() * draft_token_s(num_sequences);
  inputs.first_token_s = hope() * link_s_ + inputs.token_s;
  inputs.hit_if_all_stand = hit_if_all_stand_;
  inputs.hit_if_not = hit_if_not_;
  inputs.num_prepared = static_cast<int32_t>(num_prepared_);
  if (inputs.price > 0)
    inputs.price = std::max(inputs.price, rate_of_going(outlook, inputs, plain));
  return inputs;
}

RoundChoice Speculation::choose(const RoundOutlook& outlook) const {
  const auto num_sequences = static_cast<int32_t>(outlook.sequences.size());
  if (num_sequences == 0) return {};
  const Batch* batch = batch_of(num_sequences);
  const bool any_fixed = std::any_of(outlook.sequences.begin(),
                                     outlook.sequences.end(),
                                     [](const SequenceOutlook& one) { return one.fixed; });
  const bool works = any_fixed || batch == nullptr || batch->num_rounds_idle_left == 0;
  if (!works) return idle_choice(outlook);
  const StepLoad plain = plain_load(outlook);
  const double plain_s = plain_round_s(plain);
  const GoodputInputs inputs = what_is_known(outlook, plain);
  const bool is_blind = config_.has_worker && inputs.token_s == 0;
  RoundOutlook seen = outlook;
  for (SequenceOutlook& sequence : seen.sequences) {
    sequence.limit = std::min(sequence.limit, config_.longest_draft_len);
    if (sequence.fixed) continue;
    if (inputs.price == 0) sequence.limit = std::min(sequence.limit, kBlindDraftLen);
    // Its first word should come within a short wait.
    if (is_blind && sequence.in_one_piece) sequence.limit = std::min(sequence.limit, 1);
  }
  const double longest_wait_s = any_fixed ? kNoLimit : longest_wait(seen, plain_s);
  seen.may_wait = seen.may_wait && longest_wait_s > 0;
  RoundChoice choice = choose_round(seen, inputs);
  choice.wait_s = std::min(choice.wait_s, longest_wait_s);
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
