// The cache in front of the word models, and what they share. Called on every encode, any thread.
#include "models/text/tokenizer/word_model.h"

#include <utility>

namespace outrider {

int32_t id_or(const TokenIds& ids, std::string_view text, int32_t fallback) {
  const auto found = ids.find(text);
  return found == ids.end() ? fallback : found->second;
}

std::string byte_token(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">";
}

WordCache::Shard& WordCache::shard_of(std::string_view word) {
  return shards_[(StringHash{}(word) >> 48) % kNumShards];
}

bool WordCache::append(std::string_view word, std::vector<int32_t>& out) {
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.words.find(word);
  if (found == shard.words.end()) return false;
  out.insert(out.end(), found->second.begin(), found->second.end());
  return true;
}

void WordCache::store(std::string_view word, std::vector<int32_t> ids) {
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
  shard.words.emplace(word, std::move(ids));
}

void WordModel::find_byte_tokens(bool byte_fallback) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_fallback_ids_[static_cast<size_t>(byte)] =
        byte_fallback ? id_or(ids_, byte_token(byte), -1) : -1;
  }
}

bool WordModel::append_bytes(std::string_view bytes, std::vector<int32_t>& out) const {
  const size_t num_before = out.size();
  for (const char byte : bytes) {
    const int32_t id = byte_fallback_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      out.resize(num_before);
      return false;
    }
    out.push_back(id);
  }
  return true;
}

void WordModel::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() > WordCache::kMaxWordBytes) {
    append_word(word, out);
    return;
  }
  if (cache_.append(word, out)) return;
  std::vector<int32_t> ids;
  append_word(word, ids);
  out.insert(out.end(), ids.begin(), ids.end());
  cache_.store(word, std::move(ids));
}

}  // namespace outrider
