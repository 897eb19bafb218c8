// Where the draft tokens that a round judges came from: what pacing keeps an acceptance of, and the
// `source` of metrics and traces.
#pragma once

#include <array>
#include <cstdint>

namespace outrider {

enum class BlockSource : uint8_t {
  kNone,              // there were none
  kSpeculationCache,  // the draft model's, prepared for the outcome of the round before
  kDraftModel,        // the draft model's, drafted after it
  kNgram,             // the others are the coordinator's own
  kUnigram,
  kBigram,
  kGrammar,
};

inline constexpr std::array kBlockSourceNames = {
    "none", "speculation_cache", "draft_model", "ngram", "unigram", "bigram", "grammar"};

}  // namespace outrider
