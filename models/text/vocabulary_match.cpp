// See vocabulary_match.h.
#include "models/text/vocabulary_match.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/text/tokenizer/unicode.h"
#include "models/text/vocabulary_map.h"

namespace outrider {
namespace {

int32_t num_named(const Tokenizer& tokenizer) {
  int32_t count = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    count += tokenizer.token_text(id).empty() ? 0 : 1;
  return count;
}

// A vocabulary may hold line ends and broken characters; the verdict is one line.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (size_t pos = 0; pos < text.size();) {
    const unicode::Utf8Unit unit = unicode::utf8_unit_at(text, pos);
    const auto first = static_cast<unsigned char>(text[pos]);
    if (unit.kind == unicode::Utf8Unit::Kind::kCharacter && first >= 0x20 && first != 0x7f) {
      out.append(text, pos, unit.length);
      pos += unit.length;
    } else {
      out += fmt::format("\\x{:02x}", first);
      ++pos;
    }
  }
  return out + "'";
}

std::string sizes(const VocabularyMatch& match) {
  return fmt::format("target {} tokens in {} rows, draft {} tokens in {} rows",
                     match.num_target_tokens,
                     match.num_target_rows,
                     match.num_draft_tokens,
                     match.num_draft_rows);
}

std::string translation(const VocabularyMatch& match) {
  if (match.num_translatable == 0) return "no token of the target can be translated either";
  return fmt::format(
      "with speculative_config.use_heterogeneous_vocab it would draft {} of the target's {} tokens "
      "({:.1f}%)",
      match.num_translatable,
      match.num_target_tokens,
      100.0 * match.num_translatable / match.num_target_tokens);
}

}  // namespace

VocabularyMatch match_vocabularies(const std::shared_ptr<const Tokenizer>& target,
                                   const ModelConfig& target_config,
                                   const std::shared_ptr<const Tokenizer>& draft,
                                   const ModelConfig& draft_config) {
  VocabularyMatch match;
  match.num_target_tokens = num_named(*target);
  match.num_draft_tokens = num_named(*draft);
  match.num_target_rows = target_config.vocab_size;
  match.num_draft_rows = draft_config.vocab_size;
  const int32_t num_shared = std::min(target->vocab_size(), draft->vocab_size());
  for (int32_t id = 0; id < num_shared; ++id) {
    // An id that only one of them names is padding of the other.
    if (target->token_text(id).empty() || draft->token_text(id).empty()) continue;
    if (is_same_token(*target, id, *draft, id)) {
      ++match.num_same_ids;
    } else if (match.first_different_id < 0) {
      match.first_different_id = id;
      match.target_text = target->token_text(id);
      match.draft_text = draft->token_text(id);
    }
  }
  const bool same_sizes = match.num_target_rows == match.num_draft_rows &&
                          match.num_target_tokens == match.num_same_ids &&
                          match.num_draft_tokens == match.num_same_ids;
  if (match.first_different_id >= 0 || match.num_same_ids == 0) {
    match.verdict = VocabularyMatch::Verdict::kDifferent;
  } else if (!same_sizes) {
    match.verdict = VocabularyMatch::Verdict::kPadded;
  }
  match.draft_embeds_all =
      std::min(target->vocab_size(), target_config.vocab_size) <= draft_config.vocab_size;
  if (!match.usable_directly() || !match.draft_embeds_all) {
    const VocabularyMap map(target, target_config.vocab_size, draft, draft_config.vocab_size);
    match.num_translatable = static_cast<int32_t>(map.pairs().size());
  }
  match.same_end_tokens = target_config.eos_token_ids == draft_config.eos_token_ids;
  return match;
}

std::string describe(const VocabularyMatch& match) {
  const std::string ends =
      match.same_end_tokens
          ? ""
          : "; the configured end-of-text ids differ, which costs acceptance only";
  switch (match.verdict) {
    case VocabularyMatch::Verdict::kSame:
      return fmt::format("compatible: the same {} tokens{}", match.num_same_ids, ends);
    case VocabularyMatch::Verdict::kPadded:
      return fmt::format(
          "compatible after padding: {}, {} the same{}", sizes(match), match.num_same_ids, ends);
    case VocabularyMatch::Verdict::kDifferent:
      break;
  }
  if (match.first_different_id < 0)
    return fmt::format("not the same tokens: no id names a token in both ({}); {}",
                       sizes(match),
                       translation(match));
  return fmt::format(
      "not the same tokens: id {} is {} in the target and {} in the draft ({}, {} ids the same); "
      "{}",
      match.first_different_id,
      quoted(match.target_text),
      quoted(match.draft_text),
      sizes(match),
      match.num_same_ids,
      translation(match));
}

}  // namespace outrider
