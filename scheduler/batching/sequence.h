// One request on its way through the rounds: its tokens, how far its KV reaches, and what it has to
// say to its stream. The planner owns all sequences and is the only caller, on the coordinator's
// thread. Invariant: num_computed < tokens.size(); the KV of positions [0, num_computed) is valid
// on every target rank.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/batching/kv_blocks.h"
#include "scheduler/drafting/speculation_cache.h"
#include "scheduler/request.h"
#include "scheduler/round.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

// Lower runs first.
struct SequenceOrder {
  int64_t turn = 0;  // the planner's: what priority and waiting make of each other (planner.h)
  int32_t priority = 0;
  uint64_t arrival = 0;
  auto operator<=>(const SequenceOrder&) const = default;
};

// What a source other than the draft model offers for a sequence's next round.
struct DraftProposal {
  std::vector<DraftToken> tokens;
  BlockSource source = BlockSource::kNone;
  int32_t match_len = 0;  // n-gram: of the text that was found again
};

// What the draft worker knows of a sequence, and what it has answered.
struct DraftView {
  int32_t num_known_tokens = 0;  // 0 = not opened
  uint32_t asked_round = 0;      // sampling round whose block was last asked for; 0 = none
  int32_t asked_len = 0;         // and how long a one
  // Chosen by the planner's caller; -1 = the server's for all.
  int32_t verify_len = -1;  // of the next round, at most
  int32_t wanted_len = -1;  // of the blocks after it

  // The draft tokens of the round that is being computed; -1 = none is.
  int32_t num_in_flight = -1;
  uint32_t num_told_rounds = 0;  // rounds before this one need not be told to have begun

  std::vector<DraftToken> block;  // at hand, for the next sampling round or the one in flight
  bool is_complete = false;       // no more of it is to come
  bool was_prepared = false;      // it was there when the round before ended
  SpeculationCache outcomes;      // for the round after the one in flight

  // What stands in for a block that is not there; unset = not asked for since the last commit.
  std::optional<DraftProposal> backup;
  bool uses_backup = false;  // the next round judges it, or the one in flight does
};

class Sequence {
 public:
  Sequence(Request request, uint64_t arrival, int64_t turn = 0);

  uint64_t id() const { return request_.id; }
  const Request& request() const { return request_; }
  const SamplingParams& params() const { return request_.params; }
  SequenceOrder order() const { return {turn_, request_.priority, arrival_}; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request_.prompt.size()); }
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens(); }
  // For whoever has not heard of it.
  SequenceStart start() const { return {id(), params(), tokens_, num_output_tokens()}; }
  int32_t num_computed() const { return num_computed_; }
  int32_t num_uncomputed() const { return num_tokens() - num_computed_; }
  // Sampling rounds so far. The next one carries this number.
  uint32_t round() const { return round_; }

  // The longest draft that makes sense once the sequence has num_tokens tokens: what may still come
  // out, less the token the target adds itself. Never negative.
  int32_t draft_len_limit(int32_t num_tokens,
                          int32_t server_draft_len,
                          int32_t max_model_len) const;

  // Positions whose KV it can ever need: all but its last possible token's, which is never
  // computed.
  int32_t num_positions_at_most(int32_t max_model_len) const;

  // Takes in what the ranks decided about `plan`. Returns whether there is something to say; it is
  // in `event`, with a finish reason when the sequence is over.
  bool commit(const SequencePlan& plan,
              const SequenceDecision& decision,
              int32_t max_model_len,
              ResultEvent& event);

  // Back to nothing computed; the tokens stay. The caller has taken the blocks.
  void forget_kv() { num_computed_ = 0; }
  // The table begins with published blocks, full of these positions' KV. Only with nothing
  // computed.
  void start_after(int32_t num_positions);
  // How many positions may be taken from other tables. The last token's row is always computed,
  // since it decides the next; a prompt that is scored is computed whole.
  int32_t num_reusable() const;

  // Sends the last event. At most once.
  void finish(FinishReason reason, const std::string& error = {});
  // For the request's stream.
  PendingResult result(ResultEvent event) const;

  BlockTable table;
  DraftView draft_view;
  std::shared_ptr<const GrammarMask> grammar;        // for drafts without a model; null without one
  int32_t num_learned_tokens = 0;                    // by a draft that learns from what is served
  std::optional<JobClock::time_point> scheduled_at;  // first; the target ranks know it since
  int32_t num_preemptions = 0;
  int32_t num_cached_prompt_tokens = 0;  // taken from other tables when it was first let in

 private:
  void gather_prompt_scores(const SequencePlan& plan, const SequenceDecision& decision);
  void describe(ResultEvent& event) const;
  void trace_request() const;
  void count(const SequencePlan& plan, const SequenceDecision& decision);
  void append(const SequencePlan& plan,
              const SequenceDecision& decision,
              int32_t max_model_len,
              ResultEvent& event);

  Request request_;
  uint64_t arrival_;
  int64_t turn_;
  std::vector<int32_t> tokens_;
  int32_t num_computed_ = 0;
  uint32_t round_ = 0;
  std::vector<TokenLogprobs>
      prompt_scores_;  // [i] of prompt[i + 1]; handed out with the first event
  SpeculationStats stats_;
};

}  // namespace outrider
