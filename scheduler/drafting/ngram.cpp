// See ngram.h.
#include "scheduler/drafting/ngram.h"

namespace outrider {
namespace {

// How many tokens up to and including `last` equal those at the end of the text, at most `limit`.
int32_t match_length(std::span<const int32_t> tokens, int64_t last, int32_t limit) {
  const int64_t end = static_cast<int64_t>(tokens.size()) - 1;
  int32_t length = 0;
  while (length < limit && last - length >= 0 &&
         tokens[static_cast<size_t>(last - length)] == tokens[static_cast<size_t>(end - length)]) {
    ++length;
  }
  return length;
}

}  // namespace

NgramProposal propose_ngram(std::span<const int32_t> tokens,
                            const NgramConfig& config,
                            int32_t draft_len) {
  NgramProposal proposal;
  if (draft_len <= 0 || config.shortest < 1) return proposal;
  int32_t best_length = config.shortest - 1;
  int64_t best_last = -1;
  for (int64_t last = static_cast<int64_t>(tokens.size()) - 2;
       last >= 0 && best_length < config.longest;
       --last) {
    const int32_t length = match_length(tokens, last, config.longest);
    if (length <= best_length) continue;
    best_length = length;
    best_last = last;
  }
  if (best_last < 0) return proposal;
  proposal.match_len = best_length;
  for (int32_t i = 0; i < draft_len; ++i) {
    const size_t source = static_cast<size_t>(best_last) + 1 + static_cast<size_t>(i);
    proposal.tokens.push_back(source < tokens.size() ? tokens[source]
                                                     : proposal.tokens[source - tokens.size()]);
  }
  return proposal;
}

}  // namespace outrider
