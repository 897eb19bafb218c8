// See law_draft.h.
#include "scheduler/exactness/law_draft.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/verification/logprobs.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

constexpr uint64_t kCoinSeed = 98;

// A number in [0, 1) that nothing else depends on; one round may throw several coins.
double coin(const LawSequence& sequence, uint32_t which) {
  return uniform_of(
      {mix_seed(kCoinSeed, sequence.params.noise_seed), which, Stream::kAccept, sequence.round});
}

}  // namespace

uint32_t noise_round(const LawCase& law_case, const LawSequence& sequence) {
  return law_case.fault == LawFault::kRoundLeftOut ? 0 : sequence.round;
}

int32_t draw_by_noise(std::span<const double> weights, const NoiseKey& key) {
  int32_t chosen = 0;
  double best = -1e300;
  for (size_t v = 0; v < weights.size(); ++v) {
    if (!(weights[v] > 0.0)) continue;
    const auto token = static_cast<int32_t>(v);
    const double score = exact_log(weights[v]) + gumbel_from_bits(noise_bits(key, token));
    if (score > best) chosen = token;
    best = std::max(best, score);
  }
  return chosen;
}

void LawDraft::propose(std::span<LawSequence> batch) {
  std::vector<Line> lines;
  for (LawSequence& sequence : batch) {
    Line line{.sequence = &sequence};
    if (begin(line)) lines.push_back(line);
  }
  for (int step = 0; !lines.empty(); ++step) {
    std::vector<DraftToken> tokens = step_of(lines);
    for (size_t i = 0; i < lines.size(); ++i) take(lines[i], step, std::move(tokens[i]));
    std::erase_if(lines, [&](const Line& line) { return step + 1 >= line.num_wanted; });
  }
}

// Whether anything is wanted. The draft goes on to the token behind its block where that is
// proposed, or guessed from.
bool LawDraft::begin(Line& line) const {
  LawSequence& sequence = *line.sequence;
  sequence.draft.clear();
  sequence.guesses.clear();
  sequence.bonus_draft.reset();
  if (case_.draft == DraftKind::kNone) return false;
  sequence.context = sequence.tokens;
  line.has_bonus_draft = has_bonus_draft(sequence);
  const bool goes_on = line.has_bonus_draft || case_.block_size == BlockSize::kPrepared;
  line.num_wanted = draft_len(sequence) + (goes_on ? 1 : 0);
  return line.num_wanted > 0;
}

int LawDraft::draft_len(const LawSequence& sequence) const {
  if (case_.block_size == BlockSize::kPrepared) return sequence.prepared ? case_.draft_len : 0;
  if (case_.block_size == BlockSize::kWhole) return case_.draft_len;
  return static_cast<int>(coin(sequence, 0) * (case_.draft_len + 1));
}

bool LawDraft::has_bonus_draft(const LawSequence& sequence) const {
  if (case_.bonus_drafts == BonusDrafts::kSometimes) return coin(sequence, 1) < 0.5;
  return case_.bonus_drafts == BonusDrafts::kAlways;
}

bool LawDraft::may_be_judged(const LawSequence& sequence, const DraftToken& bonus_draft) const {
  return case_.fault != LawFault::kBonusDraftByValue ||
         bonus_draft.token == likeliest_but(sequence, -1);
}

int32_t LawDraft::likeliest_but(const LawSequence& sequence, int32_t excluded) const {
  const std::span<const float> logits = draft_.logits(sequence.context);
  int32_t best = -1;
  for (int32_t v = 0; v < case_.vocab_size; ++v) {
    const bool better =
        best < 0 || logits[static_cast<size_t>(v)] > logits[static_cast<size_t>(best)];
    if (v != excluded && better) best = v;
  }
  return best;
}

void LawDraft::take(Line& line, int step, DraftToken token) const {
  LawSequence& sequence = *line.sequence;
  OUTRIDER_CHECK(valid_draft(token, case_.vocab_size));
  const bool in_block = step < draft_len(sequence);
  if (case_.block_size == BlockSize::kPrepared) {
    sequence.guesses.push_back(in_block ? likeliest_but(sequence, token.token) : token.token);
  }
  if (in_block) {
    sequence.context.push_back(token.token);
    sequence.draft.push_back(std::move(token));
  } else if (line.has_bonus_draft && may_be_judged(sequence, token)) {
    sequence.bonus_draft = std::move(token);
  }
}

// The next token of every line.
std::vector<DraftToken> LawDraft::step_of(std::span<const Line> lines) {
  std::vector<DraftToken> tokens;
  tokens.reserve(lines.size());
  if (case_.draft == DraftKind::kLastRepeated) {
    for (const Line& line : lines) tokens.push_back({line.sequence->context.back(), {}});
    return tokens;
  }
  if (case_.draft == DraftKind::kMostLikely) {
    for (const Line& line : lines) tokens.push_back({likeliest_but(*line.sequence, -1), {}});
    return tokens;
  }
  std::vector<DraftInput> inputs;
  inputs.reserve(lines.size());
  for (const Line& line : lines) inputs.push_back(input_of(*line.sequence));
  for (RankedDraftToken& bonus_draft : propose_ranked(inputs, scanner_)) {
    tokens.push_back(std::move(bonus_draft.drawn));
  }
  if (case_.fault == LawFault::kDraftSharesResidualNoise) {
    for (size_t i = 0; i < lines.size(); ++i) {
      tokens[i].token = draw_with_residual_noise(*lines[i].sequence, tokens[i]);
    }
  }
  return tokens;
}

DraftInput LawDraft::input_of(const LawSequence& sequence) const {
  DraftInput input;
  input.params = &sequence.params;
  input.tokens = sequence.tokens;
  input.num_prompt_tokens = num_prompt_tokens_;
  input.drafted = sequence.draft;
  input.round = noise_round(case_, sequence);
  input.logits = draft_.logits(sequence.context).data();
  input.vocab_size = case_.vocab_size;
  input.target_vocab_size = case_.vocab_size;
  input.num_candidates = case_.num_candidates;
  input.mask = mask_;
  return input;
}

int32_t LawDraft::draw_with_residual_noise(const LawSequence& sequence,
                                           const DraftToken& token) const {
  const NoiseKey key{sequence.params.noise_seed,
                     static_cast<uint32_t>(sequence.context.size()),
                     Stream::kResidual,
                     noise_round(case_, sequence)};
  std::vector<double> weights(static_cast<size_t>(case_.vocab_size), 0.0);
  for (const DraftCandidate& candidate : draft_distribution(token)) {
    weights[static_cast<size_t>(candidate.token)] = static_cast<double>(candidate.draft_prob);
  }
  return draw_by_noise(weights, key);
}

}  // namespace outrider
