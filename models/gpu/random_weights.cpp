// Weights that are drawn on the device; see weights.h.
#include <cmath>

#include "models/gpu/weight_memory.h"
#include "models/gpu/weights.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

using gpu::Type;

// Of elements as e4m3 draws them: more than one binade in front of the largest finite one.
constexpr float kE4M3Spread = 256.0f;

class RandomWeights {
 public:
  RandomWeights(gpu::Device& device,
                const gpu::OpTable& ops,
                const ModelConfig& config,
                const ModelShard& shard,
                const SyntheticRecipe& recipe,
                GpuWeightFormat format)
      : ops_(ops),
        config_(config),
        shard_(shard),
        recipe_(recipe),
        format_(format),
        layout_(gpu_layout(config, shard, 0)),
        memory_(device, layout_),
        stream_(device.make_stream(gpu::Priority::kNormal)) {}

  std::unique_ptr<GpuWeights> make() {
    // Shapes that are drawn have none of these.
    OUTRIDER_CHECK(!config_.layers_differ() && config_.kv_shared_layers == 0 && !config_.v_norm &&
                   config_.per_layer_dim == 0 && !config_.is_latent() &&
                   !config_.experts.beside_mlp);
    GpuWeights& out = memory_.weights();
    make_head(out);
    for (int32_t layer = 0; layer < config_.n_layers; ++layer) make_layer(layer, out);
    out.final_norm = norm(config_.names.final_norm);
    stream_->wait();
    return memory_.take();
  }

 private:
  Type file_type() const { return gpu_type(recipe_.dtype); }

  const float* constant(int64_t n, float value) {
    return memory_.vector(std::vector<float>(static_cast<size_t>(n), value));
  }
  const float* ones(int64_t n) { return constant(n, 1.0f); }
  GpuNorm norm(const std::string& name) {
    if (name.empty()) return {};
    return {.weight = ones(config_.hidden_dim)};
  }

  // A tensor's own numbers, whatever else the model has.
  void fill(void* to, Type type, size_t count, uint64_t tensor, double spread) {
    ops_.fill_random(*stream_,
                     {.out = to,
                      .type = type,
                      .count = count,
                      .seed = recipe_.seed + 0x9E3779B97F4A7C15u * (tensor + 1),
                      .scale = static_cast<float>(spread)});
  }

  gpu::Matrix matrix(const GpuMatrixLayout& layout, uint64_t tensor, double sigma) {
    const Type type = matrix_type(file_type(), format_);
    gpu::Matrix matrix = memory_.allocate_matrix(layout, type);
    const double spread = sigma * std::sqrt(3.0);  // of a uniform law
    const bool is_narrow = type == Type::kE4M3;
    fill(const_cast<void*>(matrix.data),
         type,
         memory_.weights().memory.back().num_bytes() / gpu::type_bytes(type),
         tensor,
         is_narrow ? kE4M3Spread : spread);
    if (is_narrow) {
      matrix.scales = constant(gpu::padded(layout.n_out, gpu::kTileOutputs),
                               static_cast<float>(spread / kE4M3Spread));
    }
    return matrix;
  }

  void make_head(GpuWeights& out) {
    const double root = std::sqrt(static_cast<double>(config_.hidden_dim));
    out.head = matrix(layout_.head, 0, 5.0 / root);
    if (!config_.tied_head && shard_.rank == 0) {
      // Whole tiles of outputs, so some words more than the recipe says.
      const size_t tiles =
          static_cast<size_t>(gpu::whole_tiles(recipe_.num_silent_ids, gpu::kTileOutputs));
      const size_t per_tile =
          memory_.weights().matrix_bytes /
          static_cast<size_t>(gpu::whole_tiles(out.head.n_out, gpu::kTileOutputs));
      stream_->fill(const_cast<void*>(out.head.data), 0, tiles * per_tile);
    }
    out.embedding_type = embedding_type(file_type(), format_);
    if (config_.tied_head && out.head.type == out.embedding_type) {
      out.embedding = out.head.data;
      out.embedding_is_packed = out.head.type != Type::kF32;
      return;
    }
    const auto count =
        static_cast<size_t>(shard_.vocab.size()) * static_cast<size_t>(config_.hidden_dim);
    void* rows = memory_.allocate(count * gpu::type_bytes(out.embedding_type));
    fill(rows, out.embedding_type, count, 1, std::sqrt(3.0) * (config_.tied_head ? 5 / root : 1));
    out.embedding = rows;
  }

  void make_layer(int32_t layer, GpuWeights& out) {
    const double hidden = std::sqrt(static_cast<double>(config_.hidden_dim));
    const double attended = std::sqrt(static_cast<double>(config_.n_heads) * config_.head_dim);
    const double strength = layer < recipe_.num_strong_layers ? 1.0 : recipe_.epsilon;
    const uint64_t first = 2 + 4 * static_cast<uint64_t>(layer);
    const GpuLayout layout = gpu_layout(config_, shard_, layer);
    GpuLayerWeights& to = out.layers.emplace_back();
    to.n_heads = static_cast<int32_t>(shard_.heads.size());
    to.attn_norm = norm(config_.names.attn_norm);
    to.qkv = matrix(layout.qkv, first, std::sqrt(3.0) / hidden);
    const bool is_shared = config_.qk_norm_span == QkNormSpan::kHead;
    if (config_.qk_norm) {
      to.q_norm = ones((is_shared ? 1 : shard_.heads.size()) * config_.head_dim);
      to.k_norm = ones((is_shared ? 1 : shard_.kv_heads.size()) * config_.head_dim);
    }
    to.o = matrix(layout.o, first + 1, strength / attended);
    to.attn_post_norm = norm(config_.names.attn_post_norm);
    to.mlp_norm = norm(config_.names.mlp_norm);
    if (config_.has_experts(layer)) {
      make_experts(layer, strength, layout.experts, to);
    } else {
      to.gate_up = matrix(layout.gate_up, first + 2, 1.0 / hidden);
      const double ffn = std::sqrt(static_cast<double>(config_.ffn_dim));
      to.down = matrix(layout.down, first + 3, strength / ffn);
    }
    to.mlp_post_norm = norm(config_.names.mlp_post_norm);
  }

  // The router is the same on every rank, as the seed is.
  void make_experts(int32_t layer,
                    double strength,
                    const GpuExpertLayout& layout,
                    GpuLayerWeights& of_layer) {
    constexpr uint64_t kBehindOthers = uint64_t{1} << 32;
    const ExpertsConfig& experts = config_.experts;
    const double hidden = std::sqrt(static_cast<double>(config_.hidden_dim));
    const auto count = static_cast<size_t>(experts.count);
    const size_t logits = experts.shared_gate ? count + 1 : count;
    const size_t router = logits * static_cast<size_t>(config_.hidden_dim);
    const uint64_t first = kBehindOthers + 8 * static_cast<uint64_t>(layer);
    GpuExpertWeights& to = of_layer.experts;
    void* const rows = memory_.allocate(router * sizeof(float));
    fill(rows, Type::kF32, router, first, std::sqrt(3.0) / hidden);
    to.router = static_cast<const float*>(rows);
    if (experts.biases) to.router_bias = constant(static_cast<int64_t>(logits), 0.0f);
    if (experts.correction) to.router_correction = constant(experts.count, 0.0f);
    to.gate_up =
        memory_.of_experts(matrix(layout.gate_up, first + 1, 1.0 / hidden), 2 * layout.ffn);
    const double share = std::sqrt(1.0 * experts.per_row / experts.ffn_dim);
    to.down =
        memory_.of_experts(matrix(layout.down, first + 2, strength * share), config_.hidden_dim);
    if (layout.shared_ffn == 0) return;
    const double shared = std::sqrt(static_cast<double>(experts.shared_ffn_dim));
    to.shared_gate_up = matrix(layout.shared_gate_up, first + 3, 1.0 / hidden);
    to.shared_down = matrix(layout.shared_down, first + 4, strength / shared);
  }

  const gpu::OpTable& ops_;
  const ModelConfig& config_;
  const ModelShard& shard_;
  const SyntheticRecipe& recipe_;
  const GpuWeightFormat format_;
  const GpuLayout layout_;
  GpuWeightMemory memory_;
  std::unique_ptr<gpu::Stream> stream_;
};

}  // namespace

std::unique_ptr<GpuWeights> random_gpu_weights(gpu::Device& device,
                                               const gpu::OpTable& ops,
                                               const ModelConfig& config,
                                               const ModelShard& shard,
                                               const SyntheticRecipe& recipe,
                                               GpuWeightFormat format) {
  return RandomWeights(device, ops, config, shard, recipe, format).make();
}

}  // namespace outrider
