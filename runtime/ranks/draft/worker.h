// The draft worker: the whole draft model on one rank, with its own KV pages. It keeps a sequence
// of every sequence it was told about and proposes the tokens after each commit. While the target
// verifies a block it drafts asynchronously: it drafts the token behind the block and, for the
// likely outcomes, the next round's blocks. It is only a hint-giver: whatever it sends or fails to
// send, the text is the target's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/forward/model.h"
#include "models/text/vocabulary_map.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/draft/branch_chooser.h"
#include "runtime/ranks/draft/sequences.h"
#include "runtime/ranks/draft/step.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "scheduler/pacing/step_times.h"
#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"

namespace outrider {

class DraftWorker {
 public:
  struct Options {
    int32_t target_vocab_size = 0;  // ids from here on are padding of the draft and never proposed
    int32_t num_candidates = 16;
    // For a draft with another tokenizer; must outlive this. Null: the draft's ids are the
    // target's. Texts, blocks, positions and noise always speak the target's ids; only what the
    // draft's model reads and its KV are in the draft's. With one nothing drafts asynchronously.
    const VocabularyMap* vocabulary = nullptr;
    const GrammarEngine* grammars = nullptr;  // of the target's ids; must outlive this
    int32_t max_branches = kMaxDraftBranches;
    // Blocks that somebody waits for are made in one piece where the model can choose their tokens
    // (Model::run_chain). Same tokens either way.
    bool chains_steps = true;
    Checks checks;
  };
  // model must outlive this and be of a group of one.
  DraftWorker(Model& model, const Options& options);
  // step_ refers to sequences_.
  DraftWorker(const DraftWorker&) = delete;
  DraftWorker& operator=(const DraftWorker&) = delete;

  // Takes in what the coordinator says. What was drafted behind another text is given up.
  void take(const DraftRequest& request);
  // As if nothing had ever been said.
  void forget_all();
  bool has_work() const;
  // One forward pass over all chains of draft tokens that are to grow and prompts to be read.
  void step();
  // What is new since the last call; nothing when there is nothing to say.
  std::optional<DraftReply> take_reply();
  // Time spent without work, for the next reply.
  void record_idle(uint64_t idle_us) { reply_.idle_us += idle_us; }

  // What is wrong in the books of KV blocks; empty when they are right.
  std::string fault() const { return sequences_.fault(); }
  const DraftSequences& sequences() const { return sequences_; }

 private:
  void poison_freed_blocks();
  void check_books(bool is_idle) const;
  void check_logits(const float* logits) const;
  bool commit(const DraftCommit& commit);
  void begin_branches(std::vector<uint64_t> begun);
  bool is_plain(const DraftSequence& sequence) const;
  int32_t num_tokens() const;  // that may be proposed
  void propose_all(const float* logits);
  void propose_chained();
  DraftInput input_of(const DraftStep::Proposing& chain, std::vector<DraftToken>* text) const;
  void take_bonus_draft(const DraftStep::Proposing& chain, RankedDraftToken proposal);
  const float* by_target_id(const float* logits);
  void collect_main_chain(uint64_t sequence_id, DraftSequence& sequence);
  void collect_branch(uint64_t sequence_id, const DraftSequence& sequence, DraftBranch& branch);

  Model& model_;
  Options options_;
  DraftSequences sequences_;
  BranchChooser branch_chooser_;
  DraftStep step_;
  StepTimes costs_;
  std::unique_ptr<RowScanner> scanner_;
  std::vector<std::vector<DraftToken>> branch_texts_;  // of the chains of a step
  std::vector<float> target_logits_;  // [target vocabulary] of by_target_id(); tokens without a
                                      // partner never change
  uint64_t last_serial_ = 0;
  bool owes_answer_ =
      false;  // a sequence that is being verified was asked for, and has heard nothing since
  DraftReply reply_;
};

}  // namespace outrider
