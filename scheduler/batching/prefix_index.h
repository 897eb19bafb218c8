// Which KV block holds which text, for prefix reuse: a block is known by its own tokens and by the
// text before it, so a long prefix is found block by block. The text before is named by a content
// id that is never given twice, and a look-up compares the tokens themselves: no hash collision can
// pair a sequence with another text. A salt is part of a text's beginning: texts of different salts
// share no block. Used by KvBlocks on the coordinator's thread; every operation costs
// O(block_size).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class PrefixIndex {
 public:
  // The KV of a whole text that ends with a block.
  struct Entry {
    int32_t block = -1;    // -1: nothing found
    uint64_t content = 0;  // names the text up to and with this block
  };
  static constexpr uint64_t kEmptyText = 0;

  PrefixIndex(int32_t num_blocks, int32_t block_size);

  // The block that holds these block_size tokens after the text `before`. The salt counts where
  // nothing is before them; what follows is told apart by `before`.
  Entry find(uint64_t before, std::span<const int32_t> tokens, std::string_view salt) const;
  // The block holds them from now on; find() must not have an answer yet. Returns the content id.
  uint64_t add(int32_t block,
               uint64_t before,
               std::span<const int32_t> tokens,
               std::string_view salt);
  // The block holds nothing that may be found. Texts that go on from it are found no more either.
  void remove(int32_t block);
  bool holds(int32_t block) const { return at(block).content != kEmptyText; }

 private:
  struct Slot {
    uint64_t content = kEmptyText;  // kEmptyText: not in the index
    uint64_t before = kEmptyText;
    uint64_t hash = 0;
    int32_t next = -1;  // in its bucket
  };

  Slot& at(int32_t block) { return slots_[static_cast<size_t>(block)]; }
  const Slot& at(int32_t block) const { return slots_[static_cast<size_t>(block)]; }
  int32_t* bucket_of(uint64_t hash) { return &buckets_[hash & (buckets_.size() - 1)]; }
  std::span<const int32_t> tokens_of(int32_t block) const;
  std::string_view salt_of(int32_t block) const;

  const size_t block_size_;
  std::vector<Slot> slots_;       // by block
  std::vector<int32_t> tokens_;   // [num_blocks, block_size]
  std::map<int32_t, std::string> salts_;  // by block; of those that begin a salted text
  std::vector<int32_t> buckets_;  // first block of each, -1: none; a power of two
  uint64_t last_content_ = kEmptyText;
};

}  // namespace outrider
