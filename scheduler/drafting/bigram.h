// A draft that only counts: how often each token followed the one before it (bigram), or how often
// each came at all (unigram). The trivially cheap approximation models of Leviathan et al. (arXiv
// 2211.17192, section 3.6), of which 3 to 23 tokens in 100 are still accepted. Plain
// values in bounded memory, the same counts give the same proposals; the planner's thread alone
// calls it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"
#include "scheduler/sampling_params.h"

namespace outrider {

enum class CountingOrder : uint8_t { kUnigram, kBigram };

// The heavy hitters of a stream of tokens by the Space-Saving rule (Metwally et al., 2005): exact
// until the row is full, then the rarest token makes room, and what it had counted is remembered as
// the newcomer's possible error. Counts are halved when their sum grows large, so that a row
// follows its stream.
class TokenCounts {
 public:
  struct Entry {
    int32_t token = 0;
    uint16_t count = 0;
    uint16_t error = 0;  // of the count, at most; below it
    int32_t weight() const { return count - error; }
  };

  void add(int32_t token, size_t capacity);
  std::span<const Entry> entries() const { return entries_; }

 private:
  void halve();

  std::vector<Entry> entries_;
  uint32_t total_ = 0;
};

class BigramModel {
 public:
  // Ids from vocab_size on are not learned. At most kFollowers * 8 bytes and a few words per id.
  BigramModel(CountingOrder order, int32_t vocab_size);

  // tokens[begin ..] of a text; the pair across `begin` is learned too. O(kMostFrequent) per token.
  void learn(std::span<const int32_t> tokens, size_t begin);

  // What may follow this token: its followers, or the most frequent tokens of all when it was never
  // seen with one, when the order is unigram, and when previous is -1. Empty before anything was
  // learned.
  std::span<const TokenCounts::Entry> followers(int32_t previous) const;

  static constexpr size_t kFollowers = 32;      // kept per token
  static constexpr size_t kMostFrequent = 128;  // kept of all

 private:
  bool in_vocabulary(int32_t token) const;

  CountingOrder order_;
  int32_t vocab_size_;
  TokenCounts frequent_;
  std::vector<TokenCounts> by_previous_;  // [vocab_size] for bigrams
};

struct BigramInput {
  const SamplingParams* params = nullptr;
  std::span<const int32_t> tokens;  // committed
  uint32_t round = 0;
  int32_t draft_len = 0;
  int32_t num_candidates = 16;
};

// The next draft_len tokens after `tokens`, each by the rule the request is judged by: the
// likeliest (greedy), the target's own noise on the counted law (coupled), else a draw from the law
// cut to num_candidates, which goes with it. Temperature, top-k, top-p and min-p shape the law;
// penalties, biases and masks do not (a token they forbid falls in the verification). Empty when
// nothing was learned.
std::vector<DraftToken> propose_bigram(const BigramModel& model, const BigramInput& input);

}  // namespace outrider
