// Normalization with the user flags carried along: a changed stretch counts as the user's when any
// byte of what it was made from is. Any thread.
#include "models/text/tokenizer/normalizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/text/tokenizer/decoder.h"
#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"

namespace outrider {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

std::string_view flags_of(const MarkedText& text, size_t begin, size_t end) {
  if (text.literal.empty()) return {};
  return std::string_view(text.literal).substr(begin, end - begin);
}

char flag_of(const MarkedText& text, size_t begin, size_t end) {
  return flags_of(text, begin, end).find('\1') == std::string_view::npos ? 0 : 1;
}

MarkedText prepended(MarkedText text, const std::string& content) {
  if (text.text.empty()) return text;
  text.text.insert(0, content);
  if (!text.literal.empty()) text.literal.insert(0, content.size(), '\0');
  return text;
}

void append_from(MarkedText& out, const MarkedText& from, size_t begin, size_t end) {
  out.text.append(from.text, begin, end - begin);
  out.literal += flags_of(from, begin, end);
}

void append_changed(
    MarkedText& out, const MarkedText& from, size_t begin, size_t end, std::string_view text) {
  out.text += text;
  if (!from.literal.empty()) out.literal.append(text.size(), flag_of(from, begin, end));
}

MarkedText replaced(const MarkedText& text, const PatternMatcher& matcher, const std::string& by) {
  MarkedText out{{}, {}, text.lost_start};
  size_t done = 0;
  matcher.for_each_match(text.text, [&](size_t begin, size_t end) {
    if (begin == 0 && end > 0 &&
        (by.empty() || end > unicode::code_point_at(text.text, 0).num_bytes))
      out.lost_start = true;
    append_from(out, text, done, begin);
    append_changed(out, text, begin, end, by);
    done = end;
  });
  append_from(out, text, done, text.text.size());
  return out;
}

MarkedText in_form(const MarkedText& text, unicode::Form form) {
  if (text.literal.empty()) return {unicode::normalize(text.text, form), {}, text.lost_start};
  MarkedText out{{}, {}, text.lost_start};
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    const auto segment = std::string_view(text.text).substr(begin, end - begin);
    const std::string changed = unicode::normalize(segment, form);
    if (changed == segment) {
      append_from(out, text, begin, end);
    } else {
      append_changed(out, text, begin, end, changed);
    }
    begin = end;
  };
  for (size_t pos = 0; pos < text.text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text.text, pos);
    if (pos > begin && unicode::is_normalization_boundary(point.value)) flush(pos);
    pos += point.num_bytes;
  }
  if (begin < text.text.size()) flush(text.text.size());
  return out;
}

// Each character for itself: change(c, to) appends what becomes of it, perhaps nothing.
template <typename Change>
MarkedText by_character(const MarkedText& text, const Change& change) {
  MarkedText out{{}, {}, text.lost_start};
  std::string to;
  for (size_t pos = 0; pos < text.text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text.text, pos);
    to.clear();
    change(point.value, to);
    if (pos == 0 && to.empty()) out.lost_start = true;
    append_changed(out, text, pos, pos + point.num_bytes, to);
    pos += point.num_bytes;
  }
  return out;
}

// Without the characters that is_dropped(c).
template <typename IsDropped>
MarkedText without(const MarkedText& text, const IsDropped& is_dropped) {
  return by_character(text, [&](char32_t c, std::string& to) {
    if (!is_dropped(c)) unicode::append_utf8(to, c);
  });
}

MarkedText stripped(const MarkedText& text, bool left, bool right) {
  const std::string& all = text.text;
  const size_t begin = left ? unicode::spaces_end_after(all, 0) : 0;
  const size_t end = right ? unicode::spaces_begin_before(all, all.size()) : all.size();
  MarkedText out;
  append_from(out, text, begin, std::max(begin, end));
  out.lost_start = text.lost_start || begin > 0;
  return out;
}

// The cleaning of Google's neural machine translation: control characters vanish, odd white space
// becomes a space.
void append_nmt(char32_t c, std::string& to) {
  const bool is_dropped = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) ||
                          c == 0x7F || c == 0x8F || c == 0x9F;
  if (is_dropped) return;
  const bool is_blank = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                        (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                        c == 0xFEFF || c == 0xFFFD;
  unicode::append_utf8(to, is_blank ? U' ' : c);
}

void append_cleaned(char32_t c, std::string& to) {
  if (c == 0 || c == 0xFFFD || unicode::is_control(c)) return;
  unicode::append_utf8(to, unicode::is_space(c) ? U' ' : c);
}

void append_spaced_han(char32_t c, std::string& to) {
  static constexpr char32_t kHan[][2] = {{0x4E00, 0x9FFF},
                                         {0x3400, 0x4DBF},
                                         {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F},
                                         {0x2B740, 0x2B81F},
                                         {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},
                                         {0x2F800, 0x2FA1F}};
  const bool is_han = std::any_of(std::begin(kHan), std::end(kHan), [c](const auto& range) {
    return c >= range[0] && c <= range[1];
  });
  if (is_han) to += ' ';
  unicode::append_utf8(to, c);
  if (is_han) to += ' ';
}

void append_lower(char32_t c, std::string& to) { unicode::append_lowercase(to, c); }

MarkedText bert(const NormalizerStep& spec, MarkedText text) {
  if (spec.cleans) text = by_character(text, append_cleaned);
  if (spec.spaces_han) text = by_character(text, append_spaced_han);
  if (spec.strips_accents)
    text = without(in_form(text, unicode::Form::kNfd), unicode::is_nonspacing_mark);
  if (spec.lowers) text = by_character(text, append_lower);
  return text;
}

MarkedText byte_level(const MarkedText& text) {
  MarkedText out{{}, {}, text.lost_start};
  for (size_t i = 0; i < text.text.size(); ++i) {
    append_changed(
        out, text, i, i + 1, byte_level_character(static_cast<unsigned char>(text.text[i])));
  }
  return out;
}

// As SentencePiece's rules are applied by Hugging Face: to a short cluster as a whole, where the
// shortest rule that begins it replaces all of it, else character by character.
MarkedText precompiled(const MarkedText& text, const Charsmap& charsmap) {
  constexpr size_t kMaxClusterBytes = 5;
  MarkedText out{{}, {}, text.lost_start};
  const auto all = std::string_view(text.text);
  const auto replace = [&](size_t begin, size_t end) {
    const auto by = charsmap.replacement_of(all.substr(begin, end - begin));
    if (by) append_changed(out, text, begin, end, *by);
    return by.has_value();
  };
  for (size_t pos = 0; pos < all.size();) {
    const size_t end = unicode::cluster_end(all, pos);
    if (end - pos <= kMaxClusterBytes && replace(pos, end)) pos = end;
    while (pos < end) {
      const size_t next = pos + unicode::code_point_at(all, pos).num_bytes;
      if (!replace(pos, next)) append_from(out, text, pos, next);
      pos = next;
    }
  }
  return out;
}

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& spec : steps) {
    Step step{spec, nullptr, nullptr};
    if (spec.kind == NormalizerStep::Kind::kReplace) {
      step.matcher = std::make_unique<PatternMatcher>(spec.pattern);
    }
    if (spec.kind == NormalizerStep::Kind::kPrecompiled) {
      step.charsmap = std::make_unique<const Charsmap>(spec.content);
      step.spec.content.clear();
    }
    steps_.push_back(std::move(step));
  }
}

MarkedText Normalizer::applied(const Step& step, MarkedText text) {
  using Kind = NormalizerStep::Kind;
  switch (step.spec.kind) {
    case Kind::kPrepend:
      return prepended(std::move(text), step.spec.content);
    case Kind::kReplace:
      return replaced(text, *step.matcher, step.spec.content);
    case Kind::kUnicodeForm:
      if (is_ascii(text.text)) return text;
      return in_form(text, step.spec.form);
    case Kind::kLowercase:
      return by_character(text, append_lower);
    case Kind::kStrip:
      return stripped(text, step.spec.strips_left, step.spec.strips_right);
    case Kind::kStripAccents:
      return without(text, unicode::is_combining_mark);
    case Kind::kNmt:
      return by_character(text, append_nmt);
    case Kind::kBert:
      return bert(step.spec, std::move(text));
    case Kind::kByteLevel:
      return byte_level(text);
    case Kind::kPrecompiled:
      break;
  }
  return precompiled(text, *step.charsmap);
}

void Normalizer::apply(MarkedText& text) const {
  for (const Step& step : steps_) text = applied(step, std::move(text));
}

}  // namespace outrider
