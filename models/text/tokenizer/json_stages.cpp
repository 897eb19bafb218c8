// Reads the pipeline stages of tokenizer.json: normalizer, pre-tokenizer, post-processor, decoder.
// Each is one object or a (nested) Sequence of them, read here into a flat list. One thread, at
// load.
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

NormalizerStep read_normalizer_step(const Json& stage, const Place& place) {
  using Kind = NormalizerStep::Kind;
  const std::string type = string_at(stage, "type", place);
  if (type == "Prepend") return {Kind::kPrepend, {}, string_at(stage, "prepend", place), {}};
  if (type == "Replace") {
    return {Kind::kReplace, read_pattern(stage, place), string_at(stage, "content", place), {}};
  }
  if (type == "Lowercase") return {Kind::kLowercase, {}, {}, {}};
  if (type == "NFC") return {Kind::kUnicodeForm, {}, {}, unicode::Form::kNfc};
  if (type == "NFD") return {Kind::kUnicodeForm, {}, {}, unicode::Form::kNfd};
  if (type == "NFKC") return {Kind::kUnicodeForm, {}, {}, unicode::Form::kNfkc};
  if (type == "NFKD") return {Kind::kUnicodeForm, {}, {}, unicode::Form::kNfkd};
  fail_kind(place, type);
}

SplitBehavior read_behavior(const Json& stage, const Place& place) {
  const std::string name = string_at(stage, "behavior", place);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  place.fail("the split behavior \"" + excerpt(name) + "\" is not known");
}

std::string one_character(const Json& stage, const char* key, const Place& place) {
  const std::string text = string_at(stage, key, place);
  if (text.empty() || unicode::utf8_unit_at(text, 0).length != text.size()) {
    place.fail(std::string(key) + " must be one character");
  }
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
    step.behavior = read_behavior(stage, place);
    step.invert = bool_or(stage, "invert", false, place);
  } else if (type == "Digits") {
    step.kind = PreTokenizerStep::Kind::kDigits;
    step.individual_digits = bool_or(stage, "individual_digits", false, place);
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

int64_t count_or_zero(const Json& stage, const char* key, const Place& place) {
  const Json* value = find(stage, key);
  if (value == nullptr) return 0;
  if (!value->is_number_unsigned() || value->get<uint64_t>() > 1024) {
    place.fail(std::string(key) + " must be a whole number from 0 to 1024");
  }
  return static_cast<int64_t>(value->get<uint64_t>());
}

// The decoder stages that work on pieces: Replace..., ByteFallback, Fuse, Strip, in this order.
class PieceDecoderReader {
 public:
  explicit PieceDecoderReader(const Place& place) : place_(place) {
    spec_.kind = DecoderSpec::Kind::kPieces;
  }

  void add(const Json& stage) {
    const std::string type = string_at(stage, "type", place_);
    if (type == "Replace") {
      require_before(Stage::kReplace, type);
      const PatternSpec pattern = read_pattern(stage, place_);
      if (pattern.is_regex) place_.fail("a Replace with a Regex is not supported");
      spec_.replacements.emplace_back(pattern.text, string_at(stage, "content", place_));
    } else if (type == "ByteFallback") {
      require_before(Stage::kByteFallback, type);
      spec_.byte_fallback = true;
    } else if (type == "Fuse") {
      require_before(Stage::kFuse, type);
    } else if (type == "Strip") {
      if (reached_ != Stage::kFuse)
        place_.fail("a Strip that does not follow Fuse is not supported");
      require_before(Stage::kStrip, type);
      if (count_or_zero(stage, "stop", place_) != 0) {
        place_.fail("a Strip at the end of the text is not supported");
      }
      spec_.num_strip_start = static_cast<size_t>(count_or_zero(stage, "start", place_));
      spec_.strip_content = one_character(stage, "content", place_);
    } else {
      fail_kind(place_, type);
    }
  }

  DecoderSpec take() { return std::move(spec_); }

 private:
  enum class Stage { kReplace, kByteFallback, kFuse, kStrip };

  void require_before(Stage stage, const std::string& type) {
    const bool repeats = stage == reached_ && stage != Stage::kReplace;
    if (stage < reached_ || repeats) place_.fail("the order of " + type + " is not supported");
    reached_ = stage;
  }

  const Place& place_;
  DecoderSpec spec_;
  Stage reached_ = Stage::kReplace;
};

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
    if (!steps.empty() && steps.back().kind == PreTokenizerStep::Kind::kByteLevel) {
      here.fail("a stage after ByteLevel is not supported");
    }
    steps.push_back(read_pre_tokenizer_step(*stage, here));
  }
  return steps;
}

DecoderSpec read_decoder(const Json* value, const Place& place) {
  const Place here = place.in("decoder");
  const auto stages = stages_of(value, "decoders", here);
  if (stages.empty()) {
    DecoderSpec spec;
    // An empty Sequence joins with nothing between, no decoder at all with spaces.
    if (value != nullptr) spec.kind = DecoderSpec::Kind::kPieces;
    return spec;
  }
  const std::string type = string_at(*stages[0], "type", here);
  if (type == "ByteLevel" || type == "Metaspace") {
    if (stages.size() > 1) here.fail("a stage after " + type + " is not supported");
    DecoderSpec spec;
    spec.kind = DecoderSpec::Kind::kByteLevel;
    if (type == "Metaspace") {
      spec.kind = DecoderSpec::Kind::kMetaspace;
      spec.metaspace = one_character(*stages[0], "replacement", here);
      spec.metaspace_prepended = read_prepend_scheme(*stages[0], here) != PrependScheme::kNever;
    }
    return spec;
  }
  PieceDecoderReader reader(here);
  for (const Json* stage : stages) reader.add(*stage);
  return reader.take();
}

void read_post_processor(const Json* value, TokenizerSpec& spec, const Place& place) {
  const Place here = place.in("post_processor");
  for (const Json* stage : stages_of(value, "processors", here)) {
    const std::string type = string_at(*stage, "type", here);
    if (type == "TemplateProcessing") {
      read_template(*stage, spec, here);
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets, which we do not report
      fail_kind(here, type);
    }
  }
}

}  // namespace outrider::json_reader
