// See model_config_writer.h.
#include "models/checkpoint/model_config_writer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

const char* dtype_name(ops::DType dtype) {
  switch (dtype) {
    case ops::DType::kF32:
      return "float32";
    case ops::DType::kF16:
      return "float16";
    default:
      return "bfloat16";
  }
}

// 1e-05, not the double next to the float of 1e-05.
double shortest(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

Json rope_scaling_of(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  if (rope.scaling != RopeScaling::kLlama3) {
    throw Error("only plain and llama3 rope can be written to a config.json");
  }
  return Json{{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_max_positions}};
}

// qwen3_moe's keys.
void add_experts(const ModelConfig& config, Json& json) {
  const ExpertsConfig& experts = config.experts;
  json["num_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_row;
  json["moe_intermediate_size"] = experts.ffn_dim;
  json["norm_topk_prob"] = experts.normalised;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (int32_t l = 0; l < config.n_layers; ++l) {
    if (!config.has_experts(l)) json["mlp_only_layers"].push_back(l);
  }
}

void add_family(const ModelConfig& config, Json& json) {
  if (config.model_type == "llama") {
    json["architectures"] = {"LlamaForCausalLM"};
    json["attention_bias"] = config.attention_bias;
    json["mlp_bias"] = config.mlp_bias;
    json["pretraining_tp"] = 1;
  } else if (config.model_type == "qwen3" || config.model_type == "qwen3_moe") {
    const bool has_experts = config.experts.count > 0;
    json["architectures"] = {has_experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM"};
    json["attention_bias"] = config.attention_bias;
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["max_window_layers"] = config.n_layers;
    if (has_experts) add_experts(config, json);
  } else {
    throw Error(fmt::format("model_type \"{}\" cannot be written", config.model_type));
  }
  if (config.sliding_window != 0) throw Error("a sliding window cannot be written");
}

Json end_tokens_of(const ModelConfig& config) {
  if (config.eos_token_ids.size() == 1) return config.eos_token_ids[0];
  return config.eos_token_ids;
}

}  // namespace

std::string config_json_of(const ModelConfig& config) {
  Json json;
  json["architectures"] = nullptr;  // first in the file; its value comes with the family
  json["model_type"] = config.model_type;
  add_family(config, json);
  json["hidden_size"] = config.hidden_dim;
  json["intermediate_size"] = config.ffn_dim;
  json["num_hidden_layers"] = config.n_layers;
  json["num_attention_heads"] = config.n_heads;
  json["num_key_value_heads"] = config.n_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_positions;
  json["rms_norm_eps"] = shortest(config.norm_eps);
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = rope_scaling_of(config.rope);
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = config.tied_head;
  json["attention_dropout"] = 0.0;
  json["initializer_range"] = 0.02;
  json["use_cache"] = true;
  json["torch_dtype"] = dtype_name(config.dtype);
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = end_tokens_of(config);
  return json.dump(2) + "\n";
}

std::string generation_config_json_of(const ModelConfig& config) {
  Json json = Json::object();
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (!config.eos_token_ids.empty()) json["eos_token_id"] = end_tokens_of(config);
  return json.dump(2) + "\n";
}

}  // namespace outrider
