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

// Numbers of a row, of the layer with most.
struct Widths {
  int32_t qkv = 0;
  int32_t queries = 0;
  int32_t attended = 0;
  int32_t gate_up = 0;
  int32_t gated = 0;
  int32_t q = 0;
  size_t attention_scratch = 0;  // bytes, of all rows
};

Widths widths_of(const ModelConfig& config,
                 const ModelShard& shard,
                 const ModelOptions& options,
                 const GpuOptions& gpu_options) {
  Widths most;
  const auto widen = [](auto& width, auto own) { width = std::max(width, own); };
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const GpuLayout layout = gpu_layout(config, shard, layer);
    const gpu::KvView kv = kv_shape(config, shard, layer, options, gpu_options.kv_type);
    const auto n_heads = static_cast<int32_t>(shard_of_layer(config, shard, layer).heads.size());
    if (!layout.qkv_is_fused) widen(most.qkv, layout.qkv.n_out);
    widen(most.queries, n_heads * kv.head_dim);
    widen(most.attended, layout.o.n_in);
    if (!layout.mlp_is_fused) widen(most.gate_up, layout.gate_up.n_out);
    widen(most.gated, layout.ffn);
    widen(most.q, layout.q.n_out);
    widen(most.attention_scratch,
          gpu::attention_scratch_bound(
              {.n_heads = n_heads,
               .kv = kv,
               .max_rows = options.max_rows,
               .max_items = options.max_rows,
               .max_splits = gpu_options.max_positions / gpu::kSplitPositions + 1}));
  }
  return most;
}

// Calls take(pointer, bytes) for all of `b` but keys and values; its matrix_type is known.
template <typename Take>
void take_all(const ModelConfig& config,
              const ModelShard& shard,
              const ModelOptions& options,
              const GpuOptions& gpu_options,
              GpuBuffers& b,
              const Take& take) {
  const int32_t rows = options.max_rows;
  const int32_t hidden = config.hidden_dim;
  const int32_t positions = gpu_options.max_positions;
  const int64_t all_per_layer = int64_t{config.n_layers} * config.per_layer_dim;
  const Type activations = activation_type(b.matrix_type);
  const auto inputs = [activations](int32_t count, int32_t n) {
    return gpu::activation_elements(count, n) * gpu::type_bytes(activations);
  };
  const auto floats = [](int64_t count, int64_t n) {
    return product_of({count, n, sizeof(float)});
  };
  const Widths most = widths_of(config, shard, options, gpu_options);
  take(b.x, floats(rows, hidden));
  take(b.normed, inputs(std::max(rows, options.max_logit_rows), hidden));
  take(b.qkv, floats(rows, most.qkv));
  take(b.queries, product_of({rows, most.queries}) * gpu::type_bytes(gpu_options.kv_type));
  take(b.attended, inputs(rows, most.attended));
  take(b.part, floats(rows, hidden));
  take(b.gate_up, floats(rows, most.gate_up));
  take(b.gated, inputs(rows, most.gated));
  if (first_layer_with_experts(config) < config.n_layers) {
    take(b.experts, GpuExpertMlp(config, shard, rows, activations).num_bytes());
    if (config.experts.beside_mlp) take(b.expert_part, floats(rows, hidden));
  }
  if (config.qk_norm && config.qk_norm_span == QkNormSpan::kAllHeads) {
    take(b.squares, floats(rows, config.n_heads + config.n_kv_heads));
  }
  if (config.is_latent()) {
    take(b.q_a, floats(rows, config.latent.q_rank));
    take(b.low, inputs(rows, config.latent.q_rank));
    take(b.q, floats(rows, most.q));
    take(b.sums, floats(rows, most.queries));
  }
  take(b.vectors, floats(rows, all_per_layer));
  take(b.projected, floats(rows, all_per_layer));
  take(b.gated_vectors, inputs(rows, config.per_layer_dim));
  b.logits_bytes = floats(options.max_logit_rows, shard.vocab.size());
  take(b.logits, b.logits_bytes);
  take(b.attention_scratch, most.attention_scratch);
  take(b.rotary.angles, floats(positions, config.rope.rotary_dim));
  if (config.local_rope) {
    take(b.local_rotary.angles, floats(positions, config.local_rope->rotary_dim));
  }
  if (config.query_growth != 0.0f) take(b.query_factors, floats(positions, 1));
  if (config.alibi) take(b.slopes, floats(shard.heads.size(), 1));
  take(b.kv_on_device, product_of({config.n_kv_layers(), sizeof(gpu::KvView)}));
}

void upload(gpu::Device& device, const float* to, const std::vector<float>& values) {
  device.upload_now(const_cast<float*>(to), values.data(), values.size() * sizeof(float));
}

// The same numbers as the CPU's rows get, of every position there can be.
void fill_angles(
    gpu::Device& device, const RopeConfig& config, int32_t served, int32_t count, const float* to) {
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
    upload(device, to + static_cast<size_t>(first) * width, angles);
  }
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
  num_bytes = gpu_buffer_bytes(config, shard, options, gpu_options, matrix_type);
  const size_t block =
      gpu_kv_bytes_per_block(config, shard, options.block_size, gpu_options.kv_type);
  kv_bytes = product_of({options.num_blocks, static_cast<int64_t>(block)});
  check_room(device.info(), weights.num_bytes, kv_bytes, num_bytes);
  // Zeros: what pads the inner dimension of a product stays so.
  const auto take = [&]<typename T>(T*& to, size_t size) {
    if (size == 0) return;
    memory_.emplace_back(device, size);
    to = memory_.back().as<T>();
    stream.fill(memory_.back().data(), 0, size);
  };
  take_all(config, shard, options, gpu_options, *this, take);
  for (int32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    gpu::KvView pages = kv_shape(config, shard, layer, options, gpu_options.kv_type);
    const size_t half = pages_bytes(pages);
    take(pages.keys, num_halves(config) * half);
    pages.values = static_cast<std::byte*>(pages.keys) + (num_halves(config) - 1) * half;
    OUTRIDER_CHECK(half / static_cast<size_t>(options.num_blocks) % 16 == 0);  // see fill_blocks()
    kv.push_back(pages);
  }
  stream.wait();
  device.upload_now(kv_on_device, kv.data(), kv.size() * sizeof(gpu::KvView));
  const int32_t positions = gpu_options.max_positions;
  const RopeConfig local = config.local_rope.value_or(RopeConfig{});
  fill_angles(device, config.rope, config.longest_served(), positions, rotary.angles);
  fill_angles(device, local, config.longest_served(), positions, local_rotary.angles);
  rotary.rotary_dim = config.rope.rotary_dim;
  local_rotary.rotary_dim = local.rotary_dim;
  if (query_factors != nullptr) {
    std::vector<float> factors;
    for (int32_t p = 0; p < positions; ++p) factors.push_back(query_factor(config, p));
    upload(device, query_factors, factors);
  }
  if (slopes != nullptr) upload(device, slopes, alibi_slopes(config, shard.heads));
  most_blocks_named = static_cast<size_t>(options.num_blocks);
  block_names = gpu::PinnedBuffer(device, most_blocks_named * sizeof(int32_t));
}

size_t gpu_buffer_bytes(const ModelConfig& config,
                        const ModelShard& shard,
                        const ModelOptions& options,
                        const GpuOptions& gpu_options,
                        Type weights) {
  GpuBuffers none;
  none.matrix_type = weights;
  size_t total = 0;
  const auto take = [&total](const auto*, size_t size) { total += size; };
  take_all(config, shard, options, gpu_options, none, take);
  return total;
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
