// Whether a draft speaks the target's tokens: the verdict of `outrider check-pair` and of the
// draft's loader. Reads tokenizers and configurations, no weights.
#pragma once

#include <cstdint>
#include <string>

#include "models/checkpoint/model_config.h"
#include "models/text/tokenizer.h"

namespace outrider {

struct VocabularyMatch {
  enum class Verdict {
    kSame,       // the same ids and sizes
    kPadded,     // every id that both name is the same token; sizes differ
    kDifferent,  // some id is another token: the draft's ids mean nothing to the target
  };
  Verdict verdict = Verdict::kSame;
  int32_t first_different_id = -1;  // kDifferent, unless no id is named by both
  std::string target_text;          // of that id, vocabulary form
  std::string draft_text;
  int32_t num_same_ids = 0;
  int32_t num_target_tokens = 0;  // ids that name a token
  int32_t num_draft_tokens = 0;
  int32_t num_target_rows = 0;  // the models' vocabulary sizes
  int32_t num_draft_rows = 0;
  bool draft_embeds_all = true;  // it has a row for every target token
  // Target tokens that the draft could propose through a VocabularyMap. Counted when it would need
  // one: other tokens, or too few rows.
  int32_t num_translatable = 0;
  bool same_end_tokens = true;

  bool usable_directly() const { return verdict != Verdict::kDifferent; }
};

VocabularyMatch match_vocabularies(const std::shared_ptr<const Tokenizer>& target,
                                   const ModelConfig& target_config,
                                   const std::shared_ptr<const Tokenizer>& draft,
                                   const ModelConfig& draft_config);

// One line for people, without a line end.
std::string describe(const VocabularyMatch& match);

}  // namespace outrider
