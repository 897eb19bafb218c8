// config.json and generation_config.json of a GGUF file; see gguf_documents.h. The keys are those of
// gguf-py's constants.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "models/gguf/gguf_documents.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

struct KeyPair {
  std::string_view gguf;  // after "ARCHITECTURE."
  std::string_view config;
};

constexpr KeyPair kSizes[] = {
    {"block_count", "num_hidden_layers"},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"rope.freq_base", "rope_theta"},
};
constexpr KeyPair kRopeScaling[] = {
    {"rope.scaling.type", "rope_type"},
    {"rope.scaling.factor", "factor"},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.yarn_beta_fast", "beta_fast"},
    {"rope.scaling.yarn_beta_slow", "beta_slow"},
};
// What says nothing new of the families that are known.
constexpr std::string_view kHarmless[] = {
    "vocab_size", "attention.value_length", "rope.dimension_count", "rope.scaling.finetuned",
    "tensor_data_layout"};
constexpr std::string_view kArchitectures[] = {"llama", "qwen2", "qwen3"};

Json json_of(const GgufValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

template <typename Pairs>
bool copy_if_listed(const Pairs& pairs, std::string_view key, const GgufValue& value, Json& to) {
  for (const KeyPair& pair : pairs) {
    if (pair.gguf != key) continue;
    to[std::string(pair.config)] = json_of(value);
    return true;
  }
  return false;
}

std::string architecture_of(const GgufFile& file) {
  const std::string* name = file.find<std::string>("general.architecture");
  if (name == nullptr) throw Error(file.name() + ": 'general.architecture' is missing");
  if (std::find(std::begin(kArchitectures), std::end(kArchitectures), *name) ==
      std::end(kArchitectures))
    throw Error(fmt::format("{}: architecture '{}' is not supported in GGUF; known are {}",
                            file.name(),
                            *name,
                            fmt::join(kArchitectures, ", ")));
  return *name;
}

// Llama 3's scaling comes as what each frequency is divided by.
Json scaling_by_factors(const GgufFile& file, const GgufTensor& tensor) {
  constexpr uint64_t kMostBytes = 4096;
  if (tensor.type->id != kGgufF32 || tensor.num_bytes > kMostBytes)
    throw Error(fmt::format("{}: tensor '{}' is no short list of F32", file.name(), kGgufRopeFactors));
  std::vector<float> factors(tensor.num_bytes / sizeof(float));
  tensor.file->read_at(tensor.begin, factors.data(), tensor.num_bytes);
  return {{"rope_type", "longrope"},
          {"short_factor", factors},
          {"long_factor", factors},
          {"factor", 1.0},
          {"attention_factor", 1.0}};
}

// A key of the architecture that nobody reads may change the numbers.
void copy_architecture(const GgufFile& file, const std::string& architecture, Json& config) {
  Json scaling = Json::object();
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(architecture + ".")) continue;
    const std::string_view own = std::string_view(key).substr(architecture.size() + 1);
    const bool is_known = copy_if_listed(kSizes, own, value, config) ||
                          copy_if_listed(kRopeScaling, own, value, scaling) ||
                          std::find(std::begin(kHarmless), std::end(kHarmless), own) !=
                              std::end(kHarmless);
    if (!is_known) throw Error(fmt::format("{}: '{}' is not supported", file.name(), key));
  }
  if (scaling.contains("rope_type") && scaling["rope_type"] != "none")
    config["rope_scaling"] = scaling;
  const auto factors = file.tensors().find(kGgufRopeFactors);
  if (factors != file.tensors().end())
    config["rope_scaling"] = scaling_by_factors(file, factors->second);
}

Json token_id(const GgufFile& file, const char* key) {
  const int64_t* id = file.find<int64_t>(key);
  return id != nullptr ? Json(*id) : Json();
}

// All tokens that end a text: of a chat's turn, too.
Json end_tokens(const GgufFile& file) {
  Json ids = Json::array();
  for (const char* key : {"tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    const Json id = token_id(file, key);
    if (!id.is_null()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::string gguf_config_json(const GgufFile& file) {
  const std::string architecture = architecture_of(file);
  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding == file.tensors().end())
    throw Error(file.name() + ": tensor 'token_embd.weight' is missing");
  const bool has_bias = file.tensors().contains("blk.0.attn_output.bias");
  Json config = {{"model_type", architecture},
                 {"architectures", {"GgufForCausalLM"}},
                 {"vocab_size", embedding->second.shape.front()},
                 {"tie_word_embeddings", !file.tensors().contains("output.weight")},
                 {"attention_bias", has_bias},
                 {"mlp_bias", file.tensors().contains("blk.0.ffn_down.bias")},
                 {"eos_token_id", end_tokens(file)},
                 {"bos_token_id", token_id(file, "tokenizer.ggml.bos_token_id")}};
  for (const auto& [name, tensor] : file.tensors())
    if (tensor.type->block_values > 1) config["quantization_config"] = {{"quant_method", "gguf"}};
  copy_architecture(file, architecture, config);
  return config.dump();
}

std::string gguf_generation_config_json(const GgufFile& file) {
  constexpr KeyPair kSampling[] = {{"top_k", "top_k"},
                                   {"top_p", "top_p"},
                                   {"min_p", "min_p"},
                                   {"temp", "temperature"},
                                   {"penalty_repeat", "repetition_penalty"}};
  constexpr std::string_view kPrefix = "general.sampling.";
  Json config = Json::object();
  for (const auto& [key, value] : file.metadata())
    if (key.starts_with(kPrefix)) copy_if_listed(kSampling, key.substr(kPrefix.size()), value, config);
  return config.dump();
}

std::optional<std::string> gguf_document(const GgufFile& file, const std::string& name) {
  if (name == "config.json") return gguf_config_json(file);
  if (name == "generation_config.json") return gguf_generation_config_json(file);
  if (name == "tokenizer.json") return gguf_tokenizer_json(file);
  if (name == "tokenizer_config.json") return gguf_tokenizer_config_json(file);
  return std::nullopt;
}

}  // namespace outrider
