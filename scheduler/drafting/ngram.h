// Prompt lookup: a draft without a model. What followed the last tokens when they stood in the text
// before is proposed again. Called by the planner; the same text gives the same proposal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

struct NgramConfig {
  int32_t longest = 4;   // of the suffixes looked for
  int32_t shortest = 2;  // at least 1
};

struct NgramProposal {
  std::vector<int32_t> tokens;
  int32_t match_len = 0;  // of the suffix; 0 = none was found
};

// Looks for the longest suffix of tokens, of config.longest down to config.shortest tokens, that
// also stands earlier in tokens; of several places the most recent counts (it is the closest to the
// present topic; vLLM takes the first). Returns the draft_len tokens that followed it, or nothing.
// The copy may run into its own output, so that a text that repeats itself with a short period is
// continued to the full draft_len. Time: O(tokens.size() * config.longest).
NgramProposal propose_ngram(std::span<const int32_t> tokens,
                            const NgramConfig& config,
                            int32_t draft_len);

}  // namespace outrider
