// The draft worker: the whole draft model on one rank, with its own KV pages. It keeps a copy of
// every sequence it was told about, proposes the tokens after each commit, and rolls back by
// forgetting: what its KV holds beyond the committed tokens is kept only as far as it agrees with
// them. It is only a hint-giver: whatever it sends or fails to send, the text is the target's.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "models/transformer.h"
#include "runtime/comm/world.h"
#include "runtime/ranks/roles.h"
#include "scheduler/round.h"

namespace outrider {

class DraftWorker {
 public:
  struct Options {
    int32_t target_vocab_size = 0;  // ids from here on are padding of the draft and never proposed
    int32_t num_candidates = 16;
  };
  // model must outlive this and be of a group of one.
  DraftWorker(Transformer& model, const Options& options);

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
    int32_t num_prompt_tokens = 0;
    std::vector<int32_t> tokens;     // committed
    std::vector<int32_t> kv_tokens;  // tokens whose keys and values lie in the blocks, in order
    std::vector<int32_t> blocks;
    uint32_t round = 0;
    int32_t draft_len = 0;  // of the block being made; 0 = none wanted
    std::vector<DraftToken> drafted;
    bool broken = false;          // a gap in what we were told; silent until opened anew
    int32_t num_missing() const;  // tokens (committed and drafted) not in KV yet
  };

  void open(const DraftOpen& open);
  void commit(const DraftCommit& commit);
  void close(uint64_t sequence_id);
  void keep_agreeing_kv(Copy& copy);
  bool wants_step(const Copy& copy) const;
  bool ensure_blocks(uint64_t sequence_id, Copy& copy, int32_t num_positions);
  int32_t plan_rows(uint64_t sequence_id, Copy& copy, int32_t num_rows_left);
  void finish_block(uint64_t sequence_id, Copy& copy);

  Transformer& model_;
  Options options_;
  std::map<uint64_t, Copy> copies_;
  std::vector<int32_t> free_blocks_;
  Batch batch_;
  uint64_t last_serial_ = 0;
  DraftReply reply_;
};

// The life of the draft rank: until the coordinator says shutdown or is gone.
void run_draft_loop(World& world, uint32_t epoch, DraftWorker& worker);

}  // namespace outrider
