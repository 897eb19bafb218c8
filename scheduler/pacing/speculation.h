// What the coordinator has learned about speculation, and the choice for each round: survival of
// draft tokens, costs of steps, and the rate that the job makes. Whether the draft works at all is
// measured (scheduler/pacing/draft_trials.h). Plain values of what happened; no clock. The
// coordinator's thread.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "scheduler/drafting/draft_news.h"
#include "scheduler/pacing/acceptance.h"
#include "scheduler/pacing/draft_trials.h"
#include "scheduler/pacing/goodput.h"
#include "scheduler/pacing/round_record.h"
#include "scheduler/pacing/speedup_account.h"
#include "scheduler/pacing/step_times.h"

namespace outrider {

class Speculation {
 public:
  struct Config {
    int32_t longest_draft_len = 16;
    bool has_worker = false;    // a draft model, that takes time
    bool drafts_async = false;  // and works while the target verifies
  };
  explicit Speculation(const Config& config);

  // Before the first round; the draft was idle.
  void record_probe(const StepLoad& load, double seconds);
  void record_round(const RoundRecord& round);
  // What became of a sequence's draft, and of what was proposed and not judged: the next two.
  void record_draft(const DraftResult& result);
  // Of a block (a bonus draft token counts as one more token of it), or of what the
  // draft had proposed without a row: a block of one.
  void record_result(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted);
  // After a round during which the draft worked: was the next block prepared, with how many
  // tokens.
  void record_lookup(bool all_accepted, bool hit, int32_t num_prepared);
  // From the message that a round waits to the first tokens of its blocks.
  // num_tokens: of each sequence, in the one reply.
  void record_first_tokens(double seconds, int32_t num_sequences, double num_tokens);
  // A reply of the draft: DraftReply's figures. awaited: the target waited while the draft took
  // those steps, so that they show what a wait costs. Others may have been taken on cores that the
  // target was using.
  void record_draft_work(uint32_t num_steps, uint32_t num_rows, double seconds, bool awaited);
  void forget(uint64_t sequence_id);

  RoundChoice choose(const RoundState& state) const;
  // What a step of one row for each sequence of this round would have taken with the draft idle;
  // 0 = not known.
  double plain_step_s(const RoundRecord& round) const;

 private:
  RoundChoice choose_blocks(const RoundState& state, const GoodputInputs& inputs) const;
  RoundChoice choose_backups(const RoundState& state,
                             GoodputInputs inputs,
                             const RoundChoice& without) const;
  double rate_of_going(const RoundState& state, const GoodputInputs& inputs, StepLoad load) const;
  double plain_round_s(const StepLoad& load) const;
  DraftTrials::Arm expected_arm(int32_t num_sequences, int64_t kv_positions) const;
  double price_of(int32_t num_sequences, double plain_s) const;
  RoundChoice choose_to_learn(RoundState state, GoodputInputs inputs, double plain_s) const;
  GoodputInputs what_is_known(const RoundState& state, const StepLoad& plain) const;
  double draft_token_s(int32_t num_sequences) const;

  Config config_;
  AcceptanceModel acceptance_;  // of the draft model, or of who drafts without one
  // Of what stands in for its blocks, by source and length of the match: a long one is continued
  // alike more often than a short one.
  std::map<std::pair<BlockSource, int32_t>, AcceptanceModel> backups_;
  StepTimes idle_steps_;
  StepTimes working_steps_;
  StepTimes draft_steps_;
  DraftTrials trials_;
  // Of a round beside wait and step, by its rows.
  StepTimes idle_overhead_;
  StepTimes working_overhead_;
  std::map<int, RecentRounds> recent_;  // by the sequences' number, in powers of two
  double link_s_ = 0;                   // from asking to the first token, beside the draft's step
  double hit_if_all_stand_ = 0;
  double hit_if_not_ = 0;
  double hit_after_backup_ = 0;
  double num_prepared_ = 0;
  // A step of a draft that does not draft asynchronously was seen, beside none of the target's.
  bool seen_awaited_ = false;
  bool heard_ = false;  // something of a draft, since the last round
};

}  // namespace outrider
