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
  double wait_s = 0;          // that wait
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
  // From the message that a round waits to the first tokens of its blocks.
  // num_tokens: of each sequence, in the one reply.
  void note_first_tokens(double seconds, int32_t num_sequences, double num_tokens);
  // A reply of the draft: DraftReply's figures.
  void note_draft_work(uint32_t num_steps, uint32_t num_rows, double seconds);
  void forget(uint64_t sequence_id) { survival_.forget(sequence_id); }

  RoundChoice choose(const RoundOutlook& outlook) const;

  // What a round of one row a sequence takes with an idle draft, all in all; 0 = not known.
  double plain_round_s(const StepLoad& load) const;
  const Survival& survival() const { return survival_; }

 private:
  double rate_of_going(const RoundOutlook& outlook,
                       const GoodputInputs& inputs,
                       StepLoad load) const;
  // Tokens of a sequence and seconds: sums that decay.
  struct Rate {
    double num_rounds = 0;
    double num_tokens = 0;
    double squares = 0;  // of the tokens of a round
    double seconds = 0;
    double plain_s = 0;  // of the same rounds, had the draft been idle and nothing been drafted
    void add(double tokens, double round_s, double plain_round_s, double memory);
    double value() const { return seconds > 0 ? num_tokens / seconds : 0; }
    double against_plain() const { return value() * plain_s / num_rounds; }
    double relative_error() const;  // of value(): one standard deviation
  };
  // Batches of about one size. The draft works until it is seen to cost more than it brings; then
  // it is idle for so long that trying it again takes next to nothing of the time.
  struct Batch {
    Rate recent;                       // the price, and a verdict on what is new
    Rate working;                      // the verdict on small losses
    int64_t num_rounds_idle_left = 0;  // > 0: the draft is idle
    int64_t num_rounds_working = 0;    // since it was last idle
    bool measured = false;             // rounds with an idle draft were seen, or probes
    bool lost = false;                 // why it is idle
  };
  static int32_t class_of(int32_t num_sequences);
  const Batch* batch_of(int32_t num_sequences) const;
  static bool loses(const Rate& rate, double num_deviations);
  static void judge(Batch& batch);
  void note_idle(Batch& batch, const RoundFacts& facts, double plain_s);
  double draft_token_s(int32_t num_sequences) const;

  Config config_;
  Survival survival_;
  StepCosts idle_steps_;
  StepCosts working_steps_;
  StepCosts draft_steps_;
  std::map<int32_t, Batch> batches_;  // by the logarithm of the number of sequences
  double overhead_s_ = 0;             // of a round beside wait and step
  double idle_bias_ = 1;              // rounds with an idle draft, measured over predicted
  double link_s_ = 0;                 // from asking to the first token, beside the draft's step
  double hit_if_all_stand_ = 0;
  double hit_if_not_ = 0;
  double num_prepared_ = 0;
  bool probed_ = false;
  bool seen_idle_ = false;  // a round with an idle draft
  bool evidence_ = false;   // since the last round
};

}  // namespace outrider
