// The draft's side of a round: one token from the draft's own logits, and
// with it the tokens that the target is likeliest to say instead, for which the draft prepares
// blocks while the target verifies. Called by the draft for all rows of a step.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/logits_processor.h"
#include "scheduler/sampling/token_mask.h"

namespace outrider {

// The draft's side: proposes the token at position tokens.size() + drafted.size() from its own
// logits. Under the standard and block rules it samples from its processed distribution cut to the
// num_candidates likeliest and renormalised, and sends exactly that distribution; under the coupled
// rule it uses the target's noise; greedy takes the maximum. A draft whose own logits are unusable
// proposes token -1: end the block there.
struct DraftInput {
  const SamplingParams* params = nullptr;
  std::span<const int32_t> tokens;  // committed
  int32_t num_prompt_tokens = 0;
  std::span<const DraftToken> drafted;  // of this block so far
  uint32_t round = 0;
  LogitsAddress logits;    // [vocab_size of the draft]
  int32_t vocab_size = 0;  // ids at and above target_vocab_size are never proposed
  int32_t target_vocab_size = 0;
  int32_t num_candidates = 16;
  const TokenMask* mask = nullptr;     // as in VerifyInput
  ProcessedRows* processed = nullptr;  // likewise, of this text's chain
  int32_t num_guesses = 0;             // other tokens that are wanted, at most kMaxGuesses
};
DraftToken propose(const DraftInput& input);

inline constexpr int32_t kMaxGuesses = 8;

// Tokens that may stand in the place of a drafted one, the likeliest first; the drafted one itself
// is not among them.
class Guesses {
 public:
  void add(int32_t token) { tokens_[static_cast<size_t>(count_++)] = token; }
  bool full() const { return count_ == kMaxGuesses; }
  std::span<const int32_t> tokens() const { return {tokens_.data(), static_cast<size_t>(count_)}; }
  bool operator==(const Guesses&) const = default;

 private:
  std::array<int32_t, kMaxGuesses> tokens_{};
  int32_t count_ = 0;
};

struct RankedDraftToken {
  DraftToken drawn;  // as propose() returns it
  Guesses others;
};

// For every input its token and at most num_guesses (and kMaxGuesses) others, ranked by the rule:
// greedy by logit; coupled by logit and the target's noise, which is the noise of the target's own
// draw; standard and block by draft_prob. They use no noise that decides anything, and hang on
// text, parameters and logits alone. Tokens as good as impossible are left out. All inputs are of
// one draft: their vocabularies are the same.
std::vector<RankedDraftToken> propose_ranked(std::span<const DraftInput> inputs,
                                             RowScanner& scanner);

// Whether nothing but a request's noise stands between its logits and the token that is proposed:
// greedy or coupled, without filters, edits or a mask. Such a token can be chosen where the logits
// are, without knowing the text.
bool is_plain_choice(const SamplingParams& params, const TokenMask* mask, int32_t vocab_size);
// The noise of an input's coupled draw, and how many of its likeliest tokens its guesses want.
NoiseKey coupled_noise(const DraftInput& input);
int32_t num_likeliest_wanted(const DraftInput& input);
// What propose_ranked() says of a plain input. best: the key of its token; likeliest: those of the
// num_likeliest_wanted() best scaled values, best first. Its logits are not looked at.
RankedDraftToken propose_plain(const DraftInput& input,
                               uint64_t best,
                               std::span<const uint64_t> likeliest);

}  // namespace outrider
