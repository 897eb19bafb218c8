// The keys of quantization_config as AutoGPTQ, GPTQModel, AutoAWQ and compressed-tensors write
// them; see quantization_config.h.
#include "models/checkpoint/quantization_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "models/checkpoint/checked_json.h"
#include "models/checkpoint/model_documents.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxGroupSize = 1 << 20;

// One object of the file; null counts as absent.
struct Section {
  const Json& object;
  std::string where;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", where, what));
  }
  const Json* find(const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(fmt::format("\"{}\" must be a text", key));
    return printable(value->get_ref<const std::string&>());
  }
  bool flag_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(fmt::format("\"{}\" must be true or false", key));
    return value->get<bool>();
  }
  // Of a key with an older name beside it.
  std::optional<int64_t> integer(const char* key, const char* old_key) const {
    const Json* value = find(key) != nullptr ? find(key) : find(old_key);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    if (!fits) fail(fmt::format("\"{}\" must be a whole number", key));
    return value->get<int64_t>();
  }
  Section inner(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_object()) fail(fmt::format("\"{}\" must be an object", key));
    return {*value, fmt::format("{}: {}", where, key)};
  }
};

int32_t read_bits(const Section& section, const char* key, const char* old_key, bool may_be_8) {
  const auto bits = section.integer(key, old_key);
  if (bits == 4 || (bits == 8 && may_be_8)) return static_cast<int32_t>(*bits);
  section.fail(fmt::format("weights of {} bits are not supported; only of {}",
                           bits ? std::to_string(*bits) : "an unknown number of",
                           may_be_8 ? "4 or 8" : "4"));
}

// -1 in the files: one scale for all inputs of an output.
int32_t read_group_size(const Section& section, std::optional<int64_t> size) {
  if (!size || *size == -1) return 0;
  if (*size < 1 || *size > kMaxGroupSize) {
    section.fail(fmt::format("\"group_size\" must be -1 or from 1 to {}", kMaxGroupSize));
  }
  return static_cast<int32_t>(*size);
}

QuantizationConfig read_gptq(const Section& section) {
  QuantizationConfig config;
  config.layout = WeightLayout::kGptq;
  config.num_bits = read_bits(section, "bits", "bits", true);
  config.group_size = read_group_size(section, section.integer("group_size", "group_size"));
  const std::string format = section.text_or("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    section.fail(fmt::format(
        "checkpoint_format \"{}\" is not supported; known are gptq and gptq_v2", format));
  }
  config.zeros_less_one = format == "gptq";
  return config;
}

QuantizationConfig read_awq(const Section& section) {
  QuantizationConfig config;
  config.layout = WeightLayout::kAwq;
  config.num_bits = read_bits(section, "bits", "w_bit", false);
  config.group_size = read_group_size(section, section.integer("group_size", "q_group_size"));
  const std::string version = section.text_or("version", "gemm");
  if (version != "gemm" && version != "GEMM") {
    section.fail(fmt::format("AWQ version \"{}\" is not supported; only gemm is", version));
  }
  return config;
}

// Rotations that are not yet in the weights, and so must be made of activations at run time.
void refuse_transforms(const Section& section) {
  const Json* transforms = section.find("transform_config");
  if (transforms == nullptr || transforms->empty()) return;
  const Section groups = section.inner("transform_config").inner("config_groups");
  for (const auto& [name, group] : groups.object.items()) {
    const Json* applies = group.is_object() ? Section{group, name}.find("apply") : nullptr;
    if (applies == nullptr || !applies->is_array()) groups.fail("a group has no list \"apply\"");
    for (const Json& apply : *applies) {
      const std::string location =
          apply.is_object() ? Section{apply, groups.where}.text_or("location", "") : "";
      if (location != "weight_input" && location != "weight_output")
        groups.fail(fmt::format("transforms at \"{}\" are not supported", location));
    }
  }
}

// The weights' arguments of the one group of projections there may be.
QuantizationConfig read_compressed(const Section& section) {
  refuse_transforms(section);
  QuantizationConfig config;
  const std::string format = section.text_or("format", "");
  if (format == "int-quantized" || format == "naive-quantized") {
    config.layout = WeightLayout::kIntQuantized;
  } else if (format == "pack-quantized") {
    config.layout = WeightLayout::kPackQuantized;
  } else {
    section.fail(fmt::format(
        "format \"{}\" of compressed-tensors is not supported; known are int-quantized and "
        "pack-quantized",
        format));
  }
  const Section groups = section.inner("config_groups");
  if (groups.object.size() != 1) {
    section.fail(fmt::format("\"config_groups\" has {} groups; only one is supported",
                             groups.object.size()));
  }
  const std::string group_name = groups.object.begin().key();
  const Section group = groups.inner(group_name.c_str());
  const Section weights = group.inner("weights");
  const std::string type = weights.text_or("type", "int");
  if (type != "int") {
    weights.fail(fmt::format("weights of type \"{}\" are not supported; only int is", type));
  }
  config.num_bits = read_bits(weights, "num_bits", "num_bits", true);
  if (config.layout == WeightLayout::kIntQuantized && config.num_bits != 8) {
    weights.fail("weights of 4 bits must be in format pack-quantized");
  }
  const std::string strategy = weights.text_or("strategy", "tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "group") {
    weights.fail(fmt::format(
        "strategy \"{}\" is not supported; known are tensor, channel and group", strategy));
  }
  const auto size = weights.integer("group_size", "group_size");
  if (strategy == "group") config.group_size = read_group_size(weights, size);
  config.symmetric = weights.flag_or("symmetric", true);
  return config;
}

// e4m3 in blocks, as DeepSeek and transformers' FineGrainedFP8 write it. Activations stay floats
// here, whatever the scheme says of them.
QuantizationConfig read_fp8(const Section& section) {
  const std::string format = section.text_or("fmt", "e4m3");
  if (format != "e4m3") {
    section.fail(fmt::format("fp8 in \"{}\" is not supported; only e4m3 is", format));
  }
  const Json* size = section.find("weight_block_size");
  const auto is_size = [](const Json& value) {
    return value.is_number_unsigned() && value > 0 && value <= kMaxGroupSize;
  };
  if (size == nullptr) section.fail("fp8 without \"weight_block_size\" is not supported");
  if (!size->is_array() || size->size() != 2 || !is_size((*size)[0]) || !is_size((*size)[1])) {
    section.fail(
        fmt::format("\"weight_block_size\" must list two numbers from 1 to {}", kMaxGroupSize));
  }
  QuantizationConfig config;
  config.layout = WeightLayout::kFp8Blocks;
  config.block_rows = (*size)[0].get<int32_t>();
  config.block_columns = (*size)[1].get<int32_t>();
  return config;
}

}  // namespace

ops::QuantFormat load_format(const std::string& quantization) {
  if (quantization == "none" || quantization == "fp8") return {};  // fp8 are floats
  if (quantization == "int8") return {.bits = 8, .group_size = 128};
  throw Error(fmt::format("quantization must be none, int8 or fp8, not '{}'",
                          printable(quantization).substr(0, 100)));
}

QuantizationConfig read_quantization_config(const std::filesystem::path& model) {
  constexpr const char* kName = "config.json";
  const auto text = read_model_document(model, kName, JsonLimits{}.max_bytes);
  if (!text) return {};
  const Json json = Json::parse(*text);
  const Section file = {json, (model / kName).string()};
  if (file.find("quantization_config") == nullptr) return {};
  const Section section = file.inner("quantization_config");
  const std::string method = section.text_or("quant_method", "");
  if (method == "gptq") return read_gptq(section);
  if (method == "awq") return read_awq(section);
  if (method == "gguf") return {.layout = WeightLayout::kGguf};
  if (method == "compressed-tensors") return read_compressed(section);
  if (method == "mxfp4") return {.layout = WeightLayout::kMxfp4, .num_bits = 4, .group_size = 32};
  if (method == "fp8") return read_fp8(section);
  file.fail(fmt::format(
      "quantization_config is not supported: its quant_method is \"{}\"; known are gptq, awq, "
      "compressed-tensors, mxfp4 and fp8",
      method));
}

}  // namespace outrider
