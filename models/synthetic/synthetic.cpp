// Shapes and weights out of nothing; see synthetic.h.
#include "models/synthetic/synthetic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>
#include <vector>

#include "models/checkpoint/weight_names.h"
#include "models/forward/transformer.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

uint64_t fnv1a64(const std::string& text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

class SyntheticSource : public TensorSource {
 public:
  SyntheticSource(const ModelConfig& config, const SyntheticRecipe& recipe)
      : config_(config), recipe_(recipe) {}

  // Whatever the config asks for is there.
  ops::DType expect(const std::string&, const std::vector<int64_t>&) const override {
    return recipe_.dtype;
  }

  void read(const TensorPart& part, std::byte* out) const override {
    const uint64_t key = mix64(fnv1a64(part.name) + recipe_.seed);
    const double sigma = sigma_of(part.name);
    const bool is_norm = part.name.find("norm") != std::string::npos;
    const bool is_head = part.name == kHeadName;
    std::vector<float> row(static_cast<size_t>(part.columns.size()));
    for (int64_t r = part.rows.begin; r < part.rows.end; ++r) {
      if (is_norm) {
        std::fill(row.begin(), row.end(), 1.0f);
      } else if (is_head && r < recipe_.num_silent_ids) {
        std::fill(row.begin(), row.end(), 0.0f);
      } else {
        draw(key, r * part.n_columns + part.columns.begin, sigma, row);
      }
      out = narrow(row, recipe_.dtype, out);
    }
  }

 private:
  static void draw(uint64_t key, int64_t first, double sigma, std::vector<float>& row) {
    const double half_width = sigma * std::sqrt(3.0);
    const uint64_t base = key + static_cast<uint64_t>(first) * 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < row.size(); ++i) {
      const uint64_t u = mix64(base + (i + 1) * 0x9E3779B97F4A7C15u) >> 40;
      const double unit =
          (static_cast<double>(static_cast<int64_t>(u)) + 0.5) * 0x1p-24 * 2.0 - 1.0;
      row[i] = static_cast<float>(unit * half_width);
    }
  }

  double sigma_of(const std::string& name) const {
    const double root_hidden = std::sqrt(static_cast<double>(config_.hidden_dim));
    if (name == kEmbeddingName) return config_.tied_head ? 5.0 / root_hidden : 1.0;
    if (name == kHeadName) return 5.0 / root_hidden;
    if (name.ends_with(".bias")) return 0.1;
    const auto has = [&name](const char* part) { return name.find(part) != std::string::npos; };
    if (has("q_proj") || has("k_proj")) return std::sqrt(3.0) / root_hidden;
    if (has("o_proj")) {
      return strength(name) / std::sqrt(static_cast<double>(config_.n_heads * config_.head_dim));
    }
    if (has("down_proj") && has("experts")) {
      const ExpertsConfig& experts = config_.experts;
      return strength(name) * std::sqrt(1.0 * experts.per_row / experts.ffn_dim);
    }
    if (has("down_proj")) return strength(name) / std::sqrt(static_cast<double>(config_.ffn_dim));
    return 1.0 / root_hidden;
  }

  double strength(const std::string& name) const {
    for (int32_t layer = 0; layer < recipe_.num_strong_layers; ++layer) {
      if (name.starts_with(LayerNames(layer).prefix)) return 1.0;
    }
    return recipe_.epsilon;
  }

  const ModelConfig& config_;
  SyntheticRecipe recipe_;
};

struct NamedShape {
  const char* name;
  const char* model_type;
  int32_t hidden_dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
  bool tied_head;
  double rope_theta;
  double rope_factor;  // llama3 scaling; 1 = none
  int32_t max_positions;
  float norm_eps;
  int32_t n_experts = 0, experts_per_row = 0, expert_ffn_dim = 0;
};

// Of a shape with experts: layers without, as several families have them.
constexpr int32_t kDenseLayers = 2;

constexpr NamedShape kShapes[] = {
    {"tinyllama-1.1b", "llama", 2048, 22, 32, 4, 64, 5632, 32'000, false, 1e4, 1, 2048, 1e-5f},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128'256, true, 5e5, 32, 131'072, 1e-5f},
    {"llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14'336, 128'256, false, 5e5, 8, 131'072, 1e-5f},
    {"llama-3.1-70b",
     "llama",
     8192,
     80,
     64,
     8,
     128,
     28'672,
     128'256,
     false,
     5e5,
     8,
     131'072,
     1e-5f},
    {"qwen3-4b", "qwen3", 2560, 36, 32, 8, 128, 9728, 151'936, true, 1e6, 1, 40'960, 1e-6f},
    {"qwen3-30b-a3b",
     "qwen3_moe",
     2048,
     48,
     32,
     4,
     128,
     6144,
     151'936,
     false,
     1e6,
     1,
     40'960,
     1e-6f,
     128,
     8,
     768},
};

ModelConfig config_of(const NamedShape& shape) {
  ModelConfig config;
  config.model_type = shape.model_type;
  config.n_layers = shape.n_layers;
  config.hidden_dim = shape.hidden_dim;
  config.n_heads = shape.n_heads;
  config.n_kv_heads = shape.n_kv_heads;
  config.head_dim = shape.head_dim;
  config.ffn_dim = shape.ffn_dim;
  config.vocab_size = shape.vocab_size;
  config.max_positions = shape.max_positions;
  config.norm_eps = shape.norm_eps;
  config.qk_norm = config.model_type.starts_with("qwen3");
  config.tied_head = shape.tied_head;
  config.rope.theta = shape.rope_theta;
  config.rope.rotary_dim = shape.head_dim;
  config.rope.original_max_positions = shape.max_positions;
  if (shape.rope_factor != 1.0) {
    config.rope.scaling = RopeScaling::kLlama3;
    config.rope.factor = shape.rope_factor;
    config.rope.original_max_positions = 8192;
  }
  if (shape.n_experts > 0) {
    config.experts = {.count = shape.n_experts,
                      .per_row = shape.experts_per_row,
                      .ffn_dim = shape.expert_ffn_dim,
                      .normalised = true};
    for (int32_t l = 0; l < config.n_layers; ++l) {
      config.experts.dense_layers.push_back(l < kDenseLayers);
    }
  }
  return config;
}

}  // namespace

ModelConfig first_layers(ModelConfig config, int32_t n_layers) {
  config.n_layers = n_layers;
  std::vector<bool>& dense = config.experts.dense_layers;
  if (config.experts.count == 0) return config;
  dense.resize(static_cast<size_t>(n_layers));
  if (std::find(dense.begin(), dense.end(), false) != dense.end()) return config;
  config.experts = {};
  config.model_type = "qwen3";
  return config;
}

ModelConfig synthetic_shape(const std::string& name) {
  const size_t at = name.find('@');
  for (const NamedShape& shape : kShapes) {
    if (name.substr(0, at) != shape.name) continue;
    ModelConfig config = config_of(shape);
    if (at == std::string::npos) return config;
    int32_t layers = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + at + 1, end, layers);
    if (parsed.ec != std::errc() || parsed.ptr != end || layers < 1 || layers > config.n_layers) {
      throw Error(fmt::format(
          "\"{}\": after @ comes a number of layers from 1 to {}", name, config.n_layers));
    }
    return first_layers(std::move(config), layers);
  }
  throw Error(fmt::format("\"{}\" is no synthetic shape; known are {}, each also with @LAYERS",
                          name.substr(0, 100),
                          fmt::join(kShapes | std::views::transform(&NamedShape::name), ", ")));
}

std::unique_ptr<TensorSource> make_synthetic_source(const ModelConfig& config,
                                                    const SyntheticRecipe& recipe) {
  return std::make_unique<SyntheticSource>(config, recipe);
}

std::unique_ptr<Weights> synthetic_weights(const ModelConfig& config,
                                           const ModelShard& shard,
                                           const SyntheticRecipe& recipe,
                                           const ops::ThreadPlan& threads) {
  return build_weights(config, shard, SyntheticSource(config, recipe), {}, threads);
}

// A small vocabulary has no special and byte tokens to keep silent.
std::unique_ptr<Weights> random_weights(const ModelConfig& config,
                                        const ModelShard& shard,
                                        uint64_t seed,
                                        ops::DType dtype) {
  SyntheticRecipe recipe;
  recipe.seed = seed;
  recipe.dtype = dtype;
  if (config.vocab_size < 8 * recipe.num_silent_ids) recipe.num_silent_ids = 0;
  return synthetic_weights(config, shard, recipe);
}

}  // namespace outrider
