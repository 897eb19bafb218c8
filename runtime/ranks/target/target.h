// A target rank: one shard of the target model and a copy of every sequence. It executes the plan
// it is given and decides from the same reduced bytes as its peers; it never decides by itself
// whether a collective happens.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/forward/model.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/comm/group/target_group.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target/faults.h"
#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/grammar_engine.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling/token_mask.h"
#include "scheduler/verification/verify.h"

namespace outrider {

class TargetRank {
 public:
  // model, group and grammars must outlive this; without grammars no request may have one. faults:
  // what goes wrong on this rank on purpose.
  TargetRank(Model& model,
             TargetGroup& group,
             Faults faults = {},
             const GrammarEngine* grammars = nullptr);
  ~TargetRank();
  const Model& model() const { return model_; }

  // One round, step by step in this order: forward, verify, commit to this rank's copies.
  // Collective over the group: every member begins the same plan, hears the same and makes the same
  // decision.
  void begin(RoundPlan plan);  // the device computes from here on
  // Where the plan said that they follow: what its draft tokens were drawn from. Throws Error.
  void add_candidates(const Bytes& message);
  void prepare();  // what of the verification needs no logits
  // As Model's. Where this thread computes, the step is over afterwards.
  std::optional<JobClock::time_point> advance() { return model_.advance(); }
  // The bonus draft tokens that came while the ranks computed, when the plan said that they would
  // be told.
  bool awaits_bonus_drafts() const { return awaits_bonus_drafts_; }
  void add_late_tokens(const LateDraftTokens& late_tokens);
  RoundDecision finish();

  // Of the round that has begun. After add_late_tokens() it holds the bonus draft tokens that are
  // judged, early and late ones, and no others: what cannot be judged (nonsense, another rule, a
  // sequence that does not sample) is dropped.
  const RoundPlan& plan() const { return plan_; }
  RoundPlan take_plan() { return std::move(plan_); }

  // All of it where nothing follows the plan.
  RoundDecision execute(RoundPlan plan);
  // No round, but one forward pass of so many rows, to see what it takes. Collective.
  void probe(int32_t num_rows);

  // Of the sampling path, since the start; nothing with one rank.
  const ExchangeTraffic& traffic() const { return traffic_; }

 private:
  // This rank's copy of a sequence.
  struct Copy {
    SamplingParams params;
    std::shared_ptr<const TokenMask> mask;  // null without one
    ProcessedRows processed;
    int32_t num_prompt_tokens = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> blocks;
  };
  // Where a planned sequence's logits lie, as counts of logit rows.
  struct RowSpan {
    int32_t first = 0;
    int32_t num_scored = 0;   // prompt rows whose next token is scored
    int32_t num_sampled = 0;  // draft.size() + 1, or 0
  };

  void update_copies();
  void add_fresh_blocks(const SequencePlan& planned,
                        std::span<const int32_t> told,
                        size_t num_before);
  void build_batch();
  void add_rows(const SequencePlan& planned, int32_t sequence_index);
  void settle_bonus_drafts(const LateDraftTokens& late_tokens);
  void verify_rows(const float* logits, RoundDecision* decision);
  void score_prompts(const float* logits, RoundDecision* decision);
  void commit(const RoundDecision& decision);
  const float* logits_of_row(const float* logits, int32_t logit_row) const;
  const float* spoiled(std::span<const float> logits);
  void spoil_kv(std::span<const int32_t> blocks, int32_t position);

  Model& model_;
  ExchangeTraffic traffic_;
  std::unique_ptr<ShardExchange> exchange_;
  std::unique_ptr<RowScanner> scanner_;
  VocabShard vocab_;
  const GrammarEngine* grammars_;
  std::map<uint64_t, Copy> copies_;
  RoundPlan plan_;
  bool awaits_bonus_drafts_ = false;
  std::vector<int32_t> fresh_blocks_;
  Batch batch_;
  std::optional<TraceSpan> forward_span_;  // while the step runs
  std::vector<RowSpan> spans_;             // one per planned sequence
  std::vector<VerifyInput> inputs_;        // of the round
  std::vector<size_t> planned_index_;      // of each input, in the plan
  std::optional<Verification> verification_;
  Faults faults_;
  std::vector<float> spoiled_logits_;
};

}  // namespace outrider
