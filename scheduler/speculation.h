// What the coordinator has learned about speculation, and the choice for each round: survival of
// draft tokens, costs of steps, the rate that the job makes, and whether a draft at work is worth
// what it takes from the target. Plain values of what happened; no clock. The coordinator's thread.
#pragma once

#include <array>
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
  // A reply of the draft: DraftReply's figures. awaited: the target waited while the draft took
  // those steps, so that they show what a wait costs. Others may have been taken on cores that the
  // target was using.
  void note_draft_work(uint32_t num_steps, uint32_t num_rows, double seconds, bool awaited);
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
    double seconds = 0;
    double plain_s = 0;  // of the same rounds, had the draft been idle and nothing been drafted
    // Of tokens and seconds of a round: squares, products, squares.
    double tokens_tokens = 0;
    double tokens_seconds = 0;
    double seconds_seconds = 0;
    void add(double tokens, double round_s, double plain_round_s, double memory);
    double value() const { return seconds > 0 ? num_tokens / seconds : 0; }
    double against_plain() const { return value() * plain_s / num_rounds; }
    // Of value(): one standard deviation, by how far its rounds lie apart in tokens and in time,
    // and by how few they are.
    double relative_error(int32_t num_sequences) const;
  };
  // Whatever disturbs a round makes it longer, sometimes many times: then it counts as a few times
  // a typical one of the last.
  class Typical {
   public:
    // ratio: of a round's time to the expected one. Returns what it counts as.
    double take_in(double ratio);

   private:
    std::array<double, 9> last_{};
    size_t num_seen_ = 0;
  };
  // Batches of about one size. The draft works until it is seen to cost more than it brings, or to
  // bring nothing because its tokens get no rows; then it is idle for so long that trying it again
  // takes next to nothing of the time.
  struct Batch {
    Rate recent;   // the price, and a verdict on what is new
    Rate working;  // the verdict on small losses
    Typical typical;
    int64_t num_rounds_idle_left = 0;  // > 0: the draft is idle
    int64_t num_rounds_working = 0;    // since it was last idle
    size_t num_losses = 0;             // verdicts in a row against the draft
    int64_t check_after = 128;         // rounds until ones with an idle draft are measured again
    bool measured = false;             // rounds with an idle draft were seen, or probes
    bool lost = false;                 // why it is idle
    bool rests = false;                // the other reason
    int64_t unused = 0;                // rounds in a row that took nothing of it, weighted
    int64_t num_rests = 0;             // in a row
  };
  static int32_t class_of(int32_t num_sequences);
  const Batch* batch_of(int32_t num_sequences) const;
  static bool loses(const Rate& rate, int32_t num_sequences, double num_deviations);
  void judge(Batch& batch, int32_t num_sequences) const;
  void note_idle(Batch& batch, const RoundFacts& facts, double plain_s);
  static void note_use(Batch& batch, const RoundFacts& facts, int32_t num_heard_of);
  double price_of(int32_t num_sequences, double plain_s) const;
  GoodputInputs what_is_known(const RoundOutlook& outlook, const StepLoad& plain) const;
  double draft_token_s(int32_t num_sequences) const;
  double hope() const;
  // A draft of whose speed nothing is known, or nothing new for long, gets a part of a few rounds
  // to show it.
  double longest_wait(const RoundOutlook& outlook, double plain_s) const;

  Config config_;
  Survival survival_;
  StepCosts idle_steps_;
  StepCosts working_steps_;
  StepCosts draft_steps_;
  std::map<int32_t, Batch> batches_;  // by the logarithm of the number of sequences
  // Of a round beside wait and step, by its rows.
  StepCosts idle_overhead_;
  StepCosts working_overhead_;
  double idle_bias_ = 1;  // rounds with an idle draft, measured over predicted
  Typical idle_typical_;
  int64_t num_idle_in_a_row_ = 0;  // rounds with an idle draft
  double link_s_ = 0;              // from asking to the first token, beside the draft's step
  double hit_if_all_stand_ = 0;
  double hit_if_not_ = 0;
  double num_prepared_ = 0;
  int32_t num_blind_waits_ = 0;
  // Where the draft does not ride ahead:
  bool seen_awaited_ = false;   // a step of its, beside none of the target's
  int64_t num_unawaited_ = 0;   // rounds since one last waited
  int64_t num_vain_waits_ = 0;  // before any such step was seen
  bool probed_ = false;
  int32_t num_heard_of_ = 0;  // sequences of whose drafts something was seen since the last round
};

}  // namespace outrider
