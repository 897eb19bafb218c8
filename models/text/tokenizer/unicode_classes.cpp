// Classes of characters over utf8proc's categories and the differences to what Hugging Face's
// libraries know. Pure functions, any thread.
#include "models/text/tokenizer/unicode_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "models/text/tokenizer/unicode.h"

namespace outrider::unicode {
namespace {

struct Range {
  char32_t first = 0;
  char32_t last = 0;
};

struct MappedRange {
  char32_t first = 0;
  char32_t last = 0;
  char32_t to = 0;
};

// Characters newer than Unicode 14 that patterns know and PCRE2 10.42 does not, nor utf8proc 2.8
// those newer than 15.0; for each run an older character of the same category and length.
constexpr MappedRange kNewer[] = {
    {0x897, 0x897, 0x20D0},      {0xCF3, 0xCF3, 0x20D0},      {0xECE, 0xECE, 0x20D0},
    {0x1B4E, 0x1B4F, 0x2055},    {0x1B7F, 0x1B7F, 0x2055},    {0x1C89, 0x1C89, 0x1E00},
    {0x1C8A, 0x1C8A, 0x1E01},    {0x2427, 0x2429, 0x2400},    {0x2FFC, 0x2FFF, 0x2400},
    {0x31E4, 0x31E5, 0x2400},    {0x31EF, 0x31EF, 0x2400},    {0xA7CB, 0xA7CC, 0x1E00},
    {0xA7CD, 0xA7CD, 0x1E01},    {0xA7DA, 0xA7DA, 0x1E00},    {0xA7DB, 0xA7DB, 0x1E01},
    {0xA7DC, 0xA7DC, 0x1E00},    {0x105C0, 0x105F3, 0x10300}, {0x10D40, 0x10D49, 0x104A0},
    {0x10D4A, 0x10D4D, 0x10300}, {0x10D4E, 0x10D4E, 0x16F93}, {0x10D4F, 0x10D4F, 0x10300},
    {0x10D50, 0x10D65, 0x10400}, {0x10D69, 0x10D6D, 0x101FD}, {0x10D6E, 0x10D6E, 0x10100},
    {0x10D6F, 0x10D6F, 0x16F93}, {0x10D70, 0x10D85, 0x10428}, {0x10D8E, 0x10D8F, 0x1F600},
    {0x10EC2, 0x10EC4, 0x10300}, {0x10EFC, 0x10EFF, 0x101FD}, {0x1123F, 0x11240, 0x10300},
    {0x11241, 0x11241, 0x101FD}, {0x11380, 0x11389, 0x10300}, {0x1138B, 0x1138B, 0x10300},
    {0x1138E, 0x1138E, 0x10300}, {0x11390, 0x113B5, 0x10300}, {0x113B7, 0x113B7, 0x10300},
    {0x113B8, 0x113C0, 0x101FD}, {0x113C2, 0x113C2, 0x101FD}, {0x113C5, 0x113C5, 0x101FD},
    {0x113C7, 0x113CA, 0x101FD}, {0x113CC, 0x113D0, 0x101FD}, {0x113D1, 0x113D1, 0x10300},
    {0x113D2, 0x113D2, 0x101FD}, {0x113D3, 0x113D3, 0x10300}, {0x113D4, 0x113D5, 0x10100},
    {0x113D7, 0x113D8, 0x10100}, {0x113E1, 0x113E2, 0x101FD}, {0x116D0, 0x116E3, 0x104A0},
    {0x11B00, 0x11B09, 0x10100}, {0x11BC0, 0x11BE0, 0x10300}, {0x11BE1, 0x11BE1, 0x10100},
    {0x11BF0, 0x11BF9, 0x104A0}, {0x11F00, 0x11F01, 0x101FD}, {0x11F02, 0x11F02, 0x10300},
    {0x11F03, 0x11F03, 0x101FD}, {0x11F04, 0x11F10, 0x10300}, {0x11F12, 0x11F33, 0x10300},
    {0x11F34, 0x11F3A, 0x101FD}, {0x11F3E, 0x11F42, 0x101FD}, {0x11F43, 0x11F4F, 0x10100},
    {0x11F50, 0x11F59, 0x104A0}, {0x11F5A, 0x11F5A, 0x101FD}, {0x1342F, 0x1342F, 0x10300},
    {0x13440, 0x13440, 0x101FD}, {0x13441, 0x13446, 0x10300}, {0x13447, 0x13455, 0x101FD},
    {0x13460, 0x143FA, 0x10300}, {0x16100, 0x1611D, 0x10300}, {0x1611E, 0x1612F, 0x101FD},
    {0x16130, 0x16139, 0x104A0}, {0x16D40, 0x16D42, 0x16F93}, {0x16D43, 0x16D6A, 0x10300},
    {0x16D6B, 0x16D6C, 0x16F93}, {0x16D6D, 0x16D6F, 0x10100}, {0x16D70, 0x16D79, 0x104A0},
    {0x18CFF, 0x18CFF, 0x10300}, {0x1B132, 0x1B132, 0x10300}, {0x1B155, 0x1B155, 0x10300},
    {0x1CC00, 0x1CCEF, 0x1F600}, {0x1CCF0, 0x1CCF9, 0x104A0}, {0x1CD00, 0x1CEB3, 0x1F600},
    {0x1D2C0, 0x1D2D3, 0x10107}, {0x1DF25, 0x1DF2A, 0x10428}, {0x1E030, 0x1E06D, 0x16F93},
    {0x1E08F, 0x1E08F, 0x101FD}, {0x1E4D0, 0x1E4EA, 0x10300}, {0x1E4EB, 0x1E4EB, 0x16F93},
    {0x1E4EC, 0x1E4EF, 0x101FD}, {0x1E4F0, 0x1E4F9, 0x104A0}, {0x1E5D0, 0x1E5ED, 0x10300},
    {0x1E5EE, 0x1E5EF, 0x101FD}, {0x1E5F0, 0x1E5F0, 0x10300}, {0x1E5F1, 0x1E5FA, 0x104A0},
    {0x1E5FF, 0x1E5FF, 0x10100}, {0x1F6DC, 0x1F6DC, 0x1F600}, {0x1F774, 0x1F776, 0x1F600},
    {0x1F77B, 0x1F77F, 0x1F600}, {0x1F7D9, 0x1F7D9, 0x1F600}, {0x1F8B2, 0x1F8BB, 0x1F600},
    {0x1F8C0, 0x1F8C1, 0x1F600}, {0x1FA75, 0x1FA77, 0x1F600}, {0x1FA87, 0x1FA89, 0x1F600},
    {0x1FA8F, 0x1FA8F, 0x1F600}, {0x1FAAD, 0x1FAAF, 0x1F600}, {0x1FABB, 0x1FABF, 0x1F600},
    {0x1FAC6, 0x1FAC6, 0x1F600}, {0x1FACE, 0x1FACF, 0x1F600}, {0x1FADA, 0x1FADC, 0x1F600},
    {0x1FADF, 0x1FADF, 0x1F600}, {0x1FAE8, 0x1FAE9, 0x1F600}, {0x1FAF7, 0x1FAF8, 0x1F600},
    {0x1FBCB, 0x1FBEF, 0x1F600}, {0x2B739, 0x2B739, 0x20000}, {0x2EBF0, 0x2EE5D, 0x20000},
    {0x31350, 0x323AF, 0x20000}};
// Digits of Unicode 17: those of Rust, not those of the patterns.
constexpr Range kNewestDigits[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

// What extends a cluster in Unicode 17 and not in 15.0.
constexpr Range kNewestExtenders[] = {
    {0x897, 0x897},     {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D},
    {0x10EFA, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
    {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
    {0x11B60, 0x11B67}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF},
    {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};

// The script Han, of Unicode 16.
constexpr Range kHan[] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
    {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
    {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
    {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
    {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF}};

// Characters that Hugging Face's normalizers do not know, whose tables are of Unicode 9: marks with
// a class, and characters with a decomposition.
constexpr Range kNewerThanNormalizer[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x107BA}, {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

// Marks newer than Unicode 9 and punctuation newer than Unicode 8; what else lies in the ranges is
// neither. Then what BertNormalizer knows less, whose marks are of Unicode 8.
constexpr Range kNewerMarksAndPunctuation[] = {
    {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FD, 0x9FE},
    {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},
    {0xC77, 0xC77},     {0xC84, 0xC84},     {0xCF3, 0xD00},     {0xD3B, 0xD3C},
    {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},
    {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1CF7, 0x1CF7},
    {0x1DF6, 0x1DFA},   {0x2E43, 0x2E5D},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},
    {0x10D24, 0x10F89}, {0x11070, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146},
    {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B},
    {0x1144B, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182C, 0x11B09},
    {0x11C41, 0x11C71}, {0x11D31, 0x11FFF}, {0x12FF1, 0x13455}, {0x16E97, 0x16F4F},
    {0x16F7F, 0x16F87}, {0x16FE2, 0x16FF1}, {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E4EF},
    {0x1E95E, 0x1E95F}};
constexpr Range kNewerNonspacing[] = {{0x8D4, 0x8E1},
                                      {0x1885, 0x1886},
                                      {0x1DFB, 0x1DFB},
                                      {0xA8C5, 0xA8C5},
                                      {0xA9BD, 0xA9BD},
                                      {0x1123E, 0x1123E},
                                      {0x11438, 0x11446},
                                      {0x11C30, 0x11CB6},
                                      {0x1E000, 0x1E02A},
                                      {0x1E944, 0x1E94A}};

// The range that holds c, or null. They ascend.
template <typename AnyRange, size_t kCount>
const AnyRange* range_of(const AnyRange (&ranges)[kCount], char32_t c) {
  const AnyRange* found = std::ranges::lower_bound(ranges, c, {}, &AnyRange::last);
  return found != std::end(ranges) && found->first <= c ? found : nullptr;
}

template <size_t kCount>
bool is_in(const Range (&ranges)[kCount], char32_t c) {
  return range_of(ranges, c) != nullptr;
}

utf8proc_category_t old_category_of(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

utf8proc_category_t category_of(char32_t c) {
  const utf8proc_category_t category = old_category_of(c);
  return category == UTF8PROC_CATEGORY_CN ? old_category_of(known_character(c)) : category;
}

bool is_between(utf8proc_category_t c, utf8proc_category_t first, utf8proc_category_t last) {
  return c >= first && c <= last;
}

// Symbols that are alphabetic though their category is So: circled and squared Latin letters.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

char32_t known_character(char32_t c) {
  const MappedRange* found = range_of(kNewer, c);
  return found != nullptr ? found->to : c;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_between(category_of(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_between(category_of(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t spaces_begin_before(std::string_view valid_text, size_t end) {
  while (end > 0) {
    const size_t start = previous_start(valid_text, end);
    if (!is_space(code_point_at(valid_text, start).value)) break;
    end = start;
  }
  return end;
}

size_t spaces_end_after(std::string_view valid_text, size_t pos) {
  while (pos < valid_text.size()) {
    const CodePoint point = code_point_at(valid_text, pos);
    if (!is_space(point.value)) break;
    pos += point.num_bytes;
  }
  return pos;
}

bool is_word(char32_t c) {
  if (is_letter(c) || c == '_') return true;
  const auto category = category_of(c);
  return (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME) ||
         category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || is_alphabetic_symbol(c);
}

bool is_numeric(char32_t c) { return is_number(c) || is_in(kNewestDigits, c); }

bool is_mark(char32_t c) {
  return is_between(category_of(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool is_han(char32_t c) { return c >= 0x2E80 && is_in(kHan, c); }

LetterCase letter_case(char32_t c) {
  if (c < 0x80) {
    if (!is_letter(c)) return LetterCase::kNone;
    return c >= 'a' ? LetterCase::kLower : LetterCase::kUpper;
  }
  const auto category = category_of(c);
  if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT)
    return LetterCase::kUpper;
  if (category == UTF8PROC_CATEGORY_LL) return LetterCase::kLower;
  const bool has_none = is_between(category, UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LO) ||
                        is_between(category, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
  return has_none ? LetterCase::kEither : LetterCase::kNone;
}

bool is_newer_extender(char32_t c) { return c >= 0x897 && is_in(kNewestExtenders, c); }

bool is_newer_than_normalizer(char32_t c) {
  return c >= kNewerThanNormalizer[0].first && is_in(kNewerThanNormalizer, c);
}

bool is_combining_mark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  return is_between(old_category_of(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) &&
         !is_in(kNewerMarksAndPunctuation, c);
}

bool is_nonspacing_mark(char32_t c) {
  if (c == 0x1734) return true;
  return old_category_of(c) == UTF8PROC_CATEGORY_MN && !is_in(kNewerMarksAndPunctuation, c) &&
         !is_in(kNewerNonspacing, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !is_letter(c) && !is_number(c);
  if (c == 0x166D || c == 0x111C9) return true;
  return is_between(old_category_of(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
         !is_in(kNewerMarksAndPunctuation, c);
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const bool is_newer =
      c == 0x890 || c == 0x891 || c == 0x8E2 || c == 0x110CD || (c >= 0x13430 && c <= 0x1343F);
  return is_between(old_category_of(c), UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO) && !is_newer;
}

void append_lowercase(std::string& out, char32_t c) {
  // Letters of Unicode 15.1 to 17, in runs: first, last, lower case of the first.
  static constexpr MappedRange kNewLowercase[] = {{0x1C89, 0x1C89, 0x1C8A},
                                                  {0xA7CB, 0xA7CB, 0x264},
                                                  {0xA7CC, 0xA7CC, 0xA7CD},
                                                  {0xA7CE, 0xA7CE, 0xA7CF},
                                                  {0xA7D2, 0xA7D2, 0xA7D3},
                                                  {0xA7D4, 0xA7D4, 0xA7D5},
                                                  {0xA7DA, 0xA7DA, 0xA7DB},
                                                  {0xA7DC, 0xA7DC, 0x19B},
                                                  {0x10D50, 0x10D65, 0x10D70},
                                                  {0x16EA0, 0x16EB8, 0x16EBB}};
  if (c == 0x130) {  // the only character whose lower case is two
    out += "i\xCC\x87";
    return;
  }
  if (const MappedRange* run = range_of(kNewLowercase, c)) {
    append_utf8(out, run->to + (c - run->first));
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace outrider::unicode
