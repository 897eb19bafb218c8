// A growing set of indices into a shard's logits, of which each knows its place in ascending order.
// Nothing is sorted, and a look-up costs the same whatever the number of indices. Not shared
// between threads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

class IndexSet {
 public:
  // For indices below `size`, which never changes; those that are in stay.
  void make_room(int32_t size) {
    words_.resize((static_cast<size_t>(size) + 63) / 64);
    num_before_.resize(words_.size());
  }
  // Whether it is new.
  bool insert(int32_t index) {
    uint64_t& word = words_[static_cast<size_t>(index) / 64];
    const uint64_t before = word;
    word |= bit_of(index);
    return word != before;
  }
  // After inserts and before places are asked for. The number of indices.
  size_t settle() {
    int32_t num = 0;
    for (size_t w = 0; w < words_.size(); ++w) {
      num_before_[w] = num;
      num += std::popcount(words_[w]);
    }
    return static_cast<size_t>(num);
  }
  // -1: not in the set.
  int32_t place_of(int32_t index) const {
    const size_t w = static_cast<size_t>(index) / 64;
    if (words_.empty() || (words_[w] & bit_of(index)) == 0) return -1;
    return num_before_[w] + std::popcount(words_[w] & (bit_of(index) - 1));
  }
  // Ascending, into memory for all of them.
  void list(std::span<int32_t> indices) const {
    auto next = indices.begin();
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t left = words_[w]; left != 0; left &= left - 1)
        *next++ = static_cast<int32_t>(w * 64) + std::countr_zero(left);
    }
  }

 private:
  static uint64_t bit_of(int32_t index) {
    return uint64_t{1} << (static_cast<uint32_t>(index) % 64);
  }

  std::vector<uint64_t> words_;      // a bit per index
  std::vector<int32_t> num_before_;  // of each word, at the last settle()
};

}  // namespace outrider
