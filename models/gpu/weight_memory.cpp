// See weight_memory.h.
#include "models/gpu/weight_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/ops/gpu/float8.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

using gpu::Type;

constexpr size_t kPieceBytes = size_t{32} << 20;  // of host memory on the way
constexpr int64_t kMostThreads = 16;

void store(std::byte* to, Type type, size_t index, float value) {
  if (type == Type::kF32) {
    std::memcpy(to + 4 * index, &value, 4);
  } else if (type == Type::kE4M3) {
    to[index] = static_cast<std::byte>(gpu::float_to_e4m3(value));
  } else {
    const uint16_t bits =
        type == Type::kBF16 ? ops::float_to_bf16(value) : ops::float_to_f16(value);
    std::memcpy(to + 2 * index, &bits, 2);
  }
}

// Calls work(i) for i of [0, count) on several threads.
void in_parallel(int64_t count, const std::function<void(int64_t)>& work) {
  const int64_t num_threads =
      std::min({int64_t{std::thread::hardware_concurrency()}, kMostThreads, count});
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (int64_t t = 1; t < num_threads; ++t) others.emplace_back(run);
  run();
}

// Whole tiles of outputs.
size_t packed_rows(const GpuMatrixLayout& layout) {
  return static_cast<size_t>(gpu::padded(layout.n_out, gpu::kTileOutputs));
}

// Which output of the file each packed row holds; -1: none.
std::vector<int32_t> sources_of_rows(const GpuMatrixLayout& layout) {
  std::vector<int32_t> sources(packed_rows(layout), -1);
  for (const Stretch& stretch : layout.outputs) {
    for (int32_t i = 0; i < stretch.count; ++i) {
      const int32_t row = gpu::weight_row(stretch.to + i, layout.order, layout.span);
      sources.at(static_cast<size_t>(row)) = stretch.from + i * stretch.step;
    }
  }
  return sources;
}

// A tile of 16 outputs, or a row of a matrix that is not tiled, is packed by one thread.
int32_t outputs_at_once(Type type) { return type == Type::kF32 ? 1 : gpu::kTileOutputs; }

size_t bytes_of(int32_t n_out, int32_t n_in, Type type) {
  if (type != Type::kF32) return gpu::weight_elements(n_out, n_in) * gpu::type_bytes(type);
  return static_cast<size_t>(n_out) * static_cast<size_t>(n_in) * sizeof(float);
}

// Packs outputs_at_once() rows into `to`, which is zeros.
void pack(const GpuMatrixLayout& layout,
          Type type,
          const ops::PackedMatrix& from,
          std::span<const int32_t> sources,
          std::byte* to,
          float* scales) {
  std::vector<float> values(static_cast<size_t>(from.n_in()));
  for (size_t row = 0; row < sources.size(); ++row) {
    if (sources[row] < 0) continue;
    from.read_row(sources[row], values.data());
    if (type == Type::kE4M3) {
      scales[row] = gpu::e4m3_scale(values);
      for (float& value : values) value /= scales[row];
    }
    for (const Stretch& s : layout.inputs) {
      for (int32_t i = 0; i < s.count; ++i) {
        const int32_t k = s.to + i;
        const size_t at =
            type == Type::kF32
                ? static_cast<size_t>(k)
                : gpu::weight_offset(
                      static_cast<int32_t>(row), k, layout.n_in, gpu::type_bytes(type));
        store(to, type, at, values[static_cast<size_t>(s.from + i)]);
      }
    }
  }
}

gpu::SliceEnds choose_slices(const GpuMatrixLayout& layout, Type type) {
  if (layout.slices.num_slices == 0) {
    if (type != Type::kF32) return gpu::default_slice_ends(layout.n_in);
    return {.num_slices = 1, .slice_ends = {layout.n_in}};  // as the CPU backend sums
  }
  for (int32_t s = 0; s + 1 < layout.slices.num_slices; ++s) {
    if (type == Type::kF32 || layout.slices.slice_ends[s] % gpu::kTileInner == 0) continue;
    throw Error(fmt::format("numerics strict on a GPU wants heads of a multiple of {} numbers",
                            gpu::kTileInner));
  }
  return layout.slices;
}

}  // namespace

GpuWeightMemory::GpuWeightMemory(gpu::Device& device, const GpuLayout& layout)
    : device_(device), weights_(std::make_unique<GpuWeights>()) {
  weights_->qkv_is_fused = layout.qkv_is_fused;
  weights_->mlp_is_fused = layout.mlp_is_fused;
}

void* GpuWeightMemory::allocate(size_t num_bytes) {
  weights_->memory.emplace_back(device_, num_bytes);
  weights_->num_bytes += num_bytes;
  return weights_->memory.back().data();
}

const float* GpuWeightMemory::vector(std::span<const float> values) {
  if (values.empty()) return nullptr;
  void* to = allocate(values.size_bytes());
  device_.upload_now(to, values.data(), values.size_bytes());
  return static_cast<const float*>(to);
}

const float* GpuWeightMemory::bias(std::span<const float> values, const GpuMatrixLayout& layout) {
  if (values.empty()) return nullptr;
  std::vector<float> placed;
  for (const int32_t source : sources_of_rows(layout)) {
    placed.push_back(source < 0 ? 0.0f : values[static_cast<size_t>(source)]);
  }
  return vector(placed);
}

gpu::Matrix GpuWeightMemory::allocate_matrix(const GpuMatrixLayout& layout, Type type) {
  const gpu::SliceEnds slices = choose_slices(layout, type);
  const size_t num_bytes = bytes_of(layout.n_out, layout.n_in, type);
  gpu::Matrix matrix;
  matrix.data = allocate(num_bytes);
  matrix.type = type;
  matrix.n_out = layout.n_out;
  matrix.n_in = layout.n_in;
  matrix.num_slices = slices.num_slices;
  std::copy_n(slices.slice_ends, gpu::kMaxSlices, matrix.slice_ends);
  weights_->matrix_bytes += num_bytes;
  return matrix;
}

gpu::Matrix GpuWeightMemory::matrix(const GpuMatrixLayout& layout,
                                    Type type,
                                    const ops::PackedMatrix& from) {
  gpu::Matrix matrix = allocate_matrix(layout, type);
  const std::vector<int32_t> sources = sources_of_rows(layout);
  std::vector<float> scales(sources.size(), 1.0f);
  const auto outputs = static_cast<size_t>(outputs_at_once(type));
  const size_t num_bytes = bytes_of(outputs_at_once(type), layout.n_in, type);
  const size_t num_packs =
      static_cast<size_t>(gpu::padded(layout.n_out, outputs_at_once(type))) / outputs;
  const size_t at_once = std::max<size_t>(1, kPieceBytes / num_bytes);
  std::vector<std::byte> piece;
  auto* const to = static_cast<std::byte*>(const_cast<void*>(matrix.data));
  for (size_t first = 0; first < num_packs; first += at_once) {
    const size_t count = std::min(at_once, num_packs - first);
    piece.assign(count * num_bytes, std::byte{0});
    in_parallel(static_cast<int64_t>(count), [&](int64_t i) {
      const auto index = static_cast<size_t>(i);
      const size_t row = (first + index) * outputs;
      pack(layout,
           type,
           from,
           std::span(sources).subspan(row, outputs),
           piece.data() + index * num_bytes,
           scales.data() + row);
    });
    device_.upload_now(to + first * num_bytes, piece.data(), piece.size());
  }
  if (type == Type::kE4M3) matrix.scales = vector(scales);
  return matrix;
}

gpu::Matrix GpuWeightMemory::of_experts(gpu::Matrix all, int32_t n_out) {
  weights_->expert_bytes += bytes_of(all.n_out, all.n_in, all.type);
  all.n_out = n_out;
  return all;
}

const void* GpuWeightMemory::rows(int64_t num_rows,
                                  int64_t n,
                                  Type type,
                                  const std::function<void(int64_t, float*)>& read_row) {
  const size_t row_bytes = static_cast<size_t>(n) * gpu::type_bytes(type);
  auto* const to = static_cast<std::byte*>(allocate(static_cast<size_t>(num_rows) * row_bytes));
  const auto at_once = static_cast<int64_t>(std::max<size_t>(1, kPieceBytes / row_bytes));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(at_once, num_rows)) * row_bytes);
  for (int64_t first = 0; first < num_rows; first += at_once) {
    const int64_t count = std::min(at_once, num_rows - first);
    in_parallel(count, [&](int64_t row) {
      std::vector<float> values(static_cast<size_t>(n));
      read_row(first + row, values.data());
      for (size_t i = 0; i < values.size(); ++i) {
        store(piece.data() + static_cast<size_t>(row) * row_bytes, type, i, values[i]);
      }
    });
    device_.upload_now(to + static_cast<size_t>(first) * row_bytes,
                       piece.data(),
                       static_cast<size_t>(count) * row_bytes);
  }
  return to;
}

namespace {

// What routes a layer's rows to its experts, their biases, and norms of their own.
size_t expert_floats(const ModelConfig& config, const GpuExpertLayout& layout) {
  const ExpertsConfig& experts = config.experts;
  const auto count = static_cast<size_t>(experts.count);
  const size_t logits = experts.shared_gate ? count + 1 : count;
  size_t floats = logits * static_cast<size_t>(config.hidden_dim);
  if (experts.biases) floats += logits + packed_rows(layout.gate_up) + packed_rows(layout.down);
  if (experts.correction) floats += count;
  if (experts.beside_mlp) floats += count + 4 * static_cast<size_t>(config.hidden_dim);
  return floats;
}

// Norms, biases, sinks and routers of a layer, whose config and shard these are.
size_t layer_floats(const ModelConfig& config, const ModelShard& shard, const GpuLayout& layout) {
  const auto hidden = static_cast<size_t>(config.hidden_dim);
  const size_t norm = config.norm_bias ? 2 * hidden : hidden;
  const WeightNames& names = config.names;
  size_t floats = config.per_layer_dim > 0 ? norm : 0;
  for (const std::string* name :
       {&names.attn_norm, &names.attn_post_norm, &names.mlp_norm, &names.mlp_post_norm}) {
    if (!name->empty()) floats += norm;
  }
  const bool is_shared = config.qk_norm_span == QkNormSpan::kHead;
  const bool has_keys = !names.k_norm.empty();
  int64_t normed_heads = is_shared ? 1 : shard.heads.size();
  if (has_keys) normed_heads += is_shared ? 1 : shard.kv_heads.size();
  if (has_keys && config.v_norm) normed_heads += 1;
  if (config.attention_bias) floats += packed_rows(layout.qkv) + packed_rows(layout.q_a);
  floats += static_cast<size_t>(config.latent.q_rank + config.latent.kv_rank);  // norms
  if (config.qk_norm) floats += static_cast<size_t>(normed_heads * config.head_dim);
  if (!names.sinks.empty()) floats += static_cast<size_t>(shard.heads.size());
  if (config.attention_out_bias) floats += packed_rows(layout.o);
  if (layout.experts.ffn > 0) floats += expert_floats(config, layout.experts);
  if (config.mlp_bias) floats += packed_rows(layout.gate_up) + packed_rows(layout.down);
  return floats;
}

}  // namespace

size_t gpu_weight_bytes(const ModelConfig& config,
                        const ModelShard& shard,
                        GpuWeightFormat format) {
  const Type file_type = gpu_type(config.dtype);
  const Type type = matrix_type(file_type, format);
  const Type rows = embedding_type(file_type, format);  // of what is no product's matrix
  const auto with_scales = [type](const GpuMatrixLayout& matrix) {
    const size_t scales = type == Type::kE4M3 ? packed_rows(matrix) : 0;
    return bytes_of(matrix.n_out, matrix.n_in, type) + scales * sizeof(float);
  };
  const auto hidden = static_cast<size_t>(config.hidden_dim);
  GpuLayout layout;
  size_t total = 0;
  size_t floats = config.norm_bias ? 2 * hidden : hidden;  // the last norm
  for (int32_t i = 0; i < config.n_layers; ++i) {
    layout = gpu_layout(config, shard, i);
    for (const GpuMatrixLayout* matrix : layout.matrices()) total += with_scales(*matrix);
    for (const GpuMatrixLayout* matrix : layout.experts.matrices()) total += with_scales(*matrix);
    total += static_cast<size_t>(layout.kv_b_elements) * gpu::type_bytes(rows);
    floats += layer_floats(config.of_layer(i), shard_of_layer(config, shard, i), layout);
  }
  const bool is_shared = config.tied_head && rows == type;
  size_t row = is_shared ? 0 : hidden;  // of the embedding and the table of per-layer inputs
  if (config.per_layer_dim > 0) {
    row += static_cast<size_t>(layout.per_layer_model_projection.n_out);
    total += with_scales(layout.per_layer_model_projection);
    floats += static_cast<size_t>(config.per_layer_dim);
  }
  if (config.names.has_positions()) {
    floats += static_cast<size_t>(config.max_positions + config.position_offset) * hidden;
  }
  return total + with_scales(layout.head) + floats * sizeof(float) +
         static_cast<size_t>(shard.vocab.size()) * row * gpu::type_bytes(rows);
}

}  // namespace outrider
