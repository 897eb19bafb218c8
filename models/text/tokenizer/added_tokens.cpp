// Added-token search with the semantics of Hugging Face's AddedVocabulary. Any thread.
#include "models/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"

namespace outrider {
namespace {

size_t spaces_begin_before(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t start = unicode::previous_start(text, end);
    if (!unicode::is_space(unicode::code_point_at(text, start).value)) break;
    end = start;
  }
  return end;
}

size_t spaces_end_after(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const unicode::CodePoint point = unicode::code_point_at(text, pos);
    if (!unicode::is_space(point.value)) break;
    pos += point.num_bytes;
  }
  return pos;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before =
      begin > 0 &&
      unicode::is_word(unicode::code_point_at(text, unicode::previous_start(text, begin)).value);
  const bool word_after =
      end < text.size() && unicode::is_word(unicode::code_point_at(text, end).value);
  return !word_before && !word_after;
}

}  // namespace

int32_t AddedTokenMatcher::child_of(int32_t node, unsigned char byte) const {
  const auto& children = nodes_[static_cast<size_t>(node)].children;
  const auto found = children.find(byte);
  return found == children.end() ? -1 : found->second;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view search_text) {
  if (search_text.empty()) return;
  int32_t node = 0;
  for (const char c : search_text) {
    auto& children = nodes_[static_cast<size_t>(node)].children;
    const auto [child, is_new] =
        children.emplace(static_cast<unsigned char>(c), static_cast<int32_t>(nodes_.size()));
    node = child->second;
    if (is_new) nodes_.emplace_back();
  }
  Node& last = nodes_[static_cast<size_t>(node)];
  if (last.token >= 0) return;
  last.token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  starts_token_[static_cast<unsigned char>(search_text[0])] = true;
}

bool AddedTokenMatcher::find_next(std::string_view text, size_t pos, Match& match) const {
  for (; pos < text.size(); ++pos) {
    if (!starts_token_[static_cast<unsigned char>(text[pos])]) continue;
    match.token = nullptr;
    int32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      node = child_of(node, static_cast<unsigned char>(text[i]));
      if (node < 0) break;
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0) match = {pos, i + 1, &tokens_[static_cast<size_t>(token)]};
    }
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
    if (match.token->lstrip) begin = spaces_begin_before(text, begin);
    begin = std::max(begin, done);
    if (match.token->rstrip) end = spaces_end_after(text, end);
    end = std::max(end, begin);
    if (begin > done) pieces.push_back({done, begin, -1});
    pieces.push_back({begin, end, match.token->id});
    done = end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace outrider
