// The pair at hand in the founding papers' terms: its acceptance as the models themselves say it
// (asked outside the engine, position by position) beside the acceptance the engine counts, and the
// tokens per round for every draft length. For `theory_bench`, a front end on rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ranks/job/job.h"

namespace outrider {

struct Mean {
  double value = 0;
  double standard_error = 0;  // as if the values were independent
  int64_t count = 0;
};

// What the two models say about the positions of a text written without speculation.
struct AskedAcceptance {
  Mean whole;      // of sum min(target_prob, draft_prob): alpha of Leviathan et al., corollary 3.6
  Mean sent;       // the same, of the distribution that the draft sends
  Mean distance;   // of D_LK; alpha = 1 - its mean
  Mean agreement;  // chance that the coupled choices agree
};

// One verification rule at one draft length; rounds with fewer draft tokens are not counted.
struct PairCell {
  VerifyMode mode = VerifyMode::kStandard;
  int32_t draft_len = 0;
  Mean tokens_per_round;
  int64_t num_examined = 0;  // draft tokens of which all before them in their block were accepted
  int64_t num_accepted = 0;
  double tokens_per_s = 0;
  double verify_step_s = 0;  // a target step with draft tokens
};

// The same requests with asynchronous drafting, by the standard rule at the longest draft
// length.
struct AsyncPass {
  AsyncDrafting mode = AsyncDrafting::kCache;
  Mean bonus_drafts;  // share that were accepted of those judged for the bonus position
  double tokens_per_s = 0;
};

// Counted by the engine, and asked of the models at the very same positions.
struct CountedAcceptance {
  Mean counted;
  Mean asked;
};

struct PairMeasurement {
  // Without a draft model of the target's tokens there is nobody to ask.
  std::optional<AskedAcceptance> asked;
  std::optional<CountedAcceptance> compared;
  Mean counted;                 // accepted / examined by the standard rule, over all draft lengths
  std::vector<PairCell> cells;  // of a draft that waits while the target verifies
  std::vector<AsyncPass> async_passes;  // none with a draft that cannot
  double off_tokens_per_s = 0;
  double target_step_s = 0;
  double draft_step_s = 0;
  double cost_ratio = 0;
  int32_t best_draft_len = 0;  // Theorem 3.8, at most 64
  double best_speedup = 1;

  // What a round of this cell must gain from its tokens, draft and verify steps at their own
  // measured cost: Theorem 3.8 without its assumption that a verify costs what a plain step costs.
  double speedup_by_cost(const PairCell& cell) const;

  // Of the standard rule: what the draft sends, or what was counted when nobody can be asked.
  double alpha() const { return asked ? asked->sent.value : counted.value; }
};

struct PairOptions {
  std::vector<std::string> prompts;
  int32_t max_tokens = 128;
  double temperature = 1;
  uint64_t seed = 0;
};

// Throws Error when the job has no draft.
PairMeasurement measure_pair(const FrontEndContext& context, const PairOptions& options);

}  // namespace outrider
