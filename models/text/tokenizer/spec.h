// A tokenizer.json and tokenizer_config.json as plain checked values: what tokenizer/json.cpp reads
// and the encode and decode stages are built from. Built once at load, on one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "models/text/tokenizer/unicode.h"

namespace outrider {

// A "pattern" of tokenizer.json: a literal text or a regular expression.
struct PatternSpec {
  bool is_regex = false;
  std::string text;
};

struct NormalizerStep {
  enum class Kind {
    kPrepend,
    kReplace,
    kUnicodeForm,
    kLowercase,
    kStrip,
    kStripAccents,
    kNmt,
    kBert,
    kByteLevel,
    kPrecompiled
  };
  Kind kind = Kind::kPrepend;
  PatternSpec pattern;                           // kReplace
  std::string content;                           // kPrepend, kReplace; the charsmap of kPrecompiled
  unicode::Form form = unicode::Form::kNfc;      // kUnicodeForm
  bool strips_left = true, strips_right = true;  // kStrip
  bool cleans = true, spaces_han = true;         // kBert, as are the next two
  bool strips_accents = true, lowers = true;
};

// What happens to the matches of a split pattern (Hugging Face's SplitDelimiterBehavior).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kAlways, kFirst, kNever };

struct PreTokenizerStep {
  enum class Kind {
    kSplit,
    kDigits,
    kPunctuation,
    kWhitespaceSplit,
    kWhitespace,
    kMetaspace,
    kByteLevel
  };
  Kind kind = Kind::kSplit;
  PatternSpec pattern;                                    // kSplit
  SplitBehavior behavior = SplitBehavior::kIsolated;      // kSplit, kPunctuation
  bool invert = false;                                    // kSplit
  bool individual_digits = false;                         // kDigits
  bool add_prefix_space = false;                          // kByteLevel
  bool use_regex = true;                                  // kByteLevel
  bool split = true;                                      // kMetaspace
  std::string replacement;                                // kMetaspace
  PrependScheme prepend_scheme = PrependScheme::kAlways;  // kMetaspace
};

struct DecoderStage {
  enum class Kind { kReplace, kByteFallback, kFuse, kStrip, kMetaspace, kByteLevel };
  Kind kind = Kind::kFuse;
  PatternSpec pattern;             // kReplace; the character of kStrip and kMetaspace
  std::string content;             // kReplace
  size_t num_start = 0;            // kStrip: dropped at most so many times from the start
  size_t num_stop = 0;             // and from the end
  bool drops_first_marks = false;  // kMetaspace: the first token's marks are not spaces
  bool is_fused = false;  // what comes in are chunks of one token: Fuse or ByteLevel came before
};

struct DecoderSpec {
  bool joins_with_spaces = true;  // no decoder at all
  std::vector<DecoderStage> stages;
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
  // Special, or in the role of one (named by tokenizer_config.json): never read from a user's text.
  bool control = false;
};

struct BpeSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

struct UnigramSpec {
  std::vector<std::pair<std::string, double>> vocab;  // piece and log-probability by id
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
};

struct TokenizerSpec {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::variant<BpeSpec, UnigramSpec> model;
  std::vector<AddedToken> added_tokens;
  DecoderSpec decoder;
  std::vector<int32_t> prefix_ids;  // the post-processor's template around the text
  std::vector<int32_t> suffix_ids;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;

  // visit(piece, id) for the whole vocabulary of the model.
  template <typename Visit>
  void for_each_piece(const Visit& visit) const {
    if (const auto* bpe = std::get_if<BpeSpec>(&model)) {
      for (const auto& [piece, id] : bpe->vocab) visit(piece, id);
      return;
    }
    int32_t id = 0;
    for (const auto& entry : std::get<UnigramSpec>(model).vocab) visit(entry.first, id++);
  }
};

// Largest id a tokenizer.json may use.
inline constexpr int32_t kMaxTokenId = 2'000'000 - 1;

// Parses both texts (the second may be empty) and checks every value. Throws Error that names
// `origin` and the place.
TokenizerSpec parse_tokenizer_spec(std::string_view tokenizer_json,
                                   std::string_view config_json,
                                   const std::string& origin);

}  // namespace outrider
