// The draft worker's sequences of sequences and who holds which KV block: open, commit, close, what
// a commit keeps of what was drafted, and room in KV memory. Text and numbers only, no model; used
// by the draft worker's thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/forward/model.h"
#include "runtime/ranks/draft/chain.h"
#include "runtime/ranks/draft/kv_pool.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

class DraftSequences {
 public:
  // vocabulary: null, or must outlive this (worker.h); with one nothing drafts asynchronously,
  // whatever is asked for. grammars: likewise; of the target's ids.
  DraftSequences(const Model& model,
                 const VocabularyMap* vocabulary,
                 const GrammarEngine* grammars);

  void open(const SequenceStart& opening);
  void close(uint64_t sequence_id);
  // null when unknown
  DraftSequence* find(uint64_t sequence_id);
  std::map<uint64_t, DraftSequence>& all() { return sequences_; }
  const std::map<uint64_t, DraftSequence>& all() const { return sequences_; }

  // The sequence goes on with `tokens`, to be drafted for in `round`. When they are an outcome that
  // a branch stands for, the branch becomes the main chain; otherwise what was drafted is over and
  // the KV that agrees is kept.
  void advance(DraftSequence& sequence, std::span<const int32_t> tokens, uint32_t round);
  void drop_branches(DraftSequence& sequence);

  // The committed tokens in the draft's ids.
  const std::vector<int32_t>& context(const DraftSequence& sequence) const;
  int32_t draft_id(int32_t token) const;
  // Tokens (committed and drafted) not in the main chain's KV yet.
  int32_t num_missing(const DraftSequence& sequence) const;
  bool main_chain_wants_step(const DraftSequence& sequence) const;
  bool branch_wants_step(const DraftSequence& sequence, const DraftBranch& branch) const;

  // Room for num_positions of the main chain. Takes, in this order, from branches, the least likely
  // first, and from sequences that want nothing now.
  bool make_room(uint64_t sequence_id, DraftSequence& sequence, int32_t num_positions);
  // Room for the branch's next row; takes from less likely branches only. `copied` is set to the
  // blocks to sequence (from, to), or from = -1.
  struct BlockCopy {
    int32_t from = -1;
    int32_t to = -1;
  };
  bool make_room(DraftSequence& sequence, DraftBranch& branch, BlockCopy* copied);
  // Ends the branch and gives back what it holds; its tokens stay good.
  void release(DraftBranch& branch);

  void watch_blocks(DraftKvPool::Watch watch) { pool_.watch(std::move(watch)); }
  // Whether every block is free or held by one chain, and branches share what their main chain
  // holds. The first thing wrong as a sentence, empty when the books are right.
  std::string fault() const;

 private:
  void take_tokens(DraftSequence& sequence, std::span<const int32_t> tokens, size_t num_agreeing);
  bool knows_rows_of(std::span<const int32_t> tokens) const;
  size_t find_branch(const DraftSequence& sequence, std::span<const int32_t> tokens) const;
  void adopt(DraftSequence& sequence, size_t index);
  bool release_least_likely(double below);

  const VocabularyMap* vocabulary_;
  const GrammarEngine* grammars_;
  const int32_t num_vocab_rows_;
  const int32_t max_positions_;
  const int32_t num_blocks_;
  std::map<uint64_t, DraftSequence> sequences_;
  DraftKvPool pool_;
};

}  // namespace outrider
