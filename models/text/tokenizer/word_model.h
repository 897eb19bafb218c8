// What turns one word into ids (BPE, Unigram), with the cache of the words seen before. Immutable
// but for that bounded cache behind locks; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace outrider {

// Allows look-ups by string_view without making a string.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// The id of the text, or `fallback`.
int32_t id_or(const TokenIds& ids, std::string_view text, int32_t fallback);

// "<0xAB>", the name of a byte's token where a model falls back to bytes.
std::string byte_token(int byte);

// Ids of words seen before. Each shard is emptied when full, so texts made to flood it cost time,
// not memory.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;

  // Appends the ids and returns true on a hit.
  bool append(std::string_view word, std::vector<int32_t>& out);
  void store(std::string_view word, std::vector<int32_t> ids);

 private:
  static constexpr size_t kNumShards = 16;
  static constexpr size_t kMaxWordsPerShard = 2048;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, StringHash, std::equal_to<>> words;
  };
  Shard& shard_of(std::string_view word);
  std::array<Shard, kNumShards> shards_;
};

class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the ids of one word. Throws Error for a word the model has no ids for.
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;

  const TokenIds& ids() const { return ids_; }

 protected:
  virtual void append_word(std::string_view word, std::vector<int32_t>& out) const = 0;

  TokenIds ids_;
  // The id of <0xAB> of each byte, -1 where there is none or no fallback.
  std::array<int32_t, 256> byte_fallback_ids_{};
  void find_byte_tokens(bool byte_fallback);
  // Appends the bytes' ids; false when one of them has none.
  bool append_bytes(std::string_view bytes, std::vector<int32_t>& out) const;

 private:
  mutable WordCache cache_;
};

}  // namespace outrider
