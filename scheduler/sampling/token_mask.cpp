// See token_mask.h.
#include "scheduler/sampling/token_mask.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {
namespace {

class AllowedIdsMask final : public TokenMask {
 public:
  explicit AllowedIdsMask(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  void restrict_next(const TokenHistory&, AllowedBits& allowed) const override {
    allowed.forbid_all_but(ids_);
  }

 private:
  std::vector<int32_t> ids_;
};

// The last token of a bad word is forbidden where the tokens before it end the text (vLLM's rule,
// over prompt and output as in Hugging Face's NoBadWordsLogitsProcessor).
class BadWordsMask final : public TokenMask {
 public:
  explicit BadWordsMask(std::vector<std::vector<int32_t>> words) : words_(std::move(words)) {}
  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    for (const std::vector<int32_t>& word : words_) {
      if (word.empty()) continue;
      const std::span<const int32_t> prefix = std::span(word).first(word.size() - 1);
      if (history.ends_with(prefix)) allowed.forbid(word.back());
    }
  }

 private:
  std::vector<std::vector<int32_t>> words_;
};

class EveryMask final : public TokenMask {
 public:
  explicit EveryMask(std::vector<std::shared_ptr<const TokenMask>> masks)
      : masks_(std::move(masks)) {}
  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    for (const auto& mask : masks_) mask->restrict_next(history, allowed);
  }

 private:
  std::vector<std::shared_ptr<const TokenMask>> masks_;
};

}  // namespace

bool TokenHistory::ends_with(std::span<const int32_t> tokens) const {
  if (tokens.size() > size()) return false;
  const size_t first = size() - tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if ((*this)[first + i] != tokens[i]) return false;
  }
  return true;
}

void AllowedBits::forbid_all_but(std::span<const int32_t> tokens) {
  auto next = std::lower_bound(tokens.begin(), tokens.end(), shard_.begin);
  for (size_t w = 0; w < words_.size(); ++w) {
    const int32_t begin = shard_.begin + static_cast<int32_t>(64 * w);
    const int32_t count = std::min(64, shard_.end - begin);
    uint64_t kept = count == 64 ? 0 : ~uint64_t{0} << count;
    for (; next != tokens.end() && *next < begin + count; ++next) kept |= bit_of(*next);
    words_[w] &= kept;
  }
}

void AllowedBits::forbid_all_but_bits(std::span<const uint32_t> vocabulary_bits) {
  for (size_t w = 0; w < words_.size(); ++w) {
    const size_t begin = static_cast<size_t>(shard_.begin) + 64 * w;
    const auto count = std::min<size_t>(64, static_cast<size_t>(shard_.end) - begin);
    uint64_t kept = count == 64 ? 0 : ~uint64_t{0} << count;
    for (size_t i = 0; i < count; i += 32 - (begin + i) % 32) {
      const size_t at = (begin + i) / 32;
      const uint64_t bits = at < vocabulary_bits.size() ? vocabulary_bits[at] : 0;
      kept |= (bits >> ((begin + i) % 32)) << i;
    }
    words_[w] &= kept;
  }
}

std::shared_ptr<const TokenMask> make_token_mask(const SamplingParams& params,
                                                 const GrammarEngine* grammars) {
  std::vector<std::shared_ptr<const TokenMask>> masks;
  if (!params.allowed_token_ids.empty()) {
    masks.push_back(std::make_shared<AllowedIdsMask>(params.allowed_token_ids));
  }
  if (!params.bad_words.empty()) masks.push_back(std::make_shared<BadWordsMask>(params.bad_words));
  if (params.grammar) {
    if (grammars == nullptr) throw Error("a request with a grammar came to a rank without engine");
    masks.push_back(grammars->mask(*params.grammar));
  }
  if (masks.empty()) return nullptr;
  if (masks.size() == 1) return masks.front();
  return std::make_shared<EveryMask>(std::move(masks));
}

}  // namespace outrider
