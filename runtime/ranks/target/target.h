// A target rank: one shard of the target model and a copy of every sequence. It executes the plan
// it is given and decides from the same reduced bytes as its peers; it never decides by itself
// whether a collective happens.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/forward/model.h"
#include "runtime/comm/group/target_group.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"
#include "runtime/ranks/target/faults.h"
#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling/token_mask.h"
#include "scheduler/verification/verify.h"

namespace outrider {

class TargetRank {
 public:
  // model and group must outlive this. faults: what goes wrong on this rank on purpose.
  TargetRank(Model& model, TargetGroup& group, Faults faults = {});
  ~TargetRank();
  const Model& model() const { return model_; }
  // As Model's; of the step that execute() has begun.
  void set_meanwhile(Model::Meanwhile meanwhile);
  void set_before_end(std::function<void()> before_end);

  // Gives the proposals that came while the ranks computed. Called once in a round whose plan
  // awaits them, between the forward pass and the verification: by rank 0 to hear the draft and
  // tell the other ranks, by those to hear rank 0.
  using LateProposals = std::function<RoundAmendment()>;

  // Called once in every round: when the step has begun, or where there is none to compute. By rank
  // 0 for what can be done beside it, by the others to hear what the plan left out.
  using WhenBegun = std::function<void()>;

  // One round: forward, verify, commit to this rank's copies. Collective over the group: every
  // member calls it with the same plan (of draft tokens, their candidates may be missing until
  // when_begun), is given the same amendment and returns the same decision.
  // Afterwards the plan holds the proposals that were judged, early and late ones, and no others:
  // what cannot be judged (nonsense, another rule, a sequence that does not sample) is dropped.
  // A plan with probe rows is one forward pass of them; its decision is empty.
  RoundDecision execute(RoundPlan& plan,
                        const LateProposals& late,
                        const WhenBegun& when_begun = {});
  // From a hook: the proposals are known while the step still runs; nobody is asked for them later.
  void amend(RoundPlan& plan, const RoundAmendment& amendment);
  // The same where nothing comes late.
  RoundDecision execute(RoundPlan plan);

  // Of the sampling path, since the start; nothing with one rank.
  const ExchangeTraffic& traffic() const { return traffic_; }

 private:
  // This rank's copy of a sequence.
  struct Copy {
    SamplingParams params;
    std::shared_ptr<const TokenMask> mask;  // null without one
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

  std::span<const float> forward(RoundPlan& plan, const WhenBegun& when_begun);
  void update_copies(const RoundPlan& plan);
  void clear_fresh_blocks(const SequencePlan& planned,
                          std::span<const int32_t> told,
                          size_t num_before);
  void build_batch(const RoundPlan& plan);
  void add_rows(const SequencePlan& planned, int32_t sequence_index);
  void settle_proposals(RoundPlan& plan, const RoundAmendment& amendment) const;
  void prepare_verification(RoundPlan& plan);
  void verify_rows(const float* logits, RoundDecision* decision);
  void score_prompts(const RoundPlan& plan, const float* logits, RoundDecision* decision);
  void commit(const RoundPlan& plan, const RoundDecision& decision);
  const float* logits_of_row(const float* logits, int32_t logit_row) const;
  const float* spoiled(const RoundPlan& plan, std::span<const float> logits);
  void spoil_kv(std::span<const int32_t> blocks, int32_t position);

  Model& model_;
  ExchangeTraffic traffic_;
  std::unique_ptr<ShardExchange> exchange_;
  std::unique_ptr<RowScanner> scanner_;
  VocabShard vocab_;
  std::map<uint64_t, Copy> copies_;
  Batch batch_;
  std::vector<RowSpan> spans_;         // one per planned sequence
  std::vector<VerifyInput> inputs_;    // of the round
  std::vector<size_t> planned_index_;  // of each input, in the plan
  std::optional<Verification> verification_;
  bool has_begun_ = false;   // the round's step
  bool is_amended_ = false;  // and its proposals are taken
  Faults faults_;
  std::vector<float> spoiled_logits_;
};

}  // namespace outrider
