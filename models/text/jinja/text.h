// Strings of the template language: UTF-8 bytes plus the spans of them that came from the request.
// All positions seen by a template count code points, as in Python; spans count bytes. Every
// function here keeps the spans exact. Used by the evaluator, its filters and methods.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/jinja/budget.h"
#include "models/text/text_span.h"

namespace outrider::jinja {

struct Text {
  std::string bytes;               // valid UTF-8
  std::vector<TextSpan> literals;  // sorted, not overlapping, not touching
};

// Code point at `position` of valid UTF-8; moves position behind it.
uint32_t next_code_point(std::string_view bytes, size_t& position);

class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(&budget) {}
  void append(std::string_view bytes, bool literal = false);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, size_t begin, size_t end);  // bytes [begin, end)
  // What map(c) makes of each character, with the character's mark.
  template <typename Map>
  void append_mapped(const Text& text, const Map& map) {
    auto span = text.literals.begin();
    for (size_t at = 0; at < text.bytes.size();) {
      while (span != text.literals.end() && span->end <= at) ++span;
      const bool literal = span != text.literals.end() && span->begin <= at;
      append(map(next_code_point(text.bytes, at)), literal);
    }
  }
  Text take() { return std::move(text_); }

 private:
  void mark(size_t begin, size_t end);
  Budget* budget_;
  Text text_;
};

// The place behind so many code points, or the end.
size_t byte_offset(std::string_view bytes, size_t num_code_points);
size_t count_code_points(std::string_view bytes);
bool is_space(uint32_t code_point);  // as Python's str.isspace
bool is_word(uint32_t code_point);   // as \w: letters, digits, underscore

enum class Side { kLeft, kRight, kBoth };
// Byte range left after taking white space, or characters of `characters`, off the ends.
TextSpan stripped_range(std::string_view bytes, Side side, const std::string_view* characters);
Text substring(Budget& budget, const Text& text, size_t begin, size_t end);

// str.split, or str.rsplit; separator nullptr: runs of white space; max_splits < 0: all.
std::vector<Text> split(
    Budget& budget, const Text& text, const Text* separator, int64_t max_splits, Side from);
std::vector<Text> split_lines(Budget& budget, const Text& text, bool keep_ends);
// str.replace; count < 0: all.
Text replace(Budget& budget, const Text& text, const Text& from, const Text& to, int64_t count);
// Linear in the haystack for any needle. npos when absent.
size_t find(std::string_view haystack, std::string_view needle, size_t from = 0);
size_t find_last(std::string_view haystack, std::string_view needle);

enum class Case { kUpper, kLower, kCapitalize, kTitleMethod, kTitleFilter, kSwap };
Text change_case(Budget& budget, const Text& text, Case how);

}  // namespace outrider::jinja
