// See theory_pair.h.
#include "tests/theory/theory_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/report/bench_statistics.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "runtime/ranks/loading/draft_pair.h"
#include "runtime/ranks/loading/model_probe.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/law_cases.h"
#include "scheduler/round.h"
#include "scheduler/verification/rules.h"
#include "tests/theory/paper_formulas.h"

namespace outrider {
namespace {

constexpr int kLongestDraft = 64;  // the option's own limit

class MeanOf {
 public:
  void add(double value) {
    ++count_;
    sum_ += value;
    sum_of_squares_ += value * value;
  }
  Mean mean() const {
    if (count_ == 0) return {};
    const auto n = static_cast<double>(count_);
    const double variance = std::max(0.0, sum_of_squares_ / n - (sum_ / n) * (sum_ / n));
    return {sum_ / n, std::sqrt(variance / std::max(1.0, n - 1)), count_};
  }

 private:
  int64_t count_ = 0;
  double sum_ = 0;
  double sum_of_squares_ = 0;
};

struct Pass {
  std::vector<std::vector<int32_t>> prompts;  // in tokens
  std::vector<BenchAnswer> answers;
  double tokens_per_s = 0;        // median over requests
  std::vector<RoundTimes> times;  // after each request
};

// The engine's averages move fast; the median over requests is what a step usually costs.
double median_of(const std::vector<RoundTimes>& times, double RoundTimes::*field) {
  std::vector<double> values;
  for (const RoundTimes& each : times) values.push_back(each.*field);
  return median(std::move(values));
}

// One request at a time. Every pass has noise of its own, which the options' seed decides.
class Passes {
 public:
  Passes(const FrontEndContext& context, const PairOptions& options)
      : context_(context), options_(options) {}

  Pass run(VerifyMode mode, int32_t draft_len, AsyncDrafting async_drafting = AsyncDrafting::kOff) {
    Pass pass;
    std::vector<double> rates;
    for (const std::string& prompt : options_.prompts) {
      Request request = bench_request(context_, prompt, options_.max_tokens);
      request.params.temperature = static_cast<float>(options_.temperature);
      request.params.noise_seed = mix_seed(options_.seed, num_requests_++);
      request.params.verify_mode = mode;
      request.params.max_draft_len = draft_len;
      request.params.async_drafting = async_drafting;
      pass.prompts.push_back(request.prompt);
      const auto stream = submit_bench_request(context_, std::move(request));
      pass.answers.push_back(collect_bench_answer(*stream));
      const BenchAnswer& answer = pass.answers.back();
      if (answer.decode_s > 0) rates.push_back(answer.num_decoded / answer.decode_s);
      pass.times.push_back(context_.engine.round_times());
    }
    pass.tokens_per_s = median(std::move(rates));
    return pass;
  }

 private:
  const FrontEndContext& context_;
  const PairOptions& options_;
  uint64_t num_requests_ = 0;
};

// What both models say about one position.
struct Position {
  double whole = 0;
  double sent = 0;
  double distance = 0;
  double agreement = 0;
};

class PairProbe {
 public:
  PairProbe(const RunConfig& config, double temperature)
      : target_(config, Role::kTarget, std::max(1, config.threads)),
        draft_(config, Role::kDraft, std::max(1, config.threads)),
        num_candidates_(config.speculative.num_draft_candidates) {
    params_.temperature = static_cast<float>(temperature);
    params_.verify_mode = VerifyMode::kStandard;
  }

  // One per token of the answer.
  std::vector<Position> ask(const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& answer) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    tokens.pop_back();  // nothing was drawn after the last
    const size_t first = prompt.size() - 1;
    std::vector<std::vector<double>> target_probs;
    target_.visit_logits(tokens, first, [&](size_t, std::span<const float> logits) {
      target_probs.push_back(softmax(logits, params_.temperature));
    });
    std::vector<Position> positions;
    draft_.visit_logits(tokens, first, [&](size_t i, std::span<const float> logits) {
      const auto before = std::span(tokens).first(i + 1);
      positions.push_back(compare(target_probs[i - first], before, logits));
    });
    return positions;
  }

 private:
  Position compare(const std::vector<double>& target_prob,
                   std::span<const int32_t> tokens,
                   std::span<const float> draft_logits) const {
    // A vocabulary may have padding that the other has not; it is never proposed.
    const size_t num_shared = std::min(target_prob.size(), draft_logits.size());
    std::vector<double> draft_prob = softmax(draft_logits.first(num_shared), params_.temperature);
    draft_prob.resize(target_prob.size(), 0.0);
    Position position;
    position.whole = sum_of_minima(target_prob, draft_prob);
    position.distance = lk_distance(target_prob, draft_prob);
    position.agreement = coupled_agreement(target_prob, draft_prob);
    const DraftToken token = propose({.params = &params_,
                                      .tokens = tokens,
                                      .num_prompt_tokens = static_cast<int32_t>(tokens.size()),
                                      .logits = draft_logits.data(),
                                      .vocab_size = static_cast<int32_t>(draft_logits.size()),
                                      .target_vocab_size = static_cast<int32_t>(target_prob.size()),
                                      .num_candidates = num_candidates_});
    if (token.token < 0) return position;
    for (const DraftCandidate& candidate : draft_distribution(token)) {
      position.sent += std::min(target_prob[static_cast<size_t>(candidate.token)],
                                static_cast<double>(candidate.draft_prob));
    }
    return position;
  }

  ModelProbe target_;
  ModelProbe draft_;
  SamplingParams params_;
  int32_t num_candidates_;
};

AskedAcceptance ask_about(PairProbe& probe, const Pass& pass) {
  MeanOf whole, sent, distance, agreement;
  for (size_t n = 0; n < pass.answers.size(); ++n) {
    for (const Position& position : probe.ask(pass.prompts[n], pass.answers[n].tokens)) {
      whole.add(position.whole);
      sent.add(position.sent);
      distance.add(position.distance);
      agreement.add(position.agreement);
    }
  }
  return {whole.mean(), sent.mean(), distance.mean(), agreement.mean()};
}

// A draft token was examined where it was accepted or the target put another in its place.
CountedAcceptance compare_counts(PairProbe& probe, const Pass& pass) {
  MeanOf counted, asked;
  for (size_t n = 0; n < pass.answers.size(); ++n) {
    const BenchAnswer& answer = pass.answers[n];
    const std::vector<Position> positions = probe.ask(pass.prompts[n], answer.tokens);
    for (size_t i = 0; i < positions.size(); ++i) {
      const bool accepted = answer.origins[i] == TokenOrigin::kAccepted;
      if (!accepted && answer.origins[i] != TokenOrigin::kCorrected) continue;
      counted.add(accepted ? 1 : 0);
      asked.add(positions[i].sent);
    }
  }
  return {counted.mean(), asked.mean()};
}

PairCell cell_of(VerifyMode mode, int32_t draft_len, const Pass& pass) {
  PairCell cell;
  cell.mode = mode;
  cell.draft_len = draft_len;
  cell.tokens_per_s = pass.tokens_per_s;
  cell.verify_step_s = median_of(pass.times, &RoundTimes::verify_round_s);
  MeanOf tokens;
  for (const BenchAnswer& answer : pass.answers) {
    for (const BenchRound& round : answer.rounds) {
      cell.num_examined += std::min(round.num_accepted + 1, round.draft_len);
      cell.num_accepted += round.num_accepted;
      if (round.draft_len == draft_len) tokens.add(round.num_accepted + 1);
    }
  }
  cell.tokens_per_round = tokens.mean();
  return cell;
}

AsyncPass async_pass_of(AsyncDrafting mode, const Pass& pass) {
  MeanOf bonus_drafts;
  for (const BenchAnswer& answer : pass.answers) {
    for (int32_t i = 0; i < answer.stats.num_bonus_drafts; ++i) {
      bonus_drafts.add(i < answer.stats.num_accepted_bonus_drafts ? 1 : 0);
    }
  }
  return {mode, bonus_drafts.mean(), pass.tokens_per_s};
}

// 1, 2, 3, 4, 6, 8, 12, 16, ... up to the server's.
std::vector<int32_t> draft_lengths(int32_t most) {
  std::vector<int32_t> lengths;
  for (int32_t length = 1; length <= most; length *= 2) {
    lengths.push_back(length);
    if (length >= 2 && length + length / 2 <= most) lengths.push_back(length + length / 2);
  }
  if (lengths.back() != most) lengths.push_back(most);
  return lengths;
}

Mean counted_acceptance(const std::vector<PairCell>& cells) {
  int64_t examined = 0;
  int64_t accepted = 0;
  for (const PairCell& cell : cells) {
    if (cell.mode != VerifyMode::kStandard) continue;
    examined += cell.num_examined;
    accepted += cell.num_accepted;
  }
  if (examined == 0) return {};
  const double share = static_cast<double>(accepted) / static_cast<double>(examined);
  return {share, std::sqrt(share * (1 - share) / static_cast<double>(examined)), examined};
}

void add_costs(const std::vector<RoundTimes>& off,
               const std::vector<RoundTimes>& on,
               PairMeasurement* result) {
  result->target_step_s = median_of(off, &RoundTimes::plain_round_s);
  result->draft_step_s = median_of(on, &RoundTimes::draft_step_s);
  result->cost_ratio = result->target_step_s > 0 ? result->draft_step_s / result->target_step_s : 0;
  result->best_draft_len = best_draft_len(result->alpha(), result->cost_ratio, kLongestDraft);
  result->best_speedup =
      predicted_speedup(result->alpha(), result->cost_ratio, result->best_draft_len);
}

bool has_draft_of_same_tokens(const RunConfig& config) {
  return make_layout(config, 0).has_draft && drafts_in_target_ids(config);
}

}  // namespace

double PairMeasurement::speedup_by_cost(const PairCell& cell) const {
  const double round_s = cell.draft_len * draft_step_s + cell.verify_step_s;
  return round_s > 0 ? cell.tokens_per_round.value * target_step_s / round_s : 0;
}

PairMeasurement measure_pair(const FrontEndContext& context, const PairOptions& options) {
  const int32_t most = context.engine.info().num_speculative_tokens;
  if (most == 0) throw Error("theory_bench needs a draft: give --speculative-config.model");
  Passes passes(context, options);
  passes.run(VerifyMode::kStandard, most);  // warm-up
  Pass off;
  std::vector<double> off_rates;
  std::vector<RoundTimes> off_times;
  std::vector<RoundTimes> on_times;
  PairMeasurement result;
  const std::vector<int32_t> lengths = draft_lengths(most);
  Pass longest;
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    off = passes.run(VerifyMode::kStandard, 0);
    off_rates.push_back(off.tokens_per_s);
    off_times.insert(off_times.end(), off.times.begin(), off.times.end());
    for (int32_t draft_len : lengths) {
      Pass pass = passes.run(mode, draft_len);
      result.cells.push_back(cell_of(mode, draft_len, pass));
      on_times.insert(on_times.end(), pass.times.begin(), pass.times.end());
      if (mode == VerifyMode::kStandard && draft_len == most) longest = std::move(pass);
    }
  }
  result.off_tokens_per_s = median(off_rates);
  if (has_draft_of_same_tokens(context.config)) {
    for (AsyncDrafting mode : {AsyncDrafting::kChain, AsyncDrafting::kCache}) {
      result.async_passes.push_back(
          async_pass_of(mode, passes.run(VerifyMode::kStandard, most, mode)));
    }
  }
  result.counted = counted_acceptance(result.cells);
  if (has_draft_of_same_tokens(context.config)) {
    PairProbe probe(context.config, options.temperature);
    result.asked = ask_about(probe, off);
    result.compared = compare_counts(probe, longest);
  }
  add_costs(off_times, on_times, &result);
  return result;
}

}  // namespace outrider
