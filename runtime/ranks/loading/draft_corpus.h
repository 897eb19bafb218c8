// The text a counting draft learns from. Called on rank 0 at start-up.
#pragma once

#include <memory>

#include "models/text/tokenizer.h"
#include "runtime/base/settings/run_config.h"
#include "scheduler/drafting/bigram.h"

namespace outrider {

// The counts of speculative_config.draft_corpus in the target's tokens; null without one. Throws
// Error when the file cannot be read or holds nothing, and when the method does not count.
std::shared_ptr<const BigramModel> learn_draft_corpus(const SpeculativeConfig& config,
                                                      const Tokenizer& tokenizer,
                                                      int32_t vocab_size);

}  // namespace outrider
