// Sizes, activation and windows; see readers.h. Everything is range-checked here, so later code may
// multiply these sizes without fear.
#include "models/families/readers.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/ops/ops.h"

namespace outrider {
namespace {

constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxDim = 65'536;
constexpr int64_t kMaxHeads = 4096;

int32_t size_of(const ConfigFields& fields, const char* key, int64_t most, int32_t otherwise) {
  if (otherwise == 0) return fields.integer(key, {1, most});
  return fields.integer_or(key, {1, most}, otherwise);
}

void read_head_dim(const ConfigFields& fields, ModelConfig& config, int32_t otherwise) {
  const auto head_dim = fields.optional_int("head_dim", {2, kMaxHeadDim});
  if (!head_dim && otherwise > 0) {
    config.head_dim = otherwise;
  } else if (!head_dim && config.hidden_dim % config.n_heads != 0) {
    fields.fail(fmt::format(
        "num_attention_heads {} does not divide hidden_size {} and there is no head_dim",
        config.n_heads,
        config.hidden_dim));
  } else {
    config.head_dim = static_cast<int32_t>(head_dim.value_or(config.hidden_dim / config.n_heads));
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    fields.fail(
        fmt::format("a head dimension of {} is not supported; it must be even and at most {}",
                    config.head_dim,
                    kMaxHeadDim));
  }
}

struct NamedActivation {
  const char* name;
  ops::ActivationKind kind;
};
constexpr NamedActivation kActivations[] = {{"silu", ops::ActivationKind::kSilu},
                                            {"swish", ops::ActivationKind::kSilu},
                                            {"gelu", ops::ActivationKind::kGelu},
                                            {"gelu_new", ops::ActivationKind::kGeluTanh},
                                            {"gelu_fast", ops::ActivationKind::kGeluTanh},
                                            {"gelu_pytorch_tanh", ops::ActivationKind::kGeluTanh},
                                            {"relu", ops::ActivationKind::kRelu}};

void read_activation(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys) {
  const std::string name = fields.text_or(keys.activation, keys.default_activation);
  for (const NamedActivation& known : kActivations) {
    if (name != known.name) continue;
    config.activation = known.kind;
    return;
  }
  fields.fail(
      fmt::format("{} \"{}\" is not supported; known are silu, gelu, gelu_pytorch_tanh "
                  "and relu",
                  keys.activation,
                  name));
}

}  // namespace

void read_decoder(const ConfigFields& fields, ModelConfig& config, const DecoderKeys& keys) {
  config.n_layers = size_of(fields, keys.layers, kMaxLayers, 0);
  config.hidden_dim = size_of(fields, keys.hidden, kMaxDim, 0);
  config.n_heads = size_of(fields, keys.heads, kMaxHeads, keys.default_heads);
  config.n_kv_heads = size_of(fields,
                              keys.kv_heads,
                              kMaxHeads,
                              keys.default_kv_heads > 0 ? keys.default_kv_heads : config.n_heads);
  config.ffn_dim = size_of(fields, keys.ffn, kMaxFfn, config.ffn_dim);
  config.vocab_size = size_of(fields, "vocab_size", kMaxVocab, keys.default_vocab);
  config.max_positions = size_of(fields, keys.positions, kMaxPositions, keys.default_positions);
  if (config.n_heads % config.n_kv_heads != 0) {
    fields.fail(fmt::format("{} {} does not divide {} {}",
                            keys.kv_heads,
                            config.n_kv_heads,
                            keys.heads,
                            config.n_heads));
  }
  read_head_dim(fields, config, keys.default_head_dim);
  config.norm_eps =
      static_cast<float>(fields.number_or(keys.norm_eps, 1e-12, 0.1, keys.default_eps));
  config.tied_head = fields.flag_or("tie_word_embeddings", keys.tied);
  read_activation(fields, config, keys);
}

std::optional<std::vector<bool>> windowed_layers(const ConfigFields& fields,
                                                 const ModelConfig& config) {
  const auto types = fields.texts("layer_types");
  if (!types) return std::nullopt;
  if (types->size() != static_cast<size_t>(config.n_layers)) {
    fields.fail("\"layer_types\" must list every layer");
  }
  std::vector<bool> windowed;
  for (const std::string& type : *types) {
    windowed.push_back(type == "sliding_attention");
    if (!windowed.back() && type != "full_attention") {
      fields.fail(
          "\"layer_types\" holds something other than full_attention and sliding_attention");
    }
  }
  return windowed;
}

void read_windows(const ConfigFields& fields,
                  ModelConfig& config,
                  int32_t default_window,
                  int32_t default_pattern) {
  const int32_t pattern =
      fields.integer_or("sliding_window_pattern", {1, 1'000'000}, default_pattern);
  const auto windowed = windowed_layers(fields, config);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    config.full_layers.push_back(windowed ? !(*windowed)[static_cast<size_t>(layer)]
                                          : (layer + 1) % pattern == 0);
  }
  config.sliding_window = fields.integer_or("sliding_window", {1, kMaxPositions}, default_window);
  const auto& full = config.full_layers;
  if (std::find(full.begin(), full.end(), false) == full.end()) config.sliding_window = 0;
}

void read_experts(const ConfigFields& fields, ModelConfig& config, const ExpertKeys& keys) {
  ExpertsConfig& experts = config.experts;
  const bool has_other = keys.other_count != nullptr && !fields.is_set(keys.count);
  const char* count = has_other && fields.is_set(keys.other_count) ? keys.other_count : keys.count;
  experts.count = size_of(fields, count, ops::kMaxExperts, keys.default_count);
  experts.per_row = size_of(fields, keys.per_row, experts.count, keys.default_per_row);
  if (experts.per_row > experts.count) {  // by default
    fields.fail(fmt::format("\"{}\" must be at most {}", keys.per_row, experts.count));
  }
  experts.ffn_dim = size_of(fields, keys.ffn, kMaxFfn, keys.default_ffn);
  fields.know({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"});
}

void read_router(const ConfigFields& fields, ModelConfig& config, const RouterDefaults& defaults) {
  ExpertsConfig& experts = config.experts;
  experts.normalised = fields.flag_or("norm_topk_prob", true);
  experts.scale =
      static_cast<float>(fields.number_or("routed_scaling_factor", 1e-6, 1e6, defaults.scale));
  experts.groups = fields.integer_or("n_group", {1, experts.count}, defaults.groups);
  experts.chosen_groups =
      fields.integer_or("topk_group", {1, experts.groups}, defaults.chosen_groups);
  if (experts.groups == 1) return;
  const int32_t size = experts.count / experts.groups;
  if (size * experts.groups != experts.count || size < 2) {
    fields.fail("\"n_group\" does not cut the experts into groups of two or more");
  }
  if (experts.chosen_groups * size < experts.per_row) {
    fields.fail("\"topk_group\" groups hold fewer experts than \"num_experts_per_tok\"");
  }
}

void refuse_unless(const ConfigFields& fields, const char* key, bool setting) {
  if (fields.flag_or(key, setting) != setting) {
    fields.fail(fmt::format("{} {} is not supported", key, !setting));
  }
}

}  // namespace outrider
