// The BPE model: words to ids by merging pairs in rank order, lowest rank first, leftmost on ties,
// with a heap (O(n log n) in the word). Immutable but for the cache of its base; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/text/tokenizer/spec.h"
#include "models/text/tokenizer/word_model.h"

namespace outrider {

// (left id, right id) -> rank and merged id. Open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t merged_id = 0;
  };

  explicit MergeTable(size_t num_merges);
  void insert(int32_t left, int32_t right, Merge merge);  // a repeated pair: the last one wins
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  size_t slot_of(uint64_t key) const;

  std::vector<Slot> slots_;
};

class BpeModel : public WordModel {
 public:
  // `control_ids`: tokens that only the added-token matcher may produce, so merges and whole-word
  // look-ups that would build one are left out. Throws Error on a merge of unknown pieces.
  BpeModel(const BpeSpec& spec, bool byte_level, const std::unordered_set<int32_t>& control_ids);

  // A word is raw bytes when byte level, else UTF-8 text.
  void append_word(std::string_view word, std::vector<int32_t>& out) const override;

 private:
  std::vector<int32_t> initial_symbols(std::string_view word) const;

  MergeTable merges_;
  std::vector<int32_t> merged_id_of_rank_;
  std::array<int32_t, 256> byte_ids_{};  // byte level: id of each byte's character, or -1
  std::unordered_set<int32_t> control_ids_;
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool byte_level_ = false;
  bool ignore_merges_ = false;
};

}  // namespace outrider
