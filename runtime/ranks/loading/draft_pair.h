// Whether a draft speaks its target's tokens, and how it is translated when it does not.
#pragma once

#include <memory>
#include <string>

#include "models/text/vocabulary_map.h"
#include "models/text/vocabulary_match.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// Names as in the options. Throws Error when a tokenizer or a configuration is missing or damaged.
VocabularyMatch match_pair(const std::string& target, const std::string& draft);

// Of a model's tokens: equal where check-pair would say that two have the same, or the same but for
// rows of padding. For a draft that does not see the target's files.
struct VocabularyDigest {
  std::string text;
  int32_t num_tokens = 0;  // ids that the tokenizer may give
  int32_t num_rows = 0;    // of the model
};
VocabularyDigest vocabulary_digest(const std::string& model, Role role);

// Whether the draft of a config reads and proposes the target's ids as they are: no translation.
bool drafts_in_target_ids(const RunConfig& config);

// How the draft says the target's tokens; null when it has the same ids. Padding rows are no
// difference, but a draft with too few rows for the target's tokens is told of those by their text.
// Throws Error when it must not be translated, or no token can be.
std::shared_ptr<const VocabularyMap> draft_vocabulary(const RunConfig& config);

// Throws what draft_vocabulary() would, and builds no map.
void check_draft_vocabulary(const RunConfig& config);

}  // namespace outrider
