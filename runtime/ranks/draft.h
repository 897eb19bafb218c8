// The draft worker: the whole draft model on one rank, with its own KV pages. It keeps a copy of
// every sequence it was told about, proposes the tokens after each commit, and rolls back by
// forgetting: what its KV holds beyond the committed tokens is kept only as far as it agrees with
// them. It is only a hint-giver: whatever it sends or fails to send, the text is the target's.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "models/model.h"
#include "models/vocabulary_map.h"
#include "runtime/comm/world.h"
#include "runtime/ranks/roles.h"
#include "scheduler/round.h"
#include "scheduler/token_mask.h"

namespace outrider {

class DraftWorker {
 public:
  struct Options {
    int32_t target_vocab_size = 0;  // ids from here on are padding of the draft and never proposed
    int32_t num_candidates = 16;
    // For a draft with another tokenizer; must outlive this. Null: the draft's ids are the
    // target's. Texts, blocks, positions and noise always speak the target's ids; only what the
    // draft's model reads and its KV are in the draft's.
    const VocabularyMap* vocabulary = nullptr;
  };
  // model must outlive this and be of a group of one.
  DraftWorker(Model& model, const Options& options);

  // Takes in what the coordinator says. Blocks not finished for re-committed sequences are given
  // up.
  void take(const DraftRequest& request);
  bool has_work() const;
  // One forward pass over all sequences that want a block or have prompt tokens to read.
  void step();
  // Blocks finished since the last call.
  std::optional<DraftReply> take_reply();

 private:
  struct Copy {
    SamplingParams params;
    std::shared_ptr<const TokenMask> mask;  // null without one
    int32_t num_prompt_tokens = 0;
    std::vector<int32_t> tokens;     // committed
    TranslatedTokens translated;     // of these, when there is a vocabulary
    std::vector<int32_t> kv_tokens;  // tokens whose keys and values lie in the blocks, in order; in
                                     // the draft's ids
    std::vector<int32_t> blocks;
    uint32_t round = 0;
    int32_t draft_len = 0;  // of the block being made; 0 = none wanted
    std::vector<DraftToken> drafted;
    bool broken = false;  // a gap in what we were told, or a token the model has no row for; silent
                          // until opened anew
  };

  void open(const DraftOpen& open);
  void commit(const DraftCommit& commit);
  void close(uint64_t sequence_id);
  void take_tokens(Copy& copy, std::span<const int32_t> tokens);
  void keep_agreeing_kv(Copy& copy);
  // The committed tokens in the draft's ids.
  const std::vector<int32_t>& context(const Copy& copy) const;
  int32_t draft_id(int32_t token) const;
  int32_t num_missing(const Copy& copy) const;  // tokens (committed and drafted) not in KV yet
  bool wants_step(const Copy& copy) const;
  bool ensure_blocks(uint64_t sequence_id, Copy& copy, int32_t num_positions);
  int32_t plan_rows(uint64_t sequence_id, Copy& copy, int32_t num_rows_left);
  void propose_next(uint64_t sequence_id, Copy& copy, const float* logits);
  const float* by_target_id(const float* logits);
  void finish_block(uint64_t sequence_id, Copy& copy);

  Model& model_;
  Options options_;
  std::map<uint64_t, Copy> copies_;
  std::vector<int32_t> free_blocks_;
  Batch batch_;
  std::vector<float> target_logits_;  // [target vocabulary] of by_target_id(); tokens without a
                                      // partner never change
  uint64_t last_serial_ = 0;
  DraftReply reply_;
};

// The life of the draft rank: until the coordinator says shutdown or is gone.
void run_draft_loop(World& world, uint32_t epoch, DraftWorker& worker);

}  // namespace outrider
