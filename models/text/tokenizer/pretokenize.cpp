// Pre-tokenization stage by stage. A piece is a view while nothing rewrites it (the usual case) and
// owns its text after a stage that adds or replaces characters. Any thread.
#include "models/text/tokenizer/pretokenize.h"

#include <memory>
#include <string>
#include <utility>

#include "models/text/tokenizer/unicode.h"
#include "runtime/base/error.h"

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

// Digits and others apart; digits one by one or run by run.
std::vector<Stretch> digit_stretches(std::string_view text, bool individual) {
  std::vector<Stretch> out;
  for (size_t pos = 0; pos < text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text, pos);
    const bool is_digit = unicode::is_number(point.value);
    const size_t end = pos + point.num_bytes;
    const bool joins = !out.empty() && out.back().is_match == is_digit && !(is_digit && individual);
    if (joins) {
      out.back().end = end;
    } else {
      out.push_back({pos, end, is_digit});
    }
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

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& spec : steps) {
    Step step{spec, nullptr};
    if (spec.kind == PreTokenizerStep::Kind::kSplit) {
      step.matcher = std::make_unique<PatternMatcher>(spec.pattern);
    }
    if (spec.kind == PreTokenizerStep::Kind::kByteLevel) {
      byte_level_ = true;
      if (spec.use_regex) {
        step.matcher = std::make_unique<PatternMatcher>(PatternSpec{true, kGpt2Pattern});
      }
    }
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::apply(const Step& step, const Piece& piece, Pieces& out) const {
  const PreTokenizerStep& spec = step.spec;
  Piece current = piece;
  std::vector<Stretch> stretches;
  switch (spec.kind) {
    case PreTokenizerStep::Kind::kSplit:
      stretches = stretches_of(current.text, *step.matcher, spec.invert);
      apply_behavior(stretches, spec.behavior);
      break;
    case PreTokenizerStep::Kind::kDigits:
      stretches = digit_stretches(current.text, spec.individual_digits);
      break;
    case PreTokenizerStep::Kind::kByteLevel:
      if (spec.add_prefix_space && current.text.front() != ' ') {
        current = current.rewritten(" " + std::string(current.text));
      }
      if (step.matcher != nullptr) {
        stretches = stretches_of(current.text, *step.matcher, false);
      } else {
        stretches.push_back({0, current.text.size(), false});
      }
      break;
    case PreTokenizerStep::Kind::kMetaspace: {
      std::string text = replace_spaces(current.text, spec.replacement);
      const bool prepends = spec.prepend_scheme == PrependScheme::kAlways ||
                            (spec.prepend_scheme == PrependScheme::kFirst && piece.is_text_start);
      if (prepends && text.rfind(spec.replacement, 0) != 0) text.insert(0, spec.replacement);
      current = current.rewritten(std::move(text));
      if (spec.split) {
        stretches = metaspace_stretches(current.text, spec.replacement);
      } else {
        stretches.push_back({0, current.text.size(), false});
      }
      break;
    }
  }
  for (const Stretch& s : stretches) {
    if (s.end > s.begin) out.push_back(current.part(s.begin, s.end));
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
