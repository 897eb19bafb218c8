// One rank's weights in a GPU's memory, in the order its kernels read them
// (runtime/ops/gpu/tiles.h). Built once at start, constant afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/synthetic/synthetic.h"
#include "models/weights/weights.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider {

// What matrices become on their way to the device; norms and biases are always float32.
// kAuto: what the file has; integers of quantised files become floats of the config's type. kF32:
// everything wide, for comparisons. kFp8: the products' matrices in e4m3 with one float32 scale per
// output; embedding rows stay.
enum class GpuWeightFormat : uint8_t { kAuto, kF32, kFp8 };

gpu::Type gpu_type(ops::DType dtype);
gpu::Type matrix_type(gpu::Type file_type, GpuWeightFormat format);
gpu::Type embedding_type(gpu::Type file_type, GpuWeightFormat format);
// Of what goes into a product with such weights.
gpu::Type activation_type(gpu::Type weights);

struct GpuNorm {
  const float* weight = nullptr;  // [hidden]; null: there is no such norm
  const float* bias = nullptr;    // [hidden] or null
};

// Of a layer with experts, see gpu/experts.h; null where the model has no such vector.
struct GpuExpertWeights {
  const float* router = nullptr;  // [experts, hidden], and a row for the shared one's gate
  const float* router_bias = nullptr;
  const float* router_correction = nullptr;  // [experts]
  gpu::Matrix gate_up;                       // of every expert, in kPairs order
  const float* gate_up_bias = nullptr;
  gpu::Matrix down;
  const float* down_bias = nullptr;
  gpu::Matrix shared_gate_up;  // in kPairs order
  gpu::Matrix shared_down;
  // Of experts beside an MLP.
  const float* router_norm = nullptr;   // [hidden]
  const float* expert_scale = nullptr;  // [experts]
  GpuNorm norm;
  GpuNorm post_norm;
  GpuNorm dense_post_norm;
};

// Of a layer of this shard; null where the model has no such vector.
struct GpuLayerWeights {
  GpuNorm attn_norm;
  int32_t n_heads = 0;  // of queries
  // Heads in kHalves order when GpuWeights::qkv_is_fused; of latent attention the key alone.
  gpu::Matrix qkv;
  const float* qkv_bias = nullptr;  // biases lie in the packed order, as the outputs do
  const float* q_norm = nullptr;    // [head_dim], or [heads * head_dim]: each head its own
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;  // [head_dim]
  const float* sinks = nullptr;   // [heads]
  // Of latent attention, whose norms above are those of q_a and of the latent.
  gpu::Matrix q_a;
  const float* q_a_bias = nullptr;
  gpu::Matrix q;                // [heads * query_dim, q_rank], or hidden where there is no q_a
  gpu::HeadMatrix kv_b_keys;    // queries over the latent
  gpu::HeadMatrix kv_b_values;  // values of the latents' sums
  gpu::Matrix o;
  const float* o_bias = nullptr;
  GpuNorm attn_post_norm;  // of what attention adds
  GpuNorm mlp_norm;
  gpu::Matrix gate_up;  // over GpuLayout::ffn units, in kPairs order when mlp_is_fused
  const float* gate_up_bias = nullptr;
  gpu::Matrix down;  // [hidden, GpuLayout::ffn]
  const float* down_bias = nullptr;
  GpuExpertWeights experts;  // in place of gate_up and down, or beside them
  GpuNorm mlp_post_norm;
  // Of per-layer inputs.
  gpu::Matrix per_layer_gate;        // [per_layer_dim, hidden]
  gpu::Matrix per_layer_projection;  // [hidden, per_layer_dim]
  GpuNorm per_layer_norm;
  float scalar = 1.0f;  // on the residual stream, at the layer's end
  bool has_experts() const { return experts.router != nullptr; }
};

struct GpuWeights {
  // [vocab of the shard, hidden] row-major, or the head's memory when both hold the same values.
  const void* embedding = nullptr;
  gpu::Type embedding_type = gpu::Type::kBF16;
  bool embedding_is_packed = false;
  std::vector<GpuLayerWeights> layers;
  const float* positions = nullptr;  // learned ones, [positions, hidden]
  // Per-layer inputs: each token's vectors [vocab of the shard, layers * per_layer_dim] row-major,
  // and what the embedding adds to them.
  const void* per_layer_embedding = nullptr;
  gpu::Type per_layer_type = gpu::Type::kBF16;
  gpu::Matrix per_layer_projection;       // [layers * per_layer_dim, hidden]
  const float* per_layer_norm = nullptr;  // [per_layer_dim]
  GpuNorm final_norm;
  gpu::Matrix head;
  bool qkv_is_fused = false;  // rotation and the writing of keys and values are part of the product
  bool mlp_is_fused = false;  // SwiGLU is
  size_t matrix_bytes = 0;    // of the products' matrices
  size_t expert_bytes = 0;    // of those, the experts', of which a row chooses some
  size_t num_bytes = 0;
  std::vector<gpu::Buffer> memory;
};

// Carries `host` over in pieces of a few MB, on up to 16 threads, and drops each matrix when it is
// there. Throws Error when the device has no memory left, or for a cut that its kernels do not
// have.
std::unique_ptr<GpuWeights> upload_weights(gpu::Device& device,
                                           const ModelConfig& config,
                                           const ModelShard& shard,
                                           std::unique_ptr<Weights> host,
                                           GpuWeightFormat format);

// The same sizes with numbers drawn on the device, with the recipe's spreads but not its elements:
// fills any GPU in seconds. The same seed gives the first layers of a shape the same weights, so
// "NAME@2" is a draft of "NAME" here too; another number of ranks gives another model.
std::unique_ptr<GpuWeights> random_gpu_weights(gpu::Device& device,
                                               const gpu::OpTable& ops,
                                               const ModelConfig& config,
                                               const ModelShard& shard,
                                               const SyntheticRecipe& recipe,
                                               GpuWeightFormat format);

// What either of them will take, by the config alone: for sizing KV memory before anything is
// loaded.
size_t gpu_weight_bytes(const ModelConfig& config, const ModelShard& shard, GpuWeightFormat format);

}  // namespace outrider
