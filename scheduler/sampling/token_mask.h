// Which tokens may come next: the hook for allowed_token_ids, bad_words and grammars. A mask says
// it as a function of the tokens so far alone, so undoing rejected drafts costs nothing, and every
// rank answers for its own shard: only the description in SamplingParams crosses a link, never an
// array over the vocabulary. Applied per row like a bias of -infinity, before the temperature.
// Called by ProcessedRows on every target rank and on the draft, on the thread of the round.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling_params.h"

namespace outrider {

// The tokens before one row: committed ones, then the part of a draft that leads to the row.
struct TokenHistory {
  std::span<const int32_t> committed;  // prompt and output
  int32_t num_prompt_tokens = 0;       // of these
  std::span<const int32_t> drafted;    // count as output

  size_t size() const { return committed.size() + drafted.size(); }
  int32_t operator[](size_t i) const {
    return i < committed.size() ? committed[i] : drafted[i - committed.size()];
  }
  bool ends_with(std::span<const int32_t> tokens) const;
};

// One bit per token of a shard, set while the token is allowed. Bits after the last token stay set.
class AllowedBits {
 public:
  AllowedBits(const VocabShard& shard, std::span<uint64_t> words) : shard_(shard), words_(words) {}
  static size_t num_words(const VocabShard& shard) {
    return (static_cast<size_t>(shard.size()) + 63) / 64;
  }

  const VocabShard& shard() const { return shard_; }
  // Ids of other shards are passed over.
  void forbid(int32_t token) {
    if (shard_.contains(token)) word_of(token) &= ~bit_of(token);
  }
  // tokens: ascending, over the whole vocabulary. Never allows what was forbidden before.
  void forbid_all_but(std::span<const int32_t> tokens);
  // vocabulary_bits: one per token of the whole vocabulary, from the lowest bit on; the same.
  void forbid_all_but_bits(std::span<const uint32_t> vocabulary_bits);

 private:
  uint64_t& word_of(int32_t token) {
    return words_[static_cast<size_t>(token - shard_.begin) / 64];
  }
  uint64_t bit_of(int32_t token) const {
    return uint64_t{1} << (static_cast<uint32_t>(token - shard_.begin) % 64);
  }

  const VocabShard& shard_;
  std::span<uint64_t> words_;
};

class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Forbids what may not follow the history. The answer depends on the history and the construction
  // alone; whatever is remembered between calls may only save time. A history may be one that the
  // mask itself would not have allowed (an unmasked draft, the prompt).
  virtual void restrict_next(const TokenHistory& history, AllowedBits& allowed) const = 0;
};

class GrammarEngine;

// What the parameters ask for, or null when that is nothing. Ranks keep it as long as the sequence.
// grammars: needed for params.grammar, and only for it. Throws Error when it is missing then.
std::shared_ptr<const TokenMask> make_token_mask(const SamplingParams& params,
                                                 const GrammarEngine* grammars = nullptr);

}  // namespace outrider
