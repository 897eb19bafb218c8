// What the coordinator has learned about speculation, and the choice for each round: survival of
// draft tokens, costs of steps, the rate that the job makes, and whether a draft at work is worth
// what it takes from the target. Plain values of what happened; no clock. The coordinator's thread.
#pragma once

#include <cstdint>
#include <map>

#include "scheduler/goodput.h"
#include "scheduler/step_costs.h"
#include "scheduler/survival.h"

namespace outrider {

// A round that is over.
struct RoundFacts {
  StepLoad load;
  int32_t num_sequences = 0;  // that sampled
  int32_t num_tokens = 0;     // that came out
  double step_s = 0;          // forward, verification, agreement: without the wait for drafts
  double total_s = 0;         // since the end of the round before, the wait included
  bool has_prompts = false;   // rows of prompts were among them
  bool draft_worked = false;  // the draft was told to work while it ran
};

class Speculation {
 public:
  struct Config {
    int32_t longest_draft_len = 16;
    bool has_worker = false;   // a draft model, that takes time
    bool rides_ahead = false;  // and works while the target verifies
  };
  explicit Speculation(const Config& config);

  // Before the first round; the draft was idle.
  void note_probe(const StepLoad& load, double seconds);
  void note_round(const RoundFacts& facts);
  // Of a block (a proposal for the bonus position counts as one more token of it), or of what the
  // draft had proposed without a row.
  void note_verdict(uint64_t sequence_id, int32_t num_drafted, int32_t num_accepted);
  void note_shadow(uint64_t sequence_id, bool stood);
  // After a round under which the draft rode ahead: was the next block prepared, with how many
  // tokens.
  void note_lookup(bool all_stood, bool hit, int32_t num_prepared);
  // From the message that a round waits to the first token of its blocks.
  void note_first_token(double seconds);
  // A reply of the draft: DraftReply's figures.
  void note_draft_work(uint32_t num_steps, uint32_t num_rows, double seconds);
  void forget(uint64_t sequence_id) { survival_.forget(sequence_id); }

  RoundChoice choose(const RoundOutlook& outlook) const;

  // What a round of one row a sequence would take with an idle draft; 0 = not known.
  double plain_round_s(const RoundOutlook& outlook) const;
  const Survival& survival() const { return survival_; }

 private:
  // Tokens and seconds, sums that decay.
  struct Rate {
    double num_tokens = 0;
    double seconds = 0;
    int64_t num_rounds = 0;
    double value() const { return seconds > 0 ? num_tokens / seconds : 0; }
  };
  // Of a batch about this large, with the draft at work.
  struct Batch {
    Rate rate;
    double plain_rate = 0;  // what it would make with an idle draft, by the tables
    bool works = true;
    int64_t num_rounds_idle = 0;
    int64_t num_rounds_until_trial = 0;
    int64_t trial_pause = 0;
    int64_t num_rounds_of_trial = 0;
  };
  double plain_rate(const StepLoad& load, int32_t num_sequences) const;
  void judge(Batch& batch, const RoundFacts& facts);

  Config config_;
  Survival survival_;
  StepCosts idle_steps_;
  StepCosts working_steps_;
  std::map<int32_t, Batch> batches_;  // by the logarithm of the number of sequences
  double overhead_s_ = 0;             // of a round beside wait and step
  double first_token_s_ = 0;
  double draft_step_s_ = 0;
  double hit_if_all_stand_ = 0;
  double hit_if_not_ = 0;
  double num_prepared_ = 0;
};

}  // namespace outrider
