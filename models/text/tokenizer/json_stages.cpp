// Reads the pipeline stages of tokenizer.json: normalizer, pre-tokenizer, post-processor, decoder.
// Each is one object or a (nested) Sequence of them, read here into a flat list. One thread, at
// load.
#include <map>
#include <nlohmann/json.hpp>

#include "models/text/tokenizer/json.h"
#include "runtime/base/error.h"

namespace outrider::json_reader {
namespace {

// The stages in order, Sequences opened. Recursion is bounded by the depth limit of parse().
void flatten(const Json& value,
             const char* list_key,
             const Place& place,
             std::vector<const Json*>& out) {
  if (!value.is_object()) place.fail("must be an object");
  if (string_at(value, "type", place) != "Sequence") {
    out.push_back(&value);
    if (out.size() > 64) place.fail("more than 64 stages");
    return;
  }
  const Json* list = find(value, list_key);
  if (list == nullptr || !list->is_array())
    place.fail("a Sequence must have " + std::string(list_key));
  for (const Json& item : *list) flatten(item, list_key, place, out);
}

std::vector<const Json*> stages_of(const Json* value, const char* list_key, const Place& place) {
  std::vector<const Json*> out;
  if (value != nullptr) flatten(*value, list_key, place, out);
  return out;
}

[[noreturn]] void fail_kind(const Place& place, const std::string& type) {
  place.fail("the type \"" + excerpt(type) + "\" is not supported");
}

PatternSpec read_pattern(const Json& stage, const Place& place) {
  const Json* pattern = find(stage, "pattern");
  if (pattern == nullptr) place.fail("pattern is missing");
  if (find(*pattern, "Regex") != nullptr) return {true, string_at(*pattern, "Regex", place)};
  PatternSpec spec{false, string_at(*pattern, "String", place)};
  if (spec.text.empty()) place.fail("an empty pattern");
  return spec;
}

// The bytes of base64 text; padding is not asked for.
std::string from_base64(const std::string& text, const Place& place) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : std::string_view(text).substr(0, text.find_last_not_of('=') + 1)) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) place.fail("precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes.push_back(static_cast<char>(bits >> num_bits & 0xFF));
  }
  return bytes;
}

NormalizerStep read_bert(const Json& stage, const Place& place) {
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::kBert;
  step.cleans = bool_or(stage, "clean_text", true, place);
  step.spaces_han = bool_or(stage, "handle_chinese_chars", true, place);
  step.lowers = bool_or(stage, "lowercase", true, place);
  step.strips_accents = bool_or(stage, "strip_accents", step.lowers, place);
  return step;
}

NormalizerStep read_normalizer_step(const Json& stage, const Place& place) {
  using Kind = NormalizerStep::Kind;
  static const std::map<std::string, Kind> plain = {{"Lowercase", Kind::kLowercase},
                                                    {"StripAccents", Kind::kStripAccents},
                                                    {"Nmt", Kind::kNmt},
                                                    {"ByteLevel", Kind::kByteLevel}};
  static const std::map<std::string, unicode::Form> forms = {{"NFC", unicode::Form::kNfc},
                                                             {"NFD", unicode::Form::kNfd},
                                                             {"NFKC", unicode::Form::kNfkc},
                                                             {"NFKD", unicode::Form::kNfkd}};
  const std::string type = string_at(stage, "type", place);
  if (type == "BertNormalizer") return read_bert(stage, place);
  NormalizerStep step;
  if (const auto kind = plain.find(type); kind != plain.end()) {
    step.kind = kind->second;
  } else if (const auto form = forms.find(type); form != forms.end()) {
    step.kind = Kind::kUnicodeForm;
    step.form = form->second;
  } else if (type == "Prepend") {
    step.content = string_at(stage, "prepend", place);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern = read_pattern(stage, place);
    step.content = string_at(stage, "content", place);
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.strips_left = bool_or(stage, "strip_left", true, place);
    step.strips_right = bool_or(stage, "strip_right", true, place);
  } else if (type == "Precompiled") {
    step.kind = Kind::kPrecompiled;
    step.content = from_base64(string_at(stage, "precompiled_charsmap", place), place);
  } else {
    fail_kind(place, type);
  }
  return step;
}

SplitBehavior read_behavior(const std::string& name, const Place& place) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  place.fail("the split behavior \"" + excerpt(name) + "\" is not known");
}

bool is_one_character(const std::string& text) {
  return !text.empty() && unicode::utf8_unit_at(text, 0).length == text.size();
}

std::string one_character(const Json& stage, const char* key, const Place& place) {
  const std::string text = string_at(stage, key, place);
  if (!is_one_character(text)) place.fail(std::string(key) + " must be one character");
  return text;
}

PrependScheme read_prepend_scheme(const Json& stage, const Place& place) {
  const bool add_prefix_space = bool_or(stage, "add_prefix_space", true, place);
  const std::string name =
      string_or(stage, "prepend_scheme", add_prefix_space ? "always" : "never", place);
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  place.fail("the prepend_scheme \"" + excerpt(name) + "\" is not known");
}

PreTokenizerStep read_pre_tokenizer_step(const Json& stage, const Place& place) {
  const std::string type = string_at(stage, "type", place);
  PreTokenizerStep step;
  if (type == "Split") {
    step.kind = PreTokenizerStep::Kind::kSplit;
    step.pattern = read_pattern(stage, place);
    step.behavior = read_behavior(string_at(stage, "behavior", place), place);
    step.invert = bool_or(stage, "invert", false, place);
  } else if (type == "Digits") {
    step.kind = PreTokenizerStep::Kind::kDigits;
    step.individual_digits = bool_or(stage, "individual_digits", false, place);
  } else if (type == "Punctuation") {
    step.kind = PreTokenizerStep::Kind::kPunctuation;
    step.behavior = read_behavior(string_or(stage, "behavior", "Isolated", place), place);
  } else if (type == "WhitespaceSplit") {
    step.kind = PreTokenizerStep::Kind::kWhitespaceSplit;
  } else if (type == "Whitespace") {
    step.kind = PreTokenizerStep::Kind::kWhitespace;
  } else if (type == "ByteLevel") {
    step.kind = PreTokenizerStep::Kind::kByteLevel;
    step.add_prefix_space = bool_or(stage, "add_prefix_space", true, place);
    step.use_regex = bool_or(stage, "use_regex", true, place);
  } else if (type == "Metaspace") {
    step.kind = PreTokenizerStep::Kind::kMetaspace;
    step.replacement = one_character(stage, "replacement", place);
    step.prepend_scheme = read_prepend_scheme(stage, place);
    step.split = bool_or(stage, "split", true, place);
  } else {
    fail_kind(place, type);
  }
  return step;
}

size_t count_or_zero(const Json& stage, const char* key, const Place& place) {
  const Json* value = find(stage, key);
  if (value == nullptr) return 0;
  if (!value->is_number_unsigned() || value->get<uint64_t>() > 1024) {
    place.fail(std::string(key) + " must be a whole number from 0 to 1024");
  }
  return value->get<size_t>();
}

DecoderStage read_decoder_stage(const Json& stage, bool is_fused, const Place& place) {
  using Kind = DecoderStage::Kind;
  const std::string type = string_at(stage, "type", place);
  DecoderStage read{.is_fused = is_fused};
  if (type == "Replace") {
    read.kind = Kind::kReplace;
    read.pattern = read_pattern(stage, place);
    read.content = string_at(stage, "content", place);
    const std::string& text = read.pattern.text;
    const bool is_character = !read.pattern.is_regex && is_one_character(text);
    if (is_fused && !is_character)
      place.fail("a Replace of more than one character after Fuse is not supported");
  } else if (type == "ByteFallback") {
    read.kind = Kind::kByteFallback;
    if (is_fused) place.fail("a ByteFallback after Fuse is not supported");
  } else if (type == "Fuse") {
    read.kind = Kind::kFuse;
  } else if (type == "ByteLevel") {
    read.kind = Kind::kByteLevel;
    if (is_fused) place.fail("a ByteLevel after Fuse is not supported");
  } else if (type == "Strip") {
    read.kind = Kind::kStrip;
    read.num_start = count_or_zero(stage, "start", place);
    read.num_stop = count_or_zero(stage, "stop", place);
    read.pattern.text = one_character(stage, "content", place);
  } else if (type == "Metaspace") {
    read.kind = Kind::kMetaspace;
    read.pattern.text = one_character(stage, "replacement", place);
    read.drops_first_marks = read_prepend_scheme(stage, place) != PrependScheme::kNever;
  } else if (type == "BPEDecoder") {
    place.fail("BPEDecoder, for tokens with an end_of_word_suffix, is not supported");
  } else {
    fail_kind(place, type);
  }
  return read;
}

// Ids a SpecialToken of a template stands for.
std::vector<int32_t> template_ids(const Json& processor, const Json& item, const Place& place) {
  const std::string name = string_at(item, "id", place);
  const Json* table = find(processor, "special_tokens");
  const Json* entry = table == nullptr ? nullptr : find(*table, name.c_str());
  const Json* ids = entry == nullptr ? nullptr : find(*entry, "ids");
  if (ids == nullptr || !ids->is_array()) {
    place.fail("the template names \"" + excerpt(name) + "\", which special_tokens does not have");
  }
  std::vector<int32_t> out;
  for (const Json& id : *ids) out.push_back(token_id_of(id, place));
  return out;
}

// A token as ["</s>", 2].
int32_t named_id(const Json& processor, const char* key, const Place& place) {
  const Json* pair = find(processor, key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2)
    place.fail(std::string(key) + " must be a token and its id");
  return token_id_of((*pair)[1], place);
}

void read_template(const Json& processor, TokenizerSpec& spec, const Place& place) {
  const Json* single = find(processor, "single");
  if (single == nullptr || !single->is_array()) place.fail("single must be an array");
  std::vector<int32_t> around[2];
  int num_sequences = 0;
  for (const Json& item : *single) {
    if (const Json* special = find(item, "SpecialToken")) {
      const auto ids = template_ids(processor, *special, place);
      auto& side = around[num_sequences == 0 ? 0 : 1];
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      const Json* sequence = find(item, "Sequence");
      if (sequence == nullptr) place.fail("a template item must be SpecialToken or Sequence");
      if (string_at(*sequence, "id", place) != "A") place.fail("single must use Sequence A only");
      ++num_sequences;
    }
  }
  if (num_sequences != 1) place.fail("single must hold Sequence A exactly once");
  // A later processor of a Sequence wraps what the earlier ones made.
  spec.prefix_ids.insert(spec.prefix_ids.begin(), around[0].begin(), around[0].end());
  spec.suffix_ids.insert(spec.suffix_ids.end(), around[1].begin(), around[1].end());
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const Json* value, const Place& place) {
  const Place here = place.in("normalizer");
  std::vector<NormalizerStep> steps;
  for (const Json* stage : stages_of(value, "normalizers", here)) {
    steps.push_back(read_normalizer_step(*stage, here));
  }
  return steps;
}

std::vector<PreTokenizerStep> read_pre_tokenizer(const Json* value, const Place& place) {
  const Place here = place.in("pre_tokenizer");
  std::vector<PreTokenizerStep> steps;
  for (const Json* stage : stages_of(value, "pretokenizers", here)) {
    steps.push_back(read_pre_tokenizer_step(*stage, here));
  }
  return steps;
}

DecoderSpec read_decoder(const Json* value, const Place& place) {
  const Place here = place.in("decoder");
  DecoderSpec spec;
  // An empty Sequence joins with nothing between, no decoder at all with spaces.
  spec.joins_with_spaces = value == nullptr;
  bool is_fused = false;
  for (const Json* stage : stages_of(value, "decoders", here)) {
    spec.stages.push_back(read_decoder_stage(*stage, is_fused, here));
    const DecoderStage::Kind kind = spec.stages.back().kind;
    is_fused =
        is_fused || kind == DecoderStage::Kind::kFuse || kind == DecoderStage::Kind::kByteLevel;
  }
  return spec;
}

void read_post_processor(const Json* value, TokenizerSpec& spec, const Place& place) {
  const Place here = place.in("post_processor");
  for (const Json* stage : stages_of(value, "processors", here)) {
    const std::string type = string_at(*stage, "type", here);
    if (type == "TemplateProcessing") {
      read_template(*stage, spec, here);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      spec.prefix_ids.insert(spec.prefix_ids.begin(), named_id(*stage, "cls", here));
      spec.suffix_ids.push_back(named_id(*stage, "sep", here));
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets, which we do not report
      fail_kind(here, type);
    }
  }
}

}  // namespace outrider::json_reader
