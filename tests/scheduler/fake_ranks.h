// The target ranks and the draft worker as the planner sees them, with a pseudo model: the next
// token is a hash of the text so far. The fake computes it through a paged KV memory that the
// plan's block tables address, so a wrong table, position or rollback changes the text or is caught
// when a row reads what was not written for it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "scheduler/batching/planner.h"

namespace outrider::testing {

struct FakeModel {
  int32_t vocab_size = 17;
  bool short_memory = false;  // the next token depends on two tokens only: texts repeat themselves

  uint64_t next_state(uint64_t state, int32_t token) const;
  // The choice after `state`; stop tokens are skipped while fewer than min_tokens are out.
  int32_t choose(uint64_t state, const SamplingParams& params, int32_t num_output) const;
  uint64_t state_of(const std::vector<int32_t>& tokens) const;
};

struct ExpectedText {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token;
};
// What the model writes alone, without planner, blocks or drafts.
ExpectedText expected_text(const FakeModel& model, const Request& request);

// Breaks one thing on purpose, to show that the checks can fail.
enum class Sabotage { kNone, kForgetNewBlocks, kKeepRejectedRow, kClearReusedBlocks };

class FakeTarget {
 public:
  FakeTarget(FakeModel model, const PlannerConfig& config, Sabotage sabotage = Sabotage::kNone);

  // The decision. The rows of sequences in `poisoned` are NaN from this round on: it is noticed,
  // and the sequence comes back failed, when one of them, or of what reads them, has logits.
  RoundDecision execute(const RoundPlan& plan, const std::vector<uint64_t>& poisoned = {});

  // Everything that was wrong with the plans so far.
  const std::vector<std::string>& faults() const { return faults_; }
  size_t num_known() const { return sequences_.size(); }
  size_t num_emptied() const { return num_emptied_; }  // blocks told to be empty

 private:
  struct Slot {
    int32_t position = -1;
    int32_t token = -1;
    uint64_t state = 0;  // of the whole text up to here, so it tells whose KV this is
    bool nan = false;
  };
  struct Known {
    SamplingParams params;
    int32_t num_prompt = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> table;
    uint32_t round = 0;
  };

  void fault(const RoundPlan& plan, uint64_t sequence_id, const std::string& what);
  void empty_blocks(const RoundPlan& plan);
  void take_blocks(const SequencePlan& plan, Known& known);
  bool rows_make_sense(const RoundPlan& plan, const SequencePlan& rows, const Known& known);
  SequenceDecision run(const RoundPlan& plan,
                       const SequencePlan& rows,
                       Known& known,
                       bool poisoned);
  bool history_is_valid(const SequencePlan& rows, const Known& known) const;
  bool reads_nan(const SequencePlan& rows, const Known& known) const;
  // Null where there is no block, or one of another sequence: shared ones are only read.
  Slot* slot_to_write(uint64_t sequence_id, const Known& known, int32_t position);
  const Slot* slot_to_read(const Known& known, int32_t position) const;

  FakeModel model_;
  PlannerConfig config_;
  Sabotage sabotage_;
  std::map<uint64_t, Known> sequences_;
  std::vector<Slot> slots_;
  size_t num_emptied_ = 0;
  std::vector<uint64_t> block_owner_;  // who got the block to write it
  std::vector<std::string> faults_;
};

enum class DraftMood { kRight, kMixed, kWrong, kSilent, kHostile };

class FakeDraft {
 public:
  FakeDraft(FakeModel model, DraftMood mood, uint32_t seed)
      : model_(model), mood_(mood), random_(seed) {}
  // Checks the request against what it was told before and answers; some answers come late or not
  // at all.
  std::vector<DraftBlock> answer(const DraftRequest& request);
  void restart() { sequences_.clear(), late_.clear(); }
  const std::vector<std::string>& faults() const { return faults_; }
  size_t num_known() const { return sequences_.size(); }

 private:
  struct Known {
    SamplingParams params;
    std::vector<int32_t> tokens;
  };
  DraftBlock propose(const DraftCommit& commit, const Known& known);
  // A token behind the block in flight and blocks for some of the round's outcomes.
  void async_drafting(const DraftCommit& commit,
                      const Known& known,
                      std::vector<DraftBlock>& blocks);
  std::vector<DraftToken> some_tokens(uint64_t state, int32_t count);
  void corrupt(DraftBlock& block);
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  FakeModel model_;
  DraftMood mood_;
  std::mt19937 random_;
  std::map<uint64_t, Known> sequences_;
  std::vector<DraftBlock> late_;
  std::vector<std::string> faults_;
};

}  // namespace outrider::testing
