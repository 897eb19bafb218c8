// See buffers.h.
#include "models/gpu/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/forward/rope_frequencies.h"
#include "models/gpu/experts.h"
#include "models/gpu/layout.h"
#include "runtime/base/error.h"
#include "runtime/ops/gpu/attention_plan.h"

namespace outrider {
namespace {

using gpu::Type;

struct Sizes {
  size_t x = 0;
  size_t normed = 0;
  size_t qkv = 0;
  size_t queries = 0;
  size_t attended = 0;
  size_t part = 0;
  size_t gate_up = 0;
  size_t gated = 0;
  size_t experts = 0;
  size_t expert_part = 0;
  size_t squares = 0;
  size_t q_a = 0;
  size_t low = 0;
  size_t q = 0;
  size_t sums = 0;
  size_t vectors = 0;
  size_t projected = 0;
  size_t gated_vectors = 0;
  size_t logits = 0;
  size_t attention_scratch = 0;
  size_t angles = 0;
  size_t local_angles = 0;
  size_t query_factors = 0;
  size_t slopes = 0;
  size_t all() const {
    return x + normed + qkv + queries + attended + part + gate_up + gated + experts + expert_part +
           squares + q_a + low + q + sums + vectors + projected + gated_vectors + logits +
           attention_scratch + angles + local_angles + query_factors + slopes;
  }
};

size_t product_of(std::initializer_list<int64_t> factors) {
  size_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, static_cast<size_t>(factor), &product)) {
      throw Error("the model's buffers would be larger than any memory");
    }
  }
  return product;
}

// The keys and values that a layer reads, but for where they lie.
gpu::KvView kv_shape(const ModelConfig& config,
                     const ModelShard& shard,
                     int32_t layer,
                     const ModelOptions& options,
                     Type type) {
  return {.type = type,
          .num_blocks = options.num_blocks,
          .n_kv_heads = static_cast<int32_t>(shard_of_layer(config, shard, layer).kv_heads.size()),
          .block_size = options.block_size,
          .head_dim = config.head_dim_of(layer)};
}

// Bytes of a layer's keys, or of its values.
size_t pages_bytes(const gpu::KvView& kv) {
  return product_of({kv.num_blocks, kv.n_kv_heads, kv.block_size, kv.head_dim}) *
         gpu::type_bytes(kv.type);
}

// Keys and values; of latent attention these are those.
size_t num_halves(const ModelConfig& config) { return config.is_latent() ? 1 : 2; }

// What each layer needs; the largest counts.
void widen_for_layer(const ModelConfig& config,
                     const ModelShard& shard,
                     int32_t layer,
                     const ModelOptions& options,
                     const GpuOptions& gpu_options,
                     Type activations,
                     Sizes& sizes) {
  const int32_t rows = options.max_rows;
  const GpuLayout layout = gpu_layout(config, shard, layer);
  const auto widen = [](size_t& size, size_t own) { size = std::max(size, own); };
  const auto inputs = [&](int32_t n) {
    return gpu::activation_elements(rows, n) * gpu::type_bytes(activations);
  };
  const auto floats = [&](int32_t n) { return product_of({rows, n, sizeof(float)}); };
  if (!layout.qkv_is_fused) widen(sizes.qkv, floats(layout.qkv.n_out));
  const gpu::KvView kv = kv_shape(config, shard, layer, options, gpu_options.kv_type);
  const auto n_heads = static_cast<int32_t>(shard_of_layer(config, shard, layer).heads.size());
  const int32_t width = n_heads * kv.head_dim;
  widen(sizes.queries, product_of({rows, width}) * gpu::type_bytes(kv.type));
  widen(sizes.attended, inputs(layout.o.n_in));
  if (!layout.mlp_is_fused) widen(sizes.gate_up, floats(layout.gate_up.n_out));
  widen(sizes.gated, inputs(layout.ffn));
  widen(sizes.vectors, floats(layout.per_layer_model_projection.n_out));
  widen(sizes.gated_vectors, inputs(layout.per_layer_projection.n_in));
  if (config.is_latent()) {
    widen(sizes.q_a, floats(layout.q_a.n_out));
    widen(sizes.low, inputs(layout.q_a.n_out));
    widen(sizes.q, floats(layout.q.n_out));
    widen(sizes.sums, floats(width));
  }
  widen(sizes.attention_scratch,
        gpu::attention_scratch_bound(
            {.n_heads = n_heads,
             .kv = kv,
             .max_rows = rows,
             .max_items = rows,
             .max_splits = gpu_options.max_positions / gpu::kSplitPositions + 1}));
}

// weights: the widest type of the products' matrices.
Sizes sizes_of(const ModelConfig& config,
               const ModelShard& shard,
               const ModelOptions& options,
               const GpuOptions& gpu_options,
               Type weights) {
  const int32_t rows = options.max_rows;
  const Type activations = activation_type(weights);
  Sizes sizes;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    widen_for_layer(config, shard, layer, options, gpu_options, activations, sizes);
  }
  sizes.projected = sizes.vectors;
  sizes.x = product_of({rows, config.hidden_dim, sizeof(float)});
  sizes.normed =
      gpu::activation_elements(std::max(rows, options.max_logit_rows), config.hidden_dim) *
      gpu::type_bytes(activations);
  sizes.part = sizes.x;
  if (first_layer_with_experts(config) < config.n_layers) {
    sizes.experts = GpuExpertMlp(config, shard, rows, activations).num_bytes();
    if (config.experts.beside_mlp) sizes.expert_part = sizes.part;
  }
  if (config.qk_norm && config.qk_norm_span == QkNormSpan::kAllHeads) {
    sizes.squares = product_of({rows, config.n_heads + config.n_kv_heads, sizeof(float)});
  }
  sizes.logits = product_of({options.max_logit_rows, shard.vocab.size(), sizeof(float)});
  const int32_t positions = gpu_options.max_positions;
  sizes.angles = product_of({positions, config.rope.rotary_dim, sizeof(float)});
  if (config.local_rope) {
    sizes.local_angles = product_of({positions, config.local_rope->rotary_dim, sizeof(float)});
  }
  if (config.query_growth != 0.0f) sizes.query_factors = product_of({positions, sizeof(float)});
  if (config.alibi) sizes.slopes = product_of({shard.heads.size(), sizeof(float)});
  return sizes;
}

// The same numbers as the CPU's rows get, of every position there can be.
void fill_angles(
    gpu::Device& device, const RopeConfig& config, int32_t served, int32_t count, float* to) {
  constexpr int32_t kAtOnce = 4096;
  if (config.rotary_dim == 0) return;
  const auto width = static_cast<size_t>(config.rotary_dim);
  const std::vector<float> inv_freq = rope_frequencies(config, served);
  const ops::Rope rope = {inv_freq, static_cast<float>(config.attention_factor)};
  ops::Context ctx(1);
  std::vector<int32_t> positions;
  std::vector<float> angles;
  for (int32_t first = 0; first < count; first += kAtOnce) {
    positions.resize(static_cast<size_t>(std::min(kAtOnce, count - first)));
    std::iota(positions.begin(), positions.end(), first);
    angles.resize(positions.size() * width);
    ops::rope_angles(ctx, angles.data(), positions, rope);
    device.upload_now(
        to + static_cast<size_t>(first) * width, angles.data(), angles.size() * sizeof(float));
  }
}

std::vector<float> query_factors_of(const ModelConfig& config, int32_t count) {
  std::vector<float> factors;
  for (int32_t position = 0; position < count; ++position) {
    factors.push_back(query_factor(config, position));
  }
  return factors;
}

Type widest_type(const GpuWeights& weights) {
  Type widest = weights.head.type;
  if (weights.per_layer_projection.type == Type::kF32) widest = Type::kF32;
  for (const GpuLayerWeights& layer : weights.layers) {
    const GpuExpertWeights& experts = layer.experts;
    for (const gpu::Matrix& matrix : {layer.qkv,
                                      layer.q_a,
                                      layer.q,
                                      layer.o,
                                      layer.gate_up,
                                      layer.down,
                                      layer.per_layer_gate,
                                      layer.per_layer_projection,
                                      experts.gate_up,
                                      experts.down,
                                      experts.shared_gate_up,
                                      experts.shared_down}) {
      if (matrix.type == Type::kF32) widest = Type::kF32;
    }
  }
  return widest;
}

double gigabytes(size_t num_bytes) { return static_cast<double>(num_bytes) / 1e9; }

void check_room(const gpu::DeviceInfo& info, size_t weights, size_t kv, size_t buffers) {
  if (kv + buffers <= info.free_bytes) return;
  throw Error(fmt::format(
      "the GPU's memory does not suffice: {:.2f} GB of weights are there, {:.2f} GB of KV and "
      "{:.2f} GB of buffers are to come, {:.2f} of {:.2f} GB are free; lower "
      "gpu_memory_utilization, max_num_seqs, max_model_len or max_num_batched_tokens",
      gigabytes(weights),
      gigabytes(kv),
      gigabytes(buffers),
      gigabytes(info.free_bytes),
      gigabytes(info.total_bytes)));
}

}  // namespace

GpuBuffers::GpuBuffers(gpu::Device& device,
                       gpu::Stream& stream,
                       const ModelConfig& config,
                       const ModelShard& shard,
                       const GpuWeights& weights,
                       const ModelOptions& options,
                       const GpuOptions& gpu_options) {
  matrix_type = widest_type(weights);
  const Sizes sizes = sizes_of(config, shard, options, gpu_options, matrix_type);
  const size_t block =
      gpu_kv_bytes_per_block(config, shard, options.block_size, gpu_options.kv_type);
  kv_bytes = product_of({options.num_blocks, static_cast<int64_t>(block)});
  check_room(device.info(), weights.num_bytes, kv_bytes, sizes.all());
  // Zeros: what pads the inner dimension of a product stays so.
  const auto allocate = [&](size_t size) -> void* {
    if (size == 0) return nullptr;
    memory_.emplace_back(device, size);
    stream.fill(memory_.back().data(), 0, size);
    return memory_.back().data();
  };
  x = static_cast<float*>(allocate(sizes.x));
  normed = allocate(sizes.normed);
  qkv = static_cast<float*>(allocate(sizes.qkv));
  queries = allocate(sizes.queries);
  attended = allocate(sizes.attended);
  part = static_cast<float*>(allocate(sizes.part));
  gate_up = static_cast<float*>(allocate(sizes.gate_up));
  gated = allocate(sizes.gated);
  experts = allocate(sizes.experts);
  expert_part = static_cast<float*>(allocate(sizes.expert_part));
  squares = static_cast<float*>(allocate(sizes.squares));
  q_a = static_cast<float*>(allocate(sizes.q_a));
  low = allocate(sizes.low);
  q = static_cast<float*>(allocate(sizes.q));
  sums = static_cast<float*>(allocate(sizes.sums));
  vectors = static_cast<float*>(allocate(sizes.vectors));
  projected = static_cast<float*>(allocate(sizes.projected));
  gated_vectors = allocate(sizes.gated_vectors);
  logits = static_cast<float*>(allocate(sizes.logits));
  logits_bytes = sizes.logits;
  attention_scratch = allocate(sizes.attention_scratch);
  auto* const angles = static_cast<float*>(allocate(sizes.angles));
  auto* const local_angles = static_cast<float*>(allocate(sizes.local_angles));
  void* const factors = allocate(sizes.query_factors);
  void* const slopes_of_heads = allocate(sizes.slopes);
  num_bytes = sizes.all();
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    gpu::KvView pages = kv_shape(config, shard, layer, options, gpu_options.kv_type);
    const size_t half = pages_bytes(pages);
    pages.keys = allocate(num_halves(config) * half);
    pages.values = static_cast<std::byte*>(pages.keys) + (num_halves(config) - 1) * half;
    kv.push_back(pages);
  }
  stream.wait();
  const int32_t positions = gpu_options.max_positions;
  const RopeConfig local = config.local_rope.value_or(RopeConfig{});
  fill_angles(device, config.rope, config.longest_served(), positions, angles);
  fill_angles(device, local, config.longest_served(), positions, local_angles);
  rotary = {.angles = angles, .rotary_dim = config.rope.rotary_dim};
  local_rotary = {.angles = local_angles, .rotary_dim = local.rotary_dim};
  const auto upload = [&device](void* to, const std::vector<float>& values) {
    device.upload_now(to, values.data(), values.size() * sizeof(float));
    return static_cast<const float*>(to);
  };
  if (factors != nullptr) query_factors = upload(factors, query_factors_of(config, positions));
  if (config.alibi) slopes = upload(slopes_of_heads, alibi_slopes(config, shard.heads));
  most_blocks_named = static_cast<size_t>(options.num_blocks);
  block_names = gpu::PinnedBuffer(device, most_blocks_named * sizeof(int32_t));
}

size_t gpu_buffer_bytes(const ModelConfig& config,
                        const ModelShard& shard,
                        const ModelOptions& options,
                        const GpuOptions& gpu_options,
                        Type weights) {
  return sizes_of(config, shard, options, gpu_options, weights).all();
}

size_t gpu_kv_bytes_per_block(const ModelConfig& config,
                              const ModelShard& shard,
                              int32_t block_size,
                              Type kv_type) {
  size_t total = 0;
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    const ModelOptions one = {.block_size = block_size, .num_blocks = 1};
    total += num_halves(config) * pages_bytes(kv_shape(config, shard, layer, one, kv_type));
  }
  return total;
}

}  // namespace outrider
