// One forward pass of the draft: which chains (chain.h) of which sequences have rows in it. Lines
// that somebody waits for come first; the others join as far as that costs little. Used by
// the draft worker's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "models/forward/model.h"
#include "runtime/ranks/draft/sequences.h"
#include "scheduler/pacing/step_times.h"

namespace outrider {

class DraftStep {
 public:
  // is_plain: whether the model may choose a sequence's tokens by itself (Model::run_chain); empty:
  // never.
  DraftStep(Model& model,
            DraftSequences& sequences,
            std::function<bool(const DraftSequence&)> is_plain = {})
      : model_(model), sequences_(sequences), is_plain_(std::move(is_plain)) {}

  // A row whose logits give the next token of a chain. Sequences are not opened, closed or
  // committed between plan() and its use, branches only added.
  struct Proposing {
    uint64_t sequence_id = 0;
    DraftSequence* sequence = nullptr;
    int32_t branch = -1;  // -1: the main chain
  };

  // Makes the batch, which may be empty: nothing to do, or no room for any of it.
  void plan(const StepTimes& costs);
  const Batch& batch() const { return batch_; }
  // One for each logit row.
  const std::vector<Proposing>& proposing() const { return proposing_; }
  // More than 1: the batch is the first of so many chained steps, a token of each sequence a step.
  int32_t num_steps() const { return num_steps_; }
  bool reads_prompts() const { return largest_chunk_ > 2; }
  int32_t num_rows() const { return static_cast<int32_t>(batch_.tokens.size()); }

 private:
  struct Chunk {
    uint64_t sequence_id = 0;
    DraftSequence* sequence = nullptr;
    int32_t branch = -1;
    int32_t first = 0;  // position
    int32_t num_rows = 0;
    bool has_logits = false;
  };
  int32_t steps_together();
  void plan_main_chains(const StepTimes& costs);
  void plan_branches(const StepTimes& costs);
  int32_t room_left() const;
  int32_t optional_rows(const StepTimes& costs);
  void plan_main_chain(uint64_t sequence_id, DraftSequence& sequence, int32_t most_rows);
  bool plan_branch(uint64_t sequence_id, DraftSequence& sequence, int32_t index);
  void add_rows(const Chunk& chunk);
  int32_t token_at(const Chunk& chunk, int32_t position) const;

  Model& model_;
  DraftSequences& sequences_;
  const std::function<bool(const DraftSequence&)> is_plain_;
  int32_t num_steps_ = 1;
  Batch batch_;
  std::vector<Chunk> chunks_;
  std::vector<Proposing> proposing_;
  int32_t num_planned_ = 0;         // rows
  int32_t num_urgent_ = 0;          // of these, before those that can wait
  int32_t most_rows_ = 0;           // of the step, that optional rows may make; 0 = not asked yet
  int32_t num_planned_logits_ = 0;  // of these
  int32_t largest_chunk_ = 0;
};

}  // namespace outrider
