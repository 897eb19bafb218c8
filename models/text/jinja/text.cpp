// Strings with marks: building, cutting, searching and case. Pure functions.
#include "models/text/jinja/text.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

#include "models/text/tokenizer/unicode.h"

namespace outrider::jinja {

void TextBuilder::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!text_.literals.empty() && text_.literals.back().end == begin) {
    text_.literals.back().end = end;
  } else {
    text_.literals.push_back({begin, end});
  }
}

void TextBuilder::append(std::string_view bytes, bool literal) {
  budget_->work(bytes.size());
  budget_->check_text(text_.bytes.size() + bytes.size());
  const size_t begin = text_.bytes.size();
  text_.bytes.append(bytes);
  if (literal) mark(begin, text_.bytes.size());
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  const size_t base = text_.bytes.size();
  append(std::string_view(text.bytes).substr(begin, end - begin), false);
  auto span = std::upper_bound(
      text.literals.begin(), text.literals.end(), begin, [](size_t at, const TextSpan& s) {
        return at < s.end;
      });
  for (; span != text.literals.end() && span->begin < end; ++span) {
    mark(base + std::max(span->begin, begin) - begin, base + std::min(span->end, end) - begin);
  }
}

uint32_t next_code_point(std::string_view bytes, size_t& position) {
  const unicode::CodePoint point = unicode::code_point_at(bytes, position);
  position += point.num_bytes;
  return point.value;
}

size_t byte_offset(std::string_view bytes, size_t num_code_points) {
  size_t at = 0;
  while (num_code_points-- > 0 && at < bytes.size()) next_code_point(bytes, at);
  return at;
}

size_t count_code_points(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool is_space(uint32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= 9 && code_point <= 13) || (code_point >= 0x1C && code_point <= 0x20);
  }
  if (code_point == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_word(uint32_t code_point) {
  if (code_point == '_') return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

namespace {

bool contains(std::string_view characters, uint32_t wanted) {
  for (size_t at = 0; at < characters.size();) {
    if (next_code_point(characters, at) == wanted) return true;
  }
  return false;
}

}  // namespace

TextSpan stripped_range(std::string_view bytes, Side side, const std::string_view* characters) {
  const auto goes = [&](uint32_t c) { return characters ? contains(*characters, c) : is_space(c); };
  TextSpan range{0, bytes.size()};
  while (side != Side::kRight && range.begin < range.end) {
    size_t after = range.begin;
    if (!goes(next_code_point(bytes, after))) break;
    range.begin = after;
  }
  while (side != Side::kLeft && range.begin < range.end) {
    const size_t last = unicode::previous_start(bytes, range.end);
    size_t after = last;
    if (!goes(next_code_point(bytes, after))) break;
    range.end = last;
  }
  return range;
}

Text substring(Budget& budget, const Text& text, size_t begin, size_t end) {
  TextBuilder builder(budget);
  builder.append(text, begin, end);
  return builder.take();
}

size_t find(std::string_view haystack, std::string_view needle, size_t from) {
  if (from > haystack.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit =
      memmem(haystack.data() + from, haystack.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - haystack.data());
}

size_t find_last(std::string_view haystack, std::string_view needle) {
  const std::string reversed(haystack.rbegin(), haystack.rend());
  const std::string reversed_needle(needle.rbegin(), needle.rend());
  const size_t hit = find(reversed, reversed_needle);
  return hit == std::string_view::npos ? hit : haystack.size() - hit - needle.size();
}

namespace {

std::vector<TextSpan> separator_matches(Budget& budget,
                                        std::string_view bytes,
                                        std::string_view separator) {
  if (separator.empty()) throw Failure("empty separator");
  std::vector<TextSpan> matches;
  for (size_t at = find(bytes, separator); at != std::string_view::npos;
       at = find(bytes, separator, at + separator.size())) {
    budget.step();
    matches.push_back({at, at + separator.size()});
  }
  return matches;
}

// Matches counted from the right may lie elsewhere than those from the left ("aaa" by "aa").
std::vector<TextSpan> separator_matches_from_right(Budget& budget,
                                                   std::string_view bytes,
                                                   std::string_view separator) {
  const std::string reversed(bytes.rbegin(), bytes.rend());
  const std::string reversed_separator(separator.rbegin(), separator.rend());
  std::vector<TextSpan> matches = separator_matches(budget, reversed, reversed_separator);
  for (TextSpan& match : matches) match = {bytes.size() - match.end, bytes.size() - match.begin};
  return matches;
}

std::vector<TextSpan> space_matches(Budget& budget, std::string_view bytes) {
  std::vector<TextSpan> matches;
  for (size_t at = 0; at < bytes.size();) {
    const size_t before = at;
    if (!is_space(next_code_point(bytes, at))) continue;
    if (!matches.empty() && matches.back().end == before) {
      matches.back().end = at;
    } else {
      budget.step();
      matches.push_back({before, at});
    }
  }
  return matches;
}

std::vector<Text> pieces_between(Budget& budget,
                                 const Text& text,
                                 const std::vector<TextSpan>& cuts,
                                 TextSpan whole) {
  std::vector<Text> pieces;
  size_t begin = whole.begin;
  for (const TextSpan& cut : cuts) {
    pieces.push_back(substring(budget, text, begin, cut.begin));
    begin = cut.end;
  }
  pieces.push_back(substring(budget, text, begin, whole.end));
  return pieces;
}

}  // namespace

std::vector<Text> split(
    Budget& budget, const Text& text, const Text* separator, int64_t max_splits, Side from) {
  const bool is_right = from == Side::kRight;
  budget.work((is_right ? 2 : 1) * text.bytes.size());
  TextSpan whole{0, text.bytes.size()};
  std::vector<TextSpan> cuts;  // in the order they are made
  if (separator != nullptr) {
    cuts = is_right ? separator_matches_from_right(budget, text.bytes, separator->bytes)
                    : separator_matches(budget, text.bytes, separator->bytes);
  } else {
    whole = stripped_range(text.bytes, from, nullptr);
    cuts = space_matches(budget, text.bytes);
    std::erase_if(cuts,
                  [&](const TextSpan& c) { return c.begin < whole.begin || c.end > whole.end; });
    if (is_right) std::reverse(cuts.begin(), cuts.end());
  }
  if (max_splits >= 0 && cuts.size() > static_cast<size_t>(max_splits)) {
    cuts.resize(static_cast<size_t>(max_splits));
  }
  if (separator == nullptr) {
    // The white space at the other end separates nothing.
    if (!cuts.empty() && is_right && cuts.back().begin == whole.begin) {
      whole.begin = cuts.back().end;
      cuts.pop_back();
    } else if (!cuts.empty() && !is_right && cuts.back().end == whole.end) {
      whole.end = cuts.back().begin;
      cuts.pop_back();
    }
    if (whole.begin == whole.end) return {};
  }
  if (is_right) std::reverse(cuts.begin(), cuts.end());
  return pieces_between(budget, text, cuts, whole);
}

std::vector<Text> split_lines(Budget& budget, const Text& text, bool keep_ends) {
  budget.work(text.bytes.size());
  std::vector<Text> lines;
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t before = at;
    const uint32_t c = next_code_point(bytes, at);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    budget.step();
    lines.push_back(substring(budget, text, begin, keep_ends ? at : before));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(substring(budget, text, begin, bytes.size()));
  return lines;
}

Text replace(Budget& budget, const Text& text, const Text& from, const Text& to, int64_t count) {
  budget.work(text.bytes.size());
  TextBuilder builder(budget);
  const std::string_view bytes = text.bytes;
  size_t begin = 0;
  int64_t left = count < 0 ? INT64_MAX : count;
  if (from.bytes.empty()) {
    while (left > 0) {
      budget.step();
      builder.append(to);
      --left;
      if (begin == bytes.size()) break;
      size_t after = begin;
      next_code_point(bytes, after);
      builder.append(text, begin, after);
      begin = after;
    }
  } else {
    size_t at = find(bytes, from.bytes);
    for (; at != std::string_view::npos && left > 0; --left) {
      budget.step();
      builder.append(text, begin, at);
      builder.append(to);
      begin = at + from.bytes.size();
      at = find(bytes, from.bytes, begin);
    }
  }
  builder.append(text, begin, bytes.size());
  return builder.take();
}

namespace {

std::string cased(uint32_t c, utf8proc_int32_t (*to_case)(utf8proc_int32_t)) {
  return unicode::utf8(static_cast<char32_t>(to_case(static_cast<utf8proc_int32_t>(c))));
}
std::string to_upper(uint32_t c) { return c == 0xDF ? "SS" : cased(c, utf8proc_toupper); }
std::string to_title(uint32_t c) { return c == 0xDF ? "Ss" : cased(c, utf8proc_totitle); }
std::string to_lower(uint32_t c) { return cased(c, utf8proc_tolower); }

bool is_cased(uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

bool breaks_title_filter(uint32_t c) {
  return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

std::string mapped(uint32_t c, Case how, bool at_word_start) {
  switch (how) {
    case Case::kUpper:
      return to_upper(c);
    case Case::kLower:
      return to_lower(c);
    case Case::kSwap:
      return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU
                 ? to_lower(c)
                 : to_upper(c);
    case Case::kTitleFilter:
      return at_word_start ? to_upper(c) : to_lower(c);
    case Case::kCapitalize:
    case Case::kTitleMethod:
      break;
  }
  return at_word_start ? to_title(c) : to_lower(c);
}

}  // namespace

Text change_case(Budget& budget, const Text& text, Case how) {
  TextBuilder builder(budget);
  bool at_word_start = true;
  builder.append_mapped(text, [&](uint32_t c) {
    const std::string to = mapped(c, how, at_word_start);
    if (how == Case::kCapitalize) at_word_start = false;
    if (how == Case::kTitleMethod) at_word_start = !is_cased(c);
    if (how == Case::kTitleFilter) at_word_start = breaks_title_filter(c);
    return to;
  });
  return builder.take();
}

}  // namespace outrider::jinja
