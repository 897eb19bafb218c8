// config.json and generation_config.json of a GGUF file; see gguf_documents.h. The keys are those
// of gguf-py's constants.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "models/gguf/gguf_documents.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

struct KeyPair {
  std::string_view gguf;    // after "ARCHITECTURE."
  std::string_view config;  // empty: it says nothing new, or is asked for by name
};

constexpr KeyPair kCommonKeys[] = {
    {"block_count", "num_hidden_layers"},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.layer_norm_epsilon", "layer_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"logit_scale", "logit_scale"},
    {"rope.freq_base", "rope_theta"},
    {"rope.freq_base_swa", "rope_local_base_freq"},
    {"use_parallel_residual", "use_parallel_residual"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_group_count", "n_group"},
    {"expert_group_used_count", "topk_group"},
    {"expert_shared_count", "n_shared_experts"},
    {"expert_weights_norm", "norm_topk_prob"},
    {"expert_weights_scale", "routed_scaling_factor"},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"nextn_predict_layers", "num_nextn_predict_layers"},
};
constexpr KeyPair kRopeScaling[] = {
    {"rope.scaling.type", "rope_type"},
    {"rope.scaling.factor", "factor"},
    {"rope.scaling.attn_factor", "attention_factor"},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
    {"rope.scaling.yarn_attn_factor", "attention_factor"},
    {"rope.scaling.yarn_beta_fast", "beta_fast"},
    {"rope.scaling.yarn_beta_slow", "beta_slow"},
};
// What says nothing new, or is asked for by name.
constexpr std::string_view kOtherKeys[] = {"vocab_size",
                                           "attention.value_length",
                                           "attention.sliding_window_pattern",
                                           "expert_gating_func",
                                           "rope.dimension_count",
                                           "rope.scaling.finetuned",
                                           "tensor_data_layout"};

struct File {
  const GgufFile& gguf;
  std::string architecture;

  bool has(const char* tensor) const { return gguf.tensors().contains(tensor); }
  bool has_key(std::string_view key) const {
    return gguf.metadata().contains(fmt::format("{}.{}", architecture, key));
  }
  template <typename T>
  T value_or(std::string_view key, T otherwise) const {
    const T* value = gguf.find<T>(fmt::format("{}.{}", architecture, key));
    return value != nullptr ? *value : otherwise;
  }
  // Within what can be computed with; the family's reader sees the value itself.
  int64_t size(std::string_view key) const {
    return std::clamp<int64_t>(value_or<int64_t>(key, 0), 0, int64_t{1} << 40);
  }
  // Of heads whose size the file does not say, too.
  int64_t head_dim() const {
    if (has_key("attention.key_length")) return size("attention.key_length");
    const int64_t heads = size("attention.head_count");
    return heads > 0 ? size("embedding_length") / heads : 0;
  }
};

// What a family's config.json says and the metadata do not: llama.cpp has it in its code.
// The root of hidden_size is rounded to the type of the weights, which was this before the
// conversion. Only the largest models divide scores by something other than the root of head_dim.
void complete_gemma(const File& file, Json& config) {
  const int64_t layers = file.size("block_count");
  const int64_t heads = file.size("attention.head_count");
  const bool is_27b = layers == (file.architecture == "gemma2" ? 46 : 62) && heads > 0;
  config["torch_dtype"] = "bfloat16";
  config["query_pre_attn_scalar"] =
      is_27b ? file.size("embedding_length") / heads : file.head_dim();
}
void complete_gemma3(const File& file, Json& config) {
  complete_gemma(file, config);
  if (file.size("attention.sliding_window") == 0) config["sliding_window_pattern"] = 1;
}
void complete_phi3(const File& file, Json& config) {
  const int64_t original = file.size("rope.scaling.original_context_length");
  if (original > 0) config["original_max_position_embeddings"] = original;
}
void complete_qwen3_moe(const File&, Json& config) { config["norm_topk_prob"] = true; }
void complete_gpt_oss(const File&, Json& config) {
  if (config.contains("rope_scaling")) config["rope_scaling"]["truncate"] = false;
}
// Both are in the file as one form, of which this is the general one.
void complete_falcon(const File& file, Json& config) {
  config["new_decoder_architecture"] = true;
  config["num_ln_in_parallel_attn"] = file.has("blk.0.attn_norm_2.weight") ? 2 : 1;
}
void complete_stablelm(const File& file, Json& config) {
  config["qk_layernorm"] = file.has("blk.0.attn_q_norm.weight");
}
// Of all that were published.
void complete_starcoder2(const File&, Json& config) {
  if (!config.contains("sliding_window")) config["sliding_window"] = 4096;
}
void complete_granite(const File& file, Json&) {
  if (file.value_or<bool>("rope.scaling.finetuned", true)) return;
  throw Error(
      fmt::format("{}: '{}.rope.scaling.finetuned' false, a model without rope, is not supported",
                  file.gguf.name(),
                  file.architecture));
}
void complete_glm4_moe(const File& file, Json& config) {
  config["use_qk_norm"] = file.has("blk.0.attn_q_norm.weight");
}
void complete_gpt_neox(const File&, Json& config) {
  if (!config.contains("partial_rotary_factor")) return;
  config["rotary_pct"] = config["partial_rotary_factor"];
  config.erase("partial_rotary_factor");
}
// The file's heads are those of the latent. Its multiplier is a tenth of what it is called after.
void complete_deepseek(const File& file, Json& config) {
  config["qk_nope_head_dim"] =
      file.size("attention.key_length_mla") - file.size("rope.dimension_count");
  if (!config.contains("q_lora_rank")) config["q_lora_rank"] = nullptr;
  const double multiplier = file.value_or<double>("rope.scaling.yarn_log_multiplier", 0.0);
  if (multiplier == 0.0 || !config.contains("rope_scaling")) return;
  const double scale = std::round(multiplier * 1e7) / 1e6;
  config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"] = scale;
}
void complete_ministral3(const File& file, Json& config) {
  if (!config.contains("rope_scaling")) return;
  Json& rope = config["rope_parameters"] = config["rope_scaling"];
  config.erase("rope_scaling");
  const double scale = file.value_or<double>("rope.scaling.yarn_log_multiplier", 0.0);
  if (scale != 0.0) rope["mscale"] = rope["mscale_all_dim"] = scale;
  rope["llama_4_scaling_beta"] = file.value_or<double>("attention.temperature_scale", 0.0);
}

struct Architecture {
  std::string_view name;           // general.architecture
  const char* model_type;          // config.json's
  std::string_view if_key = {};    // a key that tells it from another row of the name
  KeyPair keys[9] = {};            // in place of the common ones
  const char* qkv_bias = nullptr;  // config.json's flag; null: the family has none
  bool sigmoid_router = false;
  void (*complete)(const File&, Json&) = nullptr;
};

constexpr const char* kBias = "attention_bias";
constexpr KeyPair kLocalExperts = {"expert_count", "num_local_experts"};
constexpr KeyPair kRoutedExperts = {"expert_count", "n_routed_experts"};
constexpr KeyPair kExperts = {"expert_count", "num_experts"};
constexpr Architecture kArchitectures[] = {
    {.name = "llama", .model_type = "mixtral", .if_key = "expert_count", .keys = {kLocalExperts}},
    {.name = "llama", .model_type = "llama", .qkv_bias = kBias},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3", .qkv_bias = kBias},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .keys = {kExperts, {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}},
     .qkv_bias = "qkv_bias"},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .keys = {kExperts},
     .qkv_bias = kBias,
     .complete = complete_qwen3_moe},
    {.name = "gemma2", .model_type = "gemma2", .qkv_bias = kBias, .complete = complete_gemma},
    {.name = "gemma3", .model_type = "gemma3_text", .qkv_bias = kBias, .complete = complete_gemma3},
    {.name = "phi3", .model_type = "phi3", .complete = complete_phi3},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .keys = {kLocalExperts, {"expert_feed_forward_length", "intermediate_size"}},
     .qkv_bias = kBias,
     .complete = complete_gpt_oss},
    {.name = "glm4", .model_type = "glm4", .qkv_bias = kBias},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .keys = {kRoutedExperts},
     .qkv_bias = kBias,
     .sigmoid_router = true,
     .complete = complete_glm4_moe},
    {.name = "olmo2",
     .model_type = "olmo3",
     .if_key = "attention.sliding_window",
     .qkv_bias = kBias},
    {.name = "olmo2", .model_type = "olmo2", .qkv_bias = kBias},
    {.name = "granite",
     .model_type = "granite",
     .keys = {{"attention.scale", "attention_multiplier"},
              {"embedding_scale", "embedding_multiplier"},
              {"residual_scale", "residual_multiplier"},
              {"logit_scale", "logits_scaling"}},
     .qkv_bias = kBias,
     .complete = complete_granite},
    {.name = "granitemoe",
     .model_type = "granitemoe",
     .keys = {kLocalExperts,
              {"attention.scale", "attention_multiplier"},
              {"embedding_scale", "embedding_multiplier"},
              {"residual_scale", "residual_multiplier"},
              {"logit_scale", "logits_scaling"}},
     .qkv_bias = kBias,
     .complete = complete_granite},
    {.name = "smollm3", .model_type = "smollm3", .qkv_bias = kBias},
    {.name = "cohere2", .model_type = "cohere2", .qkv_bias = kBias},
    {.name = "starcoder2",
     .model_type = "starcoder2",
     .keys = {{"attention.layer_norm_epsilon", "norm_epsilon"}},
     .qkv_bias = "use_bias",
     .complete = complete_starcoder2},
    {.name = "stablelm",
     .model_type = "stablelm",
     .qkv_bias = "use_qkv_bias",
     .complete = complete_stablelm},
    {.name = "falcon",
     .model_type = "falcon",
     .keys = {{"attention.head_count_kv", "num_kv_heads"},
              {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
              {"feed_forward_length", "ffn_hidden_size"}},
     .qkv_bias = "bias",
     .complete = complete_falcon},
    {.name = "gpt2",
     .model_type = "gpt2",
     .keys = {{"block_count", "n_layer"},
              {"context_length", "n_positions"},
              {"embedding_length", "n_embd"},
              {"feed_forward_length", "n_inner"},
              {"attention.head_count", "n_head"},
              {"attention.layer_norm_epsilon", "layer_norm_epsilon"}}},
    {.name = "gptneox", .model_type = "gpt_neox", .complete = complete_gpt_neox},
    {.name = "mistral3",
     .model_type = "ministral3",
     .keys = {{"attention.temperature_scale", ""}, {"rope.scaling.yarn_log_multiplier", ""}},
     .complete = complete_ministral3},
    {.name = "deepseek2",
     .model_type = "deepseek_v3",
     .keys = {kRoutedExperts,
              {"attention.head_count_kv", ""},
              {"attention.key_length", ""},
              {"attention.key_length_mla", "qk_head_dim"},
              {"attention.kv_lora_rank", "kv_lora_rank"},
              {"attention.q_lora_rank", "q_lora_rank"},
              {"attention.value_length_mla", "v_head_dim"},
              {"rope.dimension_count", "qk_rope_head_dim"},
              {"rope.scaling.yarn_log_multiplier", ""}},
     .sigmoid_router = true,
     .complete = complete_deepseek},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .keys = {kLocalExperts, {"expert_feed_forward_length", "intermediate_size"}},
     .sigmoid_router = true},
};

Json json_of(const GgufValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

template <typename Pairs>
bool copy_if_listed(const Pairs& pairs, std::string_view key, const GgufValue& value, Json& to) {
  for (const KeyPair& pair : pairs) {
    if (pair.gguf.empty() || pair.gguf != key) continue;
    if (!pair.config.empty()) to[std::string(pair.config)] = json_of(value);
    return true;
  }
  return false;
}

const Architecture& architecture_of(const File& file) {
  std::vector<std::string_view> known;
  for (const Architecture& row : kArchitectures) {
    const bool fits = row.if_key.empty() || file.has_key(row.if_key);
    if (row.name == file.architecture && fits) return row;
    if (known.empty() || known.back() != row.name) known.push_back(row.name);
  }
  throw Error(fmt::format("{}: architecture '{}' is not supported in GGUF; known are {}",
                          file.gguf.name(),
                          file.architecture,
                          fmt::join(known, ", ")));
}

std::vector<float> rope_factors(const File& file, const char* name) {
  constexpr uint64_t kMostBytes = 4096;
  const auto found = file.gguf.tensors().find(name);
  if (found == file.gguf.tensors().end())
    throw Error(fmt::format("{}: tensor '{}' is missing", file.gguf.name(), name));
  const GgufTensor& tensor = found->second;
  if (tensor.type->id != kGgufF32 || tensor.num_bytes > kMostBytes)
    throw Error(fmt::format("{}: tensor '{}' is no short list of F32", file.gguf.name(), name));
  std::vector<float> factors(tensor.num_bytes / sizeof(float));
  tensor.file->read_at(tensor.begin, factors.data(), tensor.num_bytes);
  return factors;
}

// scaling: what the metadata say of it.
void set_rope_scaling(const File& file, Json scaling, Json& config) {
  if (file.has(kGgufRopeFactors)) {  // Llama 3's scaling
    const auto factors = rope_factors(file, kGgufRopeFactors);
    scaling = {{"rope_type", "longrope"},
               {"short_factor", factors},
               {"long_factor", factors},
               {"factor", 1.0},
               {"attention_factor", 1.0}};
  } else if (file.has(kGgufRopeShort) || file.has(kGgufRopeLong)) {
    scaling["rope_type"] = "longrope";
    scaling["short_factor"] = rope_factors(file, kGgufRopeShort);
    scaling["long_factor"] = rope_factors(file, kGgufRopeLong);
  } else if (file.value_or<double>("rope.scaling.attn_factor", 1.0) != 1.0) {
    throw Error(
        fmt::format("{}: '{}.rope.scaling.attn_factor' without rope factors is not supported",
                    file.gguf.name(),
                    file.architecture));
  }
  if (scaling.contains("rope_type") && scaling["rope_type"] != "none")
    config["rope_scaling"] = scaling;
}

// Which layers are windowed: of each a flag, or that all but every n-th are.
void set_windows(const File& file, Json& config) {
  if (file.has_key("attention.sliding_window") && file.size("attention.sliding_window") == 0)
    config.erase("sliding_window");
  const std::string key = file.architecture + ".attention.sliding_window_pattern";
  const auto found = file.gguf.metadata().find(key);
  if (found == file.gguf.metadata().end()) return;
  const auto* flags = std::get_if<std::vector<double>>(&found->second);
  if (flags == nullptr) {
    config["sliding_window_pattern"] = json_of(found->second);
    return;
  }
  Json types = Json::array();
  for (const double flag : *flags)
    types.push_back(flag != 0.0 ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
}

// A key of the architecture that nobody reads may change the numbers.
void copy_keys(const File& file, const Architecture& row, Json& config) {
  Json scaling = Json::object();
  for (const auto& [key, value] : file.gguf.metadata()) {
    if (!key.starts_with(file.architecture + ".")) continue;
    const std::string_view own = std::string_view(key).substr(file.architecture.size() + 1);
    const bool is_known =
        copy_if_listed(row.keys, own, value, config) ||
        copy_if_listed(kCommonKeys, own, value, config) ||
        copy_if_listed(kRopeScaling, own, value, scaling) ||
        std::find(std::begin(kOtherKeys), std::end(kOtherKeys), own) != std::end(kOtherKeys);
    if (!is_known) throw Error(fmt::format("{}: '{}' is not supported", file.gguf.name(), key));
  }
  const int64_t router = row.sigmoid_router ? 2 : 1;
  if (const int64_t given = file.value_or("expert_gating_func", router); given != router)
    throw Error(fmt::format("{}: '{}.expert_gating_func' {} is not supported",
                            file.gguf.name(),
                            file.architecture,
                            given));
  set_rope_scaling(file, scaling, config);
  set_windows(file, config);
  // Layers that predict further tokens are counted and not loaded.
  if (const int64_t others = file.size("nextn_predict_layers"); others > 0)
    config["num_hidden_layers"] = file.size("block_count") - others;
  if (file.has_key("attention.kv_lora_rank")) return;
  const int64_t head_dim = file.head_dim();
  const int64_t turning = file.value_or("rope.dimension_count", head_dim);
  if (head_dim > 0) config["head_dim"] = head_dim;
  // Rounding down gives it back.
  if (turning > 0 && turning < head_dim)
    config["partial_rotary_factor"] =
        (static_cast<double>(turning) + 0.5) / static_cast<double>(head_dim);
}

Json token_id(const GgufFile& file, const char* key) {
  const int64_t* id = file.find<int64_t>(key);
  return id != nullptr ? Json(*id) : Json();
}

// Most files name one end token. Those that end a chat's turn are known by their texts, as
// llama.cpp knows them (llama-vocab.cpp, special_eog_ids).
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<end_of_utterance>",
                                          "<｜end▁of▁sentence｜>"};

void add_end_texts(const std::vector<std::string>& tokens, Json* ids) {
  std::map<std::string_view, size_t> found;
  for (size_t id = 0; id < tokens.size(); ++id)
    if (std::ranges::find(kEndTexts, tokens[id]) != std::end(kEndTexts)) found[tokens[id]] = id;
  // In harmony <|end|> ends a message of an answer of several.
  if (found.contains("<|return|>") && found.contains("<|call|>")) found.erase("<|end|>");
  for (const auto& [text, id] : found)
    if (std::ranges::find(*ids, Json(id)) == ids->end()) ids->push_back(id);
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
  if (const auto* tokens = file.find<std::vector<std::string>>("tokenizer.ggml.tokens"))
    add_end_texts(*tokens, &ids);
  return ids;
}

std::string gguf_config_json(const GgufFile& gguf) {
  const std::string* name = gguf.find<std::string>("general.architecture");
  if (name == nullptr) throw Error(gguf.name() + ": 'general.architecture' is missing");
  const File file{gguf, *name};
  const Architecture& row = architecture_of(file);
  const auto embedding = gguf.tensors().find("token_embd.weight");
  if (embedding == gguf.tensors().end())
    throw Error(gguf.name() + ": tensor 'token_embd.weight' is missing");
  Json config = {{"model_type", row.model_type},
                 {"architectures", {"GgufForCausalLM"}},
                 {"vocab_size", embedding->second.shape.front()},
                 {"tie_word_embeddings", !file.has("output.weight")},
                 {"eos_token_id", end_tokens(gguf)},
                 {"bos_token_id", token_id(gguf, "tokenizer.ggml.bos_token_id")}};
  if (row.qkv_bias != nullptr)
    config[row.qkv_bias] = file.has("blk.0.attn_q.bias") || file.has("blk.0.attn_qkv.bias");
  // Other flags of biases are of those of the MLP, too.
  if (row.qkv_bias == kBias) config["mlp_bias"] = file.has("blk.0.ffn_down.bias");
  for (const auto& [tensor_name, tensor] : gguf.tensors())
    if (tensor.type->block_values > 1) config["quantization_config"] = {{"quant_method", "gguf"}};
  // As a folder's config.json names the type of its weights; of blocks it stays float32.
  if (embedding->second.type->id == kGgufBF16) config["torch_dtype"] = "bfloat16";
  if (embedding->second.type->id == kGgufF16) config["torch_dtype"] = "float16";
  copy_keys(file, row, config);
  if (row.complete != nullptr) row.complete(file, config);
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
    if (key.starts_with(kPrefix))
      copy_if_listed(kSampling, key.substr(kPrefix.size()), value, config);
  return config.dump();
}

}  // namespace

std::optional<std::string> gguf_document(const GgufFile& file, const std::string& name) {
  if (name == "config.json") return gguf_config_json(file);
  if (name == "generation_config.json") return gguf_generation_config_json(file);
  if (name == "tokenizer.json") return gguf_tokenizer_json(file);
  if (name == "tokenizer_config.json") return gguf_tokenizer_config_json(file);
  return std::nullopt;
}

}  // namespace outrider
