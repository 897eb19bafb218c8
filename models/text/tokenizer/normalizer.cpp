// Normalization with the user flags carried along: a changed stretch counts as the user's when any
// byte of what it was made from is. Any thread.
#include "models/text/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "models/text/tokenizer/unicode.h"

namespace outrider {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

char flag_of(const MarkedText& text, size_t begin, size_t end) {
  if (text.literal.empty()) return 0;
  const auto flags = std::string_view(text.literal).substr(begin, end - begin);
  return flags.find('\1') == std::string_view::npos ? 0 : 1;
}

std::string_view flags_of(const MarkedText& text, size_t begin, size_t end) {
  if (text.literal.empty()) return {};
  return std::string_view(text.literal).substr(begin, end - begin);
}

void prepend(MarkedText& text, const std::string& content) {
  if (text.text.empty()) return;
  text.text.insert(0, content);
  if (!text.literal.empty()) text.literal.insert(0, content.size(), '\0');
}

void append_from(MarkedText& out, const MarkedText& from, size_t begin, size_t end) {
  out.append(std::string_view(from.text).substr(begin, end - begin), flags_of(from, begin, end));
}

void append_changed(
    MarkedText& out, const MarkedText& from, size_t begin, size_t end, std::string_view text) {
  out.text += text;
  if (!from.literal.empty()) out.literal.append(text.size(), flag_of(from, begin, end));
}

MarkedText replaced(const MarkedText& text, const PatternMatcher& matcher, const std::string& by) {
  MarkedText out;
  size_t done = 0;
  matcher.for_each_match(text.text, [&](size_t begin, size_t end) {
    append_from(out, text, done, begin);
    append_changed(out, text, begin, end, by);
    done = end;
  });
  append_from(out, text, done, text.text.size());
  return out;
}

MarkedText in_form(const MarkedText& text, unicode::Form form) {
  if (text.literal.empty()) return {unicode::normalize(text.text, form), {}};
  MarkedText out;
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

MarkedText lowercased(const MarkedText& text) {
  MarkedText out;
  std::string lower;
  for (size_t pos = 0; pos < text.text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text.text, pos);
    lower.clear();
    unicode::append_lowercase(lower, point.value);
    append_changed(out, text, pos, pos + point.num_bytes, lower);
    pos += point.num_bytes;
  }
  return out;
}

}  // namespace

void MarkedText::append(std::string_view piece, std::string_view flags) {
  text += piece;
  literal += flags;
}

void MarkedText::append_flagged(std::string_view piece, char flag) {
  text += piece;
  literal.append(piece.size(), flag);
}

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps) {
  for (const NormalizerStep& spec : steps) {
    Step step{spec, nullptr};
    if (spec.kind == NormalizerStep::Kind::kReplace) {
      step.matcher = std::make_unique<PatternMatcher>(spec.pattern);
    }
    steps_.push_back(std::move(step));
  }
}

void Normalizer::apply(MarkedText& text) const {
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case NormalizerStep::Kind::kPrepend:
        prepend(text, step.spec.content);
        break;
      case NormalizerStep::Kind::kReplace:
        text = replaced(text, *step.matcher, step.spec.content);
        break;
      case NormalizerStep::Kind::kUnicodeForm:
        if (!is_ascii(text.text)) text = in_form(text, step.spec.form);
        break;
      case NormalizerStep::Kind::kLowercase:
        text = lowercased(text);
        break;
    }
  }
}

}  // namespace outrider
