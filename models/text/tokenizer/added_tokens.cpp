// Added-token search with the semantics of Hugging Face's AddedVocabulary. Any thread.
#include "models/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"

namespace outrider {
namespace {

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 &&
      unicode::is_word(unicode::code_point_at(text, unicode::previous_start(text, begin)).value);
  const bool word_after =
      end < text.size() && unicode::is_word(unicode::code_point_at(text, end).value);
  return !word_before && !word_after;
}

// The last of equal texts stays in the trie, so the first token comes last.
std::vector<std::pair<std::string_view, int32_t>> entries_of(
    const std::vector<std::pair<std::string, AddedToken>>& tokens) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (size_t i = tokens.size(); i > 0; --i) {
    entries.emplace_back(tokens[i - 1].first, static_cast<int32_t>(i - 1));
  }
  return entries;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<std::pair<std::string, AddedToken>> tokens)
    : tokens_(std::move(tokens)), trie_(entries_of(tokens_)) {
  for (const auto& [text, token] : tokens_) {
    if (!text.empty()) starts_token_[static_cast<unsigned char>(text[0])] = true;
  }
}

bool AddedTokenMatcher::find_next(std::string_view text, size_t pos, Match& match) const {
  for (; pos < text.size(); ++pos) {
    if (!starts_token_[static_cast<unsigned char>(text[pos])]) continue;
    match.token = nullptr;
    trie_.for_each_prefix(text, pos, [&](size_t end, int32_t i) {
      match = {pos, end, &tokens_[static_cast<size_t>(i)].second};
    });
    if (match.token != nullptr) return true;
  }
  return false;
}

bool AddedTokenMatcher::is_accepted(const MarkedText& text,
                                    const Match& match,
                                    bool parse_special) const {
  const AddedToken& token = *match.token;
  if (token.special && !parse_special) return false;
  if (token.control && !text.literal.empty()) {
    const auto flags = std::string_view(text.literal).substr(match.begin, match.end - match.begin);
    if (flags.find('\1') != std::string_view::npos) return false;
  }
  return !token.single_word || stands_alone(text.text, match.begin, match.end);
}

std::vector<AddedTokenPiece> AddedTokenMatcher::split(const MarkedText& marked,
                                                      bool parse_special) const {
  const std::string_view text = marked.text;
  std::vector<AddedTokenPiece> pieces;
  size_t done = 0;
  Match match;
  // The search goes on after a match that is not accepted, as in Hugging Face.
  for (size_t pos = 0; find_next(text, pos, match); pos = match.end) {
    if (!is_accepted(marked, match, parse_special)) continue;
    size_t begin = match.begin, end = match.end;
    if (match.token->lstrip) begin = unicode::spaces_begin_before(text, begin);
    begin = std::max(begin, done);
    if (match.token->rstrip) end = unicode::spaces_end_after(text, end);
    end = std::max(end, begin);
    if (begin > done) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, match.token->id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace outrider
