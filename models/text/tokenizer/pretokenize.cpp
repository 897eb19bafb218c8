// Pre-tokenization stage by stage. A piece is a view while nothing rewrites it (the usual case) and
// owns its text after a stage that adds or replaces characters. Any thread.
#include "models/text/tokenizer/pretokenize.h"

#include <memory>
#include <string>
#include <utility>

#include "models/text/tokenizer/decoder.h"
#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"

namespace outrider {

struct PreTokenizer::Piece {
  std::string_view text;
  bool is_text_start = false;
  std::shared_ptr<const std::string> owner;  // of `text`, when rewritten

  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), is_text_start && begin == 0, owner};
  }
  Piece rewritten(std::string changed) const {
    auto owned = std::make_shared<const std::string>(std::move(changed));
    return {*owned, is_text_start, owned};
  }
};

namespace {

// A stretch of a piece and whether the delimiter pattern matched it.
struct Stretch {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

std::vector<Stretch> stretches_of(std::string_view text,
                                  const PatternMatcher& matcher,
                                  bool invert) {
  std::vector<Stretch> out;
  size_t done = 0;
  matcher.for_each_match(text, [&](size_t begin, size_t end) {
    if (begin > done) out.push_back({done, begin, invert});
    out.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) out.push_back({done, text.size(), invert});
  return out;
}

// Joins or drops stretches as the behavior says (Hugging Face's NormalizedString::split).
void apply_behavior(std::vector<Stretch>& stretches, SplitBehavior behavior) {
  if (behavior == SplitBehavior::kIsolated) return;
  std::vector<Stretch> out;
  bool previous_match = false;
  for (const Stretch& s : stretches) {
    bool joins = false;
    if (behavior == SplitBehavior::kRemoved) {
      if (!s.is_match) out.push_back(s);
      continue;
    }
    if (behavior == SplitBehavior::kContiguous) joins = s.is_match == previous_match;
    if (behavior == SplitBehavior::kMergedWithPrevious) joins = s.is_match && !previous_match;
    if (behavior == SplitBehavior::kMergedWithNext) joins = previous_match && !s.is_match;
    if (joins && !out.empty()) {
      out.back().end = s.end;
    } else {
      out.push_back(s);
    }
    previous_match = s.is_match;
  }
  stretches = std::move(out);
}

std::string replace_spaces(std::string_view text, const std::string& by) {
  std::string out;
  out.reserve(text.size() + 16);
  for (const char c : text) {
    if (c == ' ') {
      out += by;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

using CharacterClass = bool (*)(char32_t);

// Every character of the class is a match of its own.
std::vector<Stretch> class_stretches(std::string_view text, CharacterClass is_match) {
  std::vector<Stretch> out;
  for (size_t pos = 0; pos < text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text, pos);
    const size_t end = pos + point.num_bytes;
    if (is_match(point.value)) {
      out.push_back({pos, end, true});
    } else if (!out.empty() && !out.back().is_match) {
      out.back().end = end;
    } else {
      out.push_back({pos, end, false});
    }
    pos = end;
  }
  return out;
}

// \w+|[^\w\s]+ : runs of word characters and runs of others, without white space.
std::vector<Stretch> word_stretches(std::string_view text) {
  const auto kind_of = [](char32_t c) {
    return unicode::is_word(c) ? 1 : unicode::is_space(c) ? 0 : 2;
  };
  std::vector<Stretch> out;
  int previous = 0;
  for (size_t pos = 0; pos < text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text, pos);
    const size_t end = pos + point.num_bytes;
    const int kind = kind_of(point.value);
    if (kind != 0 && kind == previous) {
      out.back().end = end;
    } else if (kind != 0) {
      out.push_back({pos, end, false});
    }
    previous = kind;
    pos = end;
  }
  return out;
}

// The replacement character begins a word.
std::vector<Stretch> metaspace_stretches(std::string_view text, const std::string& mark) {
  std::vector<Stretch> out;
  size_t begin = 0;
  for (size_t hit = text.find(mark); hit != std::string_view::npos;
       hit = text.find(mark, hit + mark.size())) {
    if (hit > begin) out.push_back({begin, hit, false});
    begin = hit;
  }
  if (begin < text.size()) out.push_back({begin, text.size(), false});
  return out;
}

// The pieces of a stage that only cuts; `matcher` is that of a kSplit.
std::vector<Stretch> cut(const PreTokenizerStep& spec,
                         const PatternMatcher* matcher,
                         std::string_view text) {
  using Kind = PreTokenizerStep::Kind;
  std::vector<Stretch> stretches;
  SplitBehavior behavior = spec.behavior;
  switch (spec.kind) {
    case Kind::kSplit:
      stretches = stretches_of(text, *matcher, spec.invert);
      break;
    case Kind::kDigits:
      stretches = class_stretches(text, unicode::is_numeric);
      behavior = spec.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
      break;
    case Kind::kPunctuation:
      stretches = class_stretches(text, unicode::is_punctuation);
      break;
    case Kind::kWhitespaceSplit:
      stretches = class_stretches(text, unicode::is_space);
      behavior = SplitBehavior::kRemoved;
      break;
    default:
      return word_stretches(text);
  }
  apply_behavior(stretches, behavior);
  return stretches;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, bool takes_bytes)
    : byte_level_(takes_bytes && !steps.empty() &&
                  steps.back().kind == PreTokenizerStep::Kind::kByteLevel) {
  for (const PreTokenizerStep& spec : steps) {
    Step step{spec, nullptr, false};
    if (spec.kind == PreTokenizerStep::Kind::kSplit) {
      step.matcher = std::make_unique<PatternMatcher>(spec.pattern);
    }
    if (spec.kind == PreTokenizerStep::Kind::kByteLevel) {
      step.writes_alphabet = !byte_level_ || &spec != &steps.back();
      if (spec.use_regex) {
        step.matcher = std::make_unique<PatternMatcher>(PatternSpec{true, kGpt2Pattern});
      }
    }
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::apply_byte_level(const Step& step, const Piece& piece, Pieces& out) {
  const bool adds_space = step.spec.add_prefix_space && piece.text.front() != ' ';
  const Piece text = adds_space ? piece.rewritten(" " + std::string(piece.text)) : piece;
  std::vector<Stretch> stretches{{0, text.text.size(), false}};
  if (step.matcher != nullptr) stretches = stretches_of(text.text, *step.matcher, false);
  for (const Stretch& s : stretches) {
    if (s.end == s.begin) continue;
    const Piece part = text.part(s.begin, s.end);
    out.push_back(step.writes_alphabet ? part.rewritten(byte_level_characters(part.text)) : part);
  }
}

void PreTokenizer::apply_metaspace(const Step& step, const Piece& piece, Pieces& out) {
  const PreTokenizerStep& spec = step.spec;
  std::string text = replace_spaces(piece.text, spec.replacement);
  const bool prepends = spec.prepend_scheme == PrependScheme::kAlways ||
                        (spec.prepend_scheme == PrependScheme::kFirst && piece.is_text_start);
  if (prepends && !text.starts_with(spec.replacement)) text.insert(0, spec.replacement);
  const Piece marked = piece.rewritten(std::move(text));
  if (!spec.split) {
    out.push_back(marked);
    return;
  }
  for (const Stretch& s : metaspace_stretches(marked.text, spec.replacement))
    out.push_back(marked.part(s.begin, s.end));
}

void PreTokenizer::apply(const Step& step, const Piece& piece, Pieces& out) {
  if (step.spec.kind == PreTokenizerStep::Kind::kByteLevel)
    return apply_byte_level(step, piece, out);
  if (step.spec.kind == PreTokenizerStep::Kind::kMetaspace)
    return apply_metaspace(step, piece, out);
  for (const Stretch& s : cut(step.spec, step.matcher.get(), piece.text)) {
    if (s.end > s.begin) out.push_back(piece.part(s.begin, s.end));
  }
}

void PreTokenizer::for_each_word(std::string_view piece,
                                 bool is_text_start,
                                 const std::function<void(std::string_view)>& visit) const {
  if (piece.empty()) return;
  Pieces pieces{{piece, is_text_start, nullptr}};
  for (const Step& step : steps_) {
    Pieces next;
    for (const Piece& current : pieces) apply(step, current, next);
    pieces = std::move(next);
  }
  for (const Piece& word : pieces) visit(word.text);
}

}  // namespace outrider
