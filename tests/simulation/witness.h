// What must hold in every round (docs/round.md, Invariants), checked from outside: from the plans
// and decisions as a target rank has them, from the frames that reach the coordinator, and from
// what clients asked for. It knows nothing of the planner but its promises.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "scheduler/batching/sequence.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/request.h"
#include "tests/simulation/setting.h"

namespace outrider::test {

class Witness {
 public:
  explicit Witness(const Setting& setting) : setting_(setting) {}

  void note_submitted(const Request& request);
  void note_cancelled(uint64_t id);
  // A client has read its last event.
  void note_over(uint64_t id);
  // A reply in a frame that the coordinator is given and must take for whole.
  void note_offered(const PackedReply& reply);

  // Of one round, in this order; the plan as the rank has it when it verifies. Without the decision
  // texts are not known, and less is checked.
  void see_plan(const RoundPlan& plan, bool knows_text);
  void see_decision(const RoundPlan& plan, const RoundDecision& decision);

  // The text that the ranks have decided; null when the sequence is not known.
  const std::vector<int32_t>* text_of(uint64_t id) const;
  // For sabotage: the round that the sequence samples next, and its length.
  struct Place {
    uint32_t round = 0;
    int32_t num_tokens = 0;
  };
  std::optional<Place> place_of(uint64_t id) const;

  void fault(const std::string& what);
  const std::vector<std::string>& faults() const { return faults_; }
  uint64_t num_rounds() const { return num_rounds_; }
  uint64_t digest() const { return digest_; }  // of all plans and decisions

 private:
  // A block is for the round that comes or the one after it; the ranks may hear of a round later.
  static constexpr uint32_t kRoundsAhead = 3;
  struct Known {
    SamplingParams params;
    SequenceOrder order;  // as the planner's is promised to be
    int32_t num_prompt = 0;
    std::vector<int32_t> tokens;
    uint32_t round = 0;
    int32_t num_computed = 0;
    bool is_started = false;  // on the ranks
    bool is_over = false;     // as far as the ranks can tell
    bool is_cancelled = false;
    bool is_read = false;  // to its end, by its client
    // Hashes of the draft tokens that came for the rounds from `round` on; [i] of those with
    // round % kRoundsAhead = i.
    std::array<std::unordered_set<uint64_t>, kRoundsAhead> offered;
  };
  bool is_backup(std::span<const DraftToken> judged, const Known& known, bool knows_text) const;
  void see_law(const SequencePlan& rows, const Known& known, std::span<const DraftToken> judged);
  void see_start(const RoundPlan& plan, const Known& started);
  static void go_on_to(uint32_t round, Known& known);
  void see_rows(const RoundPlan& plan, const SequencePlan& rows, bool knows_text);
  void see_draft(const SequencePlan& rows, const Known& known, bool knows_text);
  void see_first(const RoundPlan& plan);
  void see_outcome(const SequencePlan& rows, const SequenceDecision& made);
  void commit(const SequencePlan& rows, const SequenceDecision& made, Known& known);
  void note(uint64_t value) { digest_ = mix_seed(digest_, value); }

  const Setting& setting_;
  std::map<uint64_t, Known> known_;
  std::map<uint64_t, std::vector<int32_t>> ended_;  // on the ranks; texts that clients still read
  std::vector<std::string> faults_;
  uint64_t num_rounds_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace outrider::test
