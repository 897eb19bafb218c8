// See law_sampler.h.
#include "scheduler/exactness/law_sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/law_cases.h"
#include "scheduler/exactness/law_draft.h"
#include "scheduler/exactness/thread_exchange.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/verification/rules.h"
#include "scheduler/verification/verify.h"

namespace outrider {
namespace {

// Sequences verified at once: as few as stay in the processor's cache. On several shards more,
// since their threads are started, and meet a few times, for all of them together.
constexpr int kSharedBatchSize = 4000;
constexpr int kBatchSize = 200;

const std::vector<int32_t> kPrompt = {1, 2, 1};

std::vector<double> law_of(const LawCase& law_case, const ToyModel& target) {
  return joint_law(target, law_case.params, kPrompt, law_case.num_tokens);
}

ToyModel target_of(const LawCase& law_case) {
  return {law_case.vocab_size, law_case.model_seed, law_case.target_spread};
}

using Decisions = std::vector<SequenceDecision>;

// The exact laws of a model by context, each worked out once.
class ExactLaws {
 public:
  ExactLaws(const ToyModel& model, const SamplingParams& params) : model_(model), params_(params) {}
  const std::vector<double>& after(const std::vector<int32_t>& context) {
    std::vector<double>& law = laws_[context];
    if (law.empty()) {
      const auto num_prompt_tokens = static_cast<int32_t>(kPrompt.size());
      const std::vector<long double> probs =
          exact_law(model_.logits(context), params_, context, num_prompt_tokens);
      law.assign(probs.begin(), probs.end());
    }
    return law;
  }

 private:
  const ToyModel& model_;
  const SamplingParams& params_;
  std::map<std::vector<int32_t>, std::vector<double>> laws_;
};

// LawFault::kMaskWithoutDraft.
class MaskWithoutDraft final : public TokenMask {
 public:
  explicit MaskWithoutDraft(std::shared_ptr<const TokenMask> mask) : mask_(std::move(mask)) {}
  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    TokenHistory committed = history;
    committed.drafted = {};
    mask_->restrict_next(committed, allowed);
  }

 private:
  std::shared_ptr<const TokenMask> mask_;
};

class LawSampler {
 public:
  explicit LawSampler(const LawCase& law_case)
      : case_(law_case),
        target_(target_of(law_case)),
        draft_(target_.perturbed(law_case.model_seed + 1, law_case.draft_spread)) {}

  LawResult run() {
    result_.law = law_of(case_, target_);
    result_.counts.assign(result_.law.size(), 0);
    const bool compares = case_.shard_counts.size() > 1;
    const int num_compared = compares ? std::min(case_.num_compared, case_.num_samples) : 0;
    generate(0, num_compared, kSharedBatchSize, case_.shard_counts);
    const std::span first_only = std::span(case_.shard_counts).first(1);
    const int batch_size = first_only[0] == 1 ? kBatchSize : kSharedBatchSize;
    generate(num_compared, case_.num_samples, batch_size, first_only);
    result_.test = chi_square(result_.counts, result_.law, case_.rule);
    return std::move(result_);
  }

 private:
  int32_t num_prompt_tokens() const { return static_cast<int32_t>(kPrompt.size()); }

  size_t cell(const LawSequence& sequence) const {
    size_t index = 0;
    for (int t = 0; t < case_.num_tokens; ++t) {
      index = index * static_cast<size_t>(case_.vocab_size) +
              static_cast<size_t>(sequence.tokens[kPrompt.size() + static_cast<size_t>(t)]);
    }
    return index;
  }

  // Generations first .. end, batch_size of them at a time: where one ends the next begins.
  void generate(int first, int end, int batch_size, std::span<const int> shard_counts) {
    std::vector<LawSequence> running(static_cast<size_t>(std::min(batch_size, end - first)));
    for (LawSequence& sequence : running) begin(sequence, first++);
    while (!running.empty()) {
      drafter_.propose(running);
      apply(running, decide(running, shard_counts));
      const auto has_ended = [&](LawSequence& sequence) {
        if (sequence.tokens.size() < kPrompt.size() + static_cast<size_t>(case_.num_tokens)) {
          return false;
        }
        ++result_.counts[cell(sequence)];
        if (first >= end) return true;
        begin(sequence, first++);
        return false;
      };
      std::erase_if(running, has_ended);
    }
  }

  // What it held before gives its memory.
  void begin(LawSequence& sequence, int index) const {
    sequence.params = case_.params;
    sequence.params.noise_seed = mix_seed(case_.noise_seed, static_cast<uint64_t>(index));
    sequence.tokens = kPrompt;
    sequence.round = 0;
    sequence.prepared = true;
  }

  // Row i of a sequence: its logits after the i-th draft token.
  std::span<const float> target_row(std::span<const int32_t> context,
                                    size_t i,
                                    size_t draft_len) const {
    const bool wrong = case_.fault == LawFault::kBonusFromWrongRow && i > 0 && i == draft_len;
    return target_.logits(wrong ? context.first(context.size() - 1) : context);
  }

  // The logits of every row of the batch, cut to a shard: [rows, shard.size()].
  std::vector<float> shard_rows(const std::vector<LawSequence>& batch,
                                const VocabShard& shard) const {
    std::vector<float> rows;
    std::vector<int32_t> context;
    for (const LawSequence& sequence : batch) {
      context = sequence.tokens;
      for (size_t i = 0; i <= sequence.draft.size(); ++i) {
        const std::span<const float> logits = target_row(context, i, sequence.draft.size());
        rows.insert(rows.end(), logits.begin() + shard.begin, logits.begin() + shard.end);
        if (i < sequence.draft.size()) context.push_back(sequence.draft[i].token);
      }
    }
    return rows;
  }

  // For one thread.
  std::shared_ptr<const TokenMask> make_mask() const {
    auto mask = make_token_mask(case_.params, grammars_.get());
    if (case_.fault != LawFault::kMaskWithoutDraft || mask == nullptr) return mask;
    return std::make_shared<const MaskWithoutDraft>(std::move(mask));
  }

  Decisions verify_shard(const std::vector<LawSequence>& batch,
                         const VocabShard& shard,
                         ShardExchange& exchange) const {
    const std::vector<float> logits = shard_rows(batch, shard);
    const std::shared_ptr<const TokenMask> mask = make_mask();
    std::vector<VerifyInput> inputs;
    inputs.reserve(batch.size());
    const float* next = logits.data();
    for (const LawSequence& sequence : batch) {
      VerifyInput input;
      input.params = &sequence.params;
      input.tokens = sequence.tokens;
      input.num_prompt_tokens = num_prompt_tokens();
      input.round = noise_round(case_, sequence);
      input.draft = sequence.draft;
      if (sequence.bonus_draft) input.bonus_draft = &*sequence.bonus_draft;
      input.logits = next;
      input.mask = mask.get();
      inputs.push_back(input);
      next += (sequence.draft.size() + 1) * static_cast<size_t>(shard.size());
    }
    return verify(inputs, shard, exchange);
  }

  Decisions decide_on(const std::vector<LawSequence>& batch, int num_shards) const {
    if (num_shards == 1) {
      SoloExchange solo;
      return verify_shard(batch, {0, case_.vocab_size, case_.vocab_size}, solo);
    }
    return run_on_shards<Decisions>(num_shards, [&](int rank, ShardExchange& exchange) {
      return verify_shard(batch, even_shard(case_.vocab_size, rank, num_shards), exchange);
    })[0];
  }

  Decisions decide(const std::vector<LawSequence>& batch, std::span<const int> shard_counts) {
    if (case_.fault == LawFault::kAcceptByTargetProb) return decide_by_target_prob(batch);
    Decisions decisions = decide_on(batch, shard_counts.front());
    if (shard_counts.size() > 1) result_.num_compared += std::ssize(decisions);
    for (const int num_shards : shard_counts.subspan(1)) {
      const Decisions others = decide_on(batch, num_shards);
      for (size_t i = 0; i < decisions.size(); ++i) {
        const bool alike = decisions[i].num_accepted == others[i].num_accepted &&
                           decisions[i].next_token == others[i].next_token &&
                           decisions[i].failed == others[i].failed;
        result_.num_unlike += alike ? 0 : 1;
      }
    }
    if (case_.fault == LawFault::kBonusWhereDraftRejected) draw_again(batch, decisions);
    return decisions;
  }

  // The same rounds without their bonus draft tokens, whose bonus tokens replace what followed a
  // rejected one.
  void draw_again(std::vector<LawSequence> batch, Decisions& decisions) const {
    std::vector<bool> rejected;
    for (size_t i = 0; i < batch.size(); ++i) {
      rejected.push_back(is_judged(batch[i], decisions[i]) &&
                         !bonus_accepted(batch[i], decisions[i]));
      batch[i].bonus_draft.reset();
    }
    const Decisions blind = decide_on(batch, 1);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (rejected[i]) decisions[i].next_token = blind[i].next_token;
    }
  }

  // Whether the bonus draft token's turn came, and whether it is what follows.
  static bool is_judged(const LawSequence& sequence, const SequenceDecision& decision) {
    return sequence.bonus_draft &&
           static_cast<size_t>(decision.num_accepted) == sequence.draft.size();
  }
  static bool bonus_accepted(const LawSequence& sequence, const SequenceDecision& decision) {
    return is_judged(sequence, decision) && decision.next_token == sequence.bonus_draft->token;
  }

  // The standard rule written anew on probabilities, with its accept test wrong.
  Decisions decide_by_target_prob(const std::vector<LawSequence>& batch) {
    Decisions decisions;
    for (const LawSequence& sequence : batch) {
      SequenceDecision decision;
      std::vector<int32_t> context = sequence.tokens;
      while (decision.next_token < 0) {
        const auto index = static_cast<size_t>(decision.num_accepted);
        std::vector<double> weights = target_laws_.after(context);
        NoiseKey key{sequence.params.noise_seed,
                     static_cast<uint32_t>(context.size()),
                     Stream::kAccept,
                     sequence.round};
        if (index < sequence.draft.size()) {
          const DraftToken& token = sequence.draft[index];
          if (uniform_of(key) < weights[static_cast<size_t>(token.token)]) {
            ++decision.num_accepted;
            context.push_back(token.token);
            continue;
          }
          for (const DraftCandidate& candidate : draft_distribution(token)) {
            double& weight = weights[static_cast<size_t>(candidate.token)];
            weight = std::max(weight - static_cast<double>(candidate.draft_prob), 0.0);
          }
        }
        key.stream = Stream::kResidual;
        decision.next_token = draw_by_noise(weights, key);
      }
      decisions.push_back(decision);
    }
    return decisions;
  }

  // P(agree) of every draft token that was examined, given the text before it.
  double expected_accepted(const LawSequence& sequence, size_t num_examined) {
    double sum = 0.0;
    std::vector<int32_t> context = sequence.tokens;
    for (size_t i = 0; i < num_examined; ++i) {
      sum += coupled_agreement(target_laws_.after(context), draft_laws_.after(context));
      context.push_back(sequence.draft[i].token);
    }
    return sum;
  }

  void apply(std::vector<LawSequence>& batch, const Decisions& decisions) {
    for (size_t i = 0; i < batch.size(); ++i) {
      LawSequence& sequence = batch[i];
      OUTRIDER_CHECK(!decisions[i].failed);
      const auto num_examined =
          std::min(sequence.draft.size(), static_cast<size_t>(decisions[i].num_accepted) + 1);
      result_.num_examined += static_cast<int64_t>(num_examined);
      if (case_.expect_agreement) {
        result_.expected_accepted += expected_accepted(sequence, num_examined);
      }
      result_.num_bonus_drafts += is_judged(sequence, decisions[i]) ? 1 : 0;
      result_.num_accepted_bonus_drafts += bonus_accepted(sequence, decisions[i]) ? 1 : 0;
      result_.num_whole_blocks +=
          sequence.draft.size() == static_cast<size_t>(case_.draft_len) ? 1 : 0;
      if (!sequence.guesses.empty()) {
        sequence.prepared = decisions[i].next_token ==
                            sequence.guesses[static_cast<size_t>(decisions[i].num_accepted)];
      }
      for (int32_t k = 0; k < decisions[i].num_accepted; ++k) {
        sequence.tokens.push_back(sequence.draft[static_cast<size_t>(k)].token);
      }
      sequence.tokens.push_back(decisions[i].next_token);
      ++sequence.round;
      ++result_.num_rounds;
      result_.num_drafted += static_cast<int64_t>(sequence.draft.size());
      result_.num_accepted += decisions[i].num_accepted;
    }
  }

  const LawCase case_;
  const ToyModel target_;
  const ToyModel draft_;
  const std::unique_ptr<const GrammarEngine> grammars_ = toy_grammar_engine(case_.params);
  const std::shared_ptr<const TokenMask> draft_mask_ = make_mask();
  LawDraft drafter_{case_, draft_, num_prompt_tokens(), draft_mask_.get()};
  ExactLaws target_laws_{target_, case_.params};
  ExactLaws draft_laws_{draft_, case_.params};
  LawResult result_;
};

}  // namespace

LawResult sample_law(const LawCase& law_case) { return LawSampler(law_case).run(); }

int least_samples(const LawCase& law_case) {
  const std::vector<double> law = law_of(law_case, target_of(law_case));
  std::vector<uint64_t> counts(law.size(), 0);
  do {
    counts[0] += 100;
  } while (chi_square(counts, law, law_case.rule).degrees < 1);
  return static_cast<int>(counts[0]);
}

}  // namespace outrider
