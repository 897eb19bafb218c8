// The grammar engine of a rank: every target rank and the draft forbid by themselves, so each has
// one, of the target's tokenizer.
#pragma once

#include <memory>

#include "models/text/tokenizer.h"
#include "runtime/base/settings/run_config.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

// Null where there is none: in a build without xgrammar, and for a model without files. Reads the
// tokenizer's files. Throws Error when they are damaged.
std::shared_ptr<const GrammarEngine> load_grammar_engine(const RunConfig& config);
// The same with a tokenizer that has been loaded.
std::shared_ptr<const GrammarEngine> make_grammar_engine(const RunConfig& config,
                                                         const Tokenizer& tokenizer);
// The same with a draft's tokenizer, which has the target's tokens. model: the draft's.
std::shared_ptr<const GrammarEngine> load_grammar_engine_of_draft(const std::string& model,
                                                                  int32_t target_vocab_size);

}  // namespace outrider
