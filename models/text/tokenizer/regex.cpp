// Pattern matching for the pre-tokenizers; PCRE2 stands behind the patterns we have no scanner for.
// Compiled once at load; matching allocates its own match data, so any thread may match.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/text/tokenizer/regex.h"

#include <pcre2.h>

#include "models/text/tokenizer/ruby_pattern.h"
#include "models/text/tokenizer/scanners.h"
#include "models/text/tokenizer/unicode.h"
#include "models/text/tokenizer/unicode_classes.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

// Backtracking steps allowed per match attempt; ordinary patterns use a few per character of one
// word.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;

// The text with an older character of the same category for each that PCRE2 does not know, or
// nothing when it has none. The bytes of both match at the same places.
std::string in_known_characters(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const unicode::CodePoint point = unicode::code_point_at(text, pos);
    const char32_t known =
        point.num_bytes < 3 ? point.value : unicode::known_character(point.value);
    if (known != point.value) {
      if (out.empty()) out = text;
      out.replace(pos, point.num_bytes, unicode::utf8(known));
    }
    pos += point.num_bytes;
  }
  return out;
}

template <auto kFree>
struct FreedBy {
  void operator()(auto* object) const { kFree(object); }
};

}  // namespace

struct PatternMatcher::Impl {
  std::string literal;
  Scanner scanner = nullptr;
  std::unique_ptr<pcre2_code, FreedBy<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, FreedBy<pcre2_match_context_free>> context;

  void compile(const std::string& ruby_pattern);
  void match_all(std::string_view text, const std::function<void(size_t, size_t)>& visit) const;
};

void PatternMatcher::Impl::compile(const std::string& ruby_pattern) {
  if (ruby_pattern.size() > 16384) throw Error("a pattern is longer than 16 KiB");
  const std::string pattern = pcre2_pattern(ruby_pattern);
  int code_of_error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby's ^ and $ match at line breaks.
  code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                           pattern.size(),
                           PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                           &code_of_error,
                           &offset,
                           nullptr));
  if (code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code_of_error, message, sizeof(message));
    throw Error("a pattern does not compile at offset " + std::to_string(offset) + " (" +
                reinterpret_cast<const char*>(message) + ")");
  }
  context.reset(pcre2_match_context_create(nullptr));
  OUTRIDER_CHECK(context != nullptr);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
}

void PatternMatcher::Impl::match_all(std::string_view text,
                                     const std::function<void(size_t, size_t)>& visit) const {
  const std::unique_ptr<pcre2_match_data, FreedBy<pcre2_match_data_free>> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  OUTRIDER_CHECK(data != nullptr);
  const std::string known = in_known_characters(text);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(known.empty() ? text.data() : known.data());
  size_t start = 0;
  while (start <= text.size()) {
    const int rc = pcre2_match(
        code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0) throw Error("the pre-tokenizer's pattern took too many steps on this text");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    // \K in a look-ahead can put the end before the start.
    if (range[1] < range[0] || range[0] < start) throw Error("a pattern matched backwards");
    visit(range[0], range[1]);
    start = range[1];
    if (range[0] != range[1]) continue;
    if (start == text.size()) return;
    start += unicode::code_point_at(text, start).num_bytes;
  }
}

PatternMatcher::PatternMatcher(const PatternSpec& pattern) : impl_(std::make_unique<Impl>()) {
  if (!pattern.is_regex) {
    impl_->literal = pattern.text;
    return;
  }
  impl_->scanner = find_scanner(pattern.text);
  if (impl_->scanner == nullptr) impl_->compile(pattern.text);
}

PatternMatcher::~PatternMatcher() = default;

void PatternMatcher::for_each_match(std::string_view text,
                                    const std::function<void(size_t, size_t)>& visit) const {
  if (impl_->scanner != nullptr) {
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = impl_->scanner(text, pos);
      visit(pos, end);
      pos = end;
    }
  } else if (impl_->code != nullptr) {
    impl_->match_all(text, visit);
  } else {
    const std::string& literal = impl_->literal;
    for (size_t hit = text.find(literal); hit != std::string_view::npos;
         hit = text.find(literal, hit + literal.size())) {
      visit(hit, hit + literal.size());
    }
  }
}

}  // namespace outrider
