// Gemma 4, alone or the text part of models that see and hear.
#include <charconv>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/families/readers.h"
#include "models/families/shared.h"
#include "models/families/table.h"

namespace outrider {
namespace {

// What transformers writes since 5.20 in place of the keys of full layers: what differs, by layer.
void read_layers(const ConfigFields& layers, ModelConfig& config) {
  const std::pair<int32_t, int32_t> otherwise = {config.head_dim, config.n_kv_heads};
  std::vector<std::pair<int32_t, int32_t>> heads(static_cast<size_t>(config.n_layers), otherwise);
  for (const std::string& key : layers.unknown_keys()) {
    size_t layer = heads.size();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (*end != 0 || error != std::errc() || layer >= heads.size()) {
      layers.fail("holds something other than layers of the model");
    }
    const ConfigFields own = *layers.object(key.c_str());
    heads[layer] = {own.integer_or("head_dim", {2, kMaxHeadDim}, config.head_dim),
                    own.integer_or("num_key_value_heads", {1, config.n_heads}, config.n_kv_heads)};
    if (!own.unknown_keys().empty()) own.fail(own.unknown_keys()[0] + " is not supported");
  }
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const auto& of_kind = config.window_of(layer) == 0 ? heads.back() : otherwise;
    if (heads[static_cast<size_t>(layer)] == of_kind) continue;
    layers.fail("has layers of one kind that differ, which is not supported");
  }
  std::tie(config.full_head_dim, config.full_kv_heads) = heads.back();
}

// Of full layers; layers without a window are known by now.
void read_heads(const ConfigFields& fields, ModelConfig& config) {
  config.full_k_is_v = fields.flag_or("attention_k_eq_v", false);
  config.full_head_dim = fields.integer_or("global_head_dim", {2, kMaxHeadDim}, 512);
  const auto kv_heads = fields.optional_int("num_global_key_value_heads", {1, config.n_heads});
  if (config.full_k_is_v) config.full_kv_heads = static_cast<int32_t>(kv_heads.value_or(0));
  if (const auto layers = fields.object("per_layer_config")) read_layers(*layers, config);
  if (config.full_head_dim % 2 != 0) fields.fail("heads of full layers must be of even length");
  if (config.full_kv_heads > 0 && config.n_heads % config.full_kv_heads != 0) {
    fields.fail("the KV heads of full layers do not divide \"num_attention_heads\"");
  }
}

// Layers without the window turn heads of their own size, and only the first of their pairs.
void read_ropes(const ConfigFields& fields, ModelConfig& config) {
  const auto ropes = fields.object("rope_parameters");
  if (ropes && !ropes->is_set("full_attention")) ropes->fail("\"full_attention\" is missing");
  ModelConfig full = config.of_layer(config.n_layers - 1);
  read_rope(fields, full, {.default_theta = 1e6, .of_kinds = true});
  config.rope = full.rope;
  config.local_rope = full.local_rope;
  config.local_rope->rotary_dim = config.head_dim;
  if (ropes) return;
  config.rope.scaling = RopeScaling::kProportional;
  config.rope.turning_share = 0.25;
}

void read_shared_layers(const ConfigFields& fields, ModelConfig& config) {
  config.kv_shared_layers = fields.integer_or("num_kv_shared_layers", {0, config.n_layers - 1}, 0);
  config.double_wide_mlp = fields.flag_or("use_double_wide_mlp", false);
  for (int32_t layer = config.n_kv_layers(); layer < config.n_layers; ++layer) {
    if (config.window_of(config.kv_layer_of(layer)) == config.window_of(layer)) continue;
    fields.fail("\"num_kv_shared_layers\" leaves a kind of layers without keys and values");
  }
}

void read_per_layer_inputs(const ConfigFields& fields, ModelConfig& config) {
  if (fields.has("hidden_size_per_layer_input") && !fields.is_set("hidden_size_per_layer_input")) {
    fields.know({"vocab_size_per_layer_input"});
    return;
  }
  config.per_layer_dim = fields.integer_or("hidden_size_per_layer_input", {0, kMaxFfn}, 256);
  config.per_layer_scale = embedding_scale_of(config, config.per_layer_dim);
  const int32_t vocab = fields.integer_or("vocab_size_per_layer_input", {0, kMaxVocab}, 262'144);
  if (config.per_layer_dim > 0 && vocab != config.vocab_size) {
    fields.fail("vocab_size_per_layer_input other than vocab_size is not supported");
  }
}

void read(const ConfigFields& fields, ModelConfig& config) {
  read_gemma(fields,
             config,
             {.activation = "hidden_activation",
              .default_heads = 8,
              .default_kv_heads = 4,
              .default_head_dim = 256,
              .default_vocab = 262'144,
              .default_positions = 131'072,
              .default_activation = "gelu_pytorch_tanh",
              .tied = true});
  config.attention_scale = 1.0f;
  config.qk_norm = true;
  config.v_norm = true;
  config.layer_scalar = true;
  if (fields.is_set("final_logit_softcapping")) {
    config.logit_softcap =
        static_cast<float>(fields.number_or("final_logit_softcapping", 1e-3, 1e6, 0.0));
  }
  // "vision" lets parts of pictures see each other, of which there are none.
  if (fields.text_or("use_bidirectional_attention", "vision") != "vision") {
    fields.fail("use_bidirectional_attention \"all\" is not supported");
  }
  read_windows(fields, config, 512, 6);
  config.full_layers.back() = true;  // as Hugging Face has it, whatever the file says
  read_heads(fields, config);
  read_shared_layers(fields, config);
  read_ropes(fields, config);
  read_per_layer_inputs(fields, config);
  fields.know({"num_experts", "top_k_experts", "moe_intermediate_size"});
  if (!fields.flag_or("enable_moe_block", false)) return;
  read_experts(fields, config, {.per_row = "top_k_experts"});
  config.experts.normalised = true;
  config.experts.beside_mlp = true;
  config.names.router = "router.proj";
  config.names.experts_gate_up = "experts.gate_up_proj";
  config.names.experts_down = "experts.down_proj";
}

}  // namespace

const Family kGemma4Text = {"gemma4_text",
                            "as gemma3_text with plain norms; full layers' heads, KV heads and "
                            "rope; shared KV; per-layer inputs; experts",
                            read};

}  // namespace outrider
