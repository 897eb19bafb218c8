// See theory_simulation.h.
#include "tests/theory/theory_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/law_cases.h"
#include "scheduler/verification/verify.h"
#include "tests/theory/paper_formulas.h"

namespace outrider {
namespace {

constexpr int64_t kRoundsAtOnce = 256;
constexpr float kNever = -1e9f;  // finite, or the row would count as broken

std::vector<float> logits_of(const std::vector<double>& probs) {
  std::vector<float> logits;
  for (double prob : probs) {
    logits.push_back(prob > 0 ? static_cast<float>(std::log(prob)) : kNever);
  }
  return logits;
}

// The rounds first .. first + n of a simulation, each of a sequence of its own.
class Rounds {
 public:
  Rounds(const ToyPair& pair, const SimulationSpec& spec)
      : spec_(spec),
        vocab_size_(static_cast<int32_t>(pair.target_prob.size())),
        draft_logits_(logits_of(pair.draft_prob)) {
    const std::vector<float> row = logits_of(pair.target_prob);
    for (int32_t i = 0; i <= spec.draft_len; ++i) {
      target_logits_.insert(target_logits_.end(), row.begin(), row.end());
    }
  }

  std::vector<SequenceDecision> run(int64_t first, int64_t count) const {
    std::vector<SamplingParams> params(static_cast<size_t>(count));
    std::vector<std::vector<DraftToken>> drafts(static_cast<size_t>(count));
    std::vector<VerifyInput> inputs;
    for (size_t n = 0; n < params.size(); ++n) {
      params[n].verify_mode = spec_.mode;
      params[n].noise_seed = mix_seed(spec_.seed, static_cast<uint64_t>(first) + n);
      drafts[n] = draft(params[n]);
      inputs.push_back({.sequence_id = n + 1,
                        .params = &params[n],
                        .tokens = kPrompt,
                        .num_prompt_tokens = 1,
                        .draft = drafts[n],
                        .logits = target_logits_.data()});
    }
    SoloExchange solo;
    return verify(inputs, {0, vocab_size_, vocab_size_}, solo);
  }

 private:
  static constexpr int32_t kPrompt[] = {0};

  std::vector<DraftToken> draft(const SamplingParams& params) const {
    std::vector<DraftToken> drafted;
    for (int32_t i = 0; i < spec_.draft_len; ++i) {
      drafted.push_back(propose({.params = &params,
                                 .tokens = kPrompt,
                                 .num_prompt_tokens = 1,
                                 .drafted = drafted,
                                 .logits = draft_logits_.data(),
                                 .vocab_size = vocab_size_,
                                 .target_vocab_size = vocab_size_}));
    }
    return drafted;
  }

  const SimulationSpec spec_;
  const int32_t vocab_size_;
  const std::vector<float> draft_logits_;
  std::vector<float> target_logits_;  // [draft_len + 1, vocab_size]
};

}  // namespace

// Both are alpha of the shared law and 1 - alpha of their own; where the one has something of its
// own the other has not, so the smaller of the two is what they share.
ToyPair toy_pair(double alpha) {
  if (!(alpha > 0 && alpha < 1)) {
    throw Error(fmt::format("an acceptance of {} is not between 0 and 1", alpha));
  }
  constexpr double kShared[] = {0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0};
  constexpr double kTargetOwn[] = {0.5, 0, 0, 0, 0.3, 0.2, 0, 0};
  constexpr double kDraftOwn[] = {0, 0.5, 0, 0, 0, 0, 0.3, 0.2};
  ToyPair pair;
  pair.alpha = alpha;
  for (size_t i = 0; i < std::size(kShared); ++i) {
    pair.target_prob.push_back(alpha * kShared[i] + (1 - alpha) * kTargetOwn[i]);
    pair.draft_prob.push_back(alpha * kShared[i] + (1 - alpha) * kDraftOwn[i]);
  }
  return pair;
}

SimulatedRounds simulate_rounds(const ToyPair& pair, const SimulationSpec& spec) {
  if (spec.draft_len < 1 || spec.num_rounds < 2) {
    throw Error("a simulation needs a draft length of 1 and 2 rounds at least");
  }
  const Rounds rounds(pair, spec);
  double sum = 0;
  double sum_of_squares = 0;
  for (int64_t first = 0; first < spec.num_rounds; first += kRoundsAtOnce) {
    const int64_t count = std::min(kRoundsAtOnce, spec.num_rounds - first);
    for (const SequenceDecision& decision : rounds.run(first, count)) {
      OUTRIDER_CHECK(!decision.failed);
      const double num_tokens = decision.num_accepted + 1;
      sum += num_tokens;
      sum_of_squares += num_tokens * num_tokens;
    }
  }
  const auto n = static_cast<double>(spec.num_rounds);
  SimulatedRounds result;
  result.tokens_per_round = sum / n;
  const double variance = std::max(0.0, (sum_of_squares - sum * sum / n) / (n - 1));
  result.standard_error = std::sqrt(variance / n);
  return result;
}

double expected_simulated_tokens(const ToyPair& pair, const SimulationSpec& spec) {
  if (spec.mode == VerifyMode::kCoupled) {
    return expected_tokens(coupled_agreement(pair.target_prob, pair.draft_prob), spec.draft_len);
  }
  if (spec.mode == VerifyMode::kBlock) {
    return 1 + block_accepted(pair.target_prob, pair.draft_prob, spec.draft_len);
  }
  return expected_tokens(pair.alpha, spec.draft_len);
}

}  // namespace outrider
