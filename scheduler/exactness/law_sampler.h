// Losslessness, counted: the first tokens of many speculative generations of a toy model, made by
// propose_ranked() and verify() as the ranks do, beside their exact joint law. The same generations
// with a rule broken on purpose must not fit it. Called by the law tests and by `outrider verify`,
// on one thread (more shards: one thread each, while it lasts).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/exactness/chi_square.h"
#include "scheduler/sampling_params.h"

namespace outrider {

enum class DraftKind : uint8_t {
  kNone,          // plain sampling
  kModel,         // the target with every logit disturbed; sends its distribution
  kMostLikely,    // its likeliest token, one-hot
  kLastRepeated,  // the last token again, one-hot
};

// Whether a round has a bonus draft token.
enum class BonusDrafts : uint8_t {
  kNone,
  kAlways,
  kSometimes,  // by a fair coin of its own
};

// How much of a block there is when its round begins.
enum class BlockSize : uint8_t {
  kWhole,     // draft_len tokens
  kByCoin,    // 0 to draft_len, alike likely
  kPrepared,  // asynchronous drafting: draft_len when the round before came out as the draft
              // guessed, else 0
};

// What is broken on purpose.
enum class LawFault : uint8_t {
  kNone,
  kDraftSharesResidualNoise,  // the draft draws with the noise of the draw after a rejection
  kRoundLeftOut,              // ACCEPT, RESIDUAL and DRAFT noise is keyed by position alone
  kAcceptByTargetProb,        // standard rule, but accepts when u < target_prob
  kBonusFromWrongRow,         // the bonus token comes from the row before the last
  kBonusDraftByValue,         // the bonus draft token is judged only when the draft thinks it the
                              // likeliest
  kBonusWhereDraftRejected,   // standard rule: the target's law, where its residual is due
  kMaskWithoutDraft,          // masks see the committed tokens and not the draft before their row
};

struct LawCase {
  std::string name;
  SamplingParams params;     // every generation gets a noise seed of its own,
  uint64_t noise_seed = 99;  // made from this one: with another the generations are new ones
  DraftKind draft = DraftKind::kModel;
  LawFault fault = LawFault::kNone;
  BonusDrafts bonus_drafts = BonusDrafts::kNone;
  BlockSize block_size = BlockSize::kWhole;
  int32_t num_candidates = 16;
  int draft_len = 2;  // below num_tokens, or the law would not see the bonus token
  int32_t vocab_size = 4;
  int num_tokens = 3;  // of the joint law; vocab_size^num_tokens cells
  int num_samples = 200000;
  uint64_t model_seed = 11;  // of the target's logits; the draft's noise has the next
  float target_spread = 1.2f;
  float draft_spread = 0.9f;
  // Coupled rule with a model as draft: also add up what the formula says about agreement.
  bool expect_agreement = false;
  // The first decides; the others see the same rounds, of the first num_compared generations, and
  // must decide alike.
  std::vector<int> shard_counts = {1};
  int num_compared = std::numeric_limits<int>::max();
  ChiSquareRule rule;
};

struct LawResult {
  std::vector<uint64_t> counts;  // [cells], the first token varying slowest
  std::vector<double> law;       // [cells]
  ChiSquare test;
  int64_t num_rounds = 0;
  int64_t num_drafted = 0;
  int64_t num_accepted = 0;
  int64_t num_examined = 0;      // draft tokens that were accepted or rejected
  int64_t num_bonus_drafts = 0;  // whose turn came: all draft tokens before them were accepted
  int64_t num_accepted_bonus_drafts = 0;
  int64_t num_whole_blocks = 0;    // rounds with draft_len tokens
  double expected_accepted = 0.0;  // of these by coupled_agreement(), with expect_agreement
  int64_t num_compared = 0;        // decisions made on every number of shards
  int64_t num_unlike = 0;          // of these, that came out otherwise on another than the first
};

LawResult sample_law(const LawCase& law_case);

// The fewest samples, in hundreds, whose test can fail: with fewer, all cells are pooled into one.
int least_samples(const LawCase& law_case);

}  // namespace outrider
