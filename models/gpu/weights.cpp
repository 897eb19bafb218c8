// Weights that come from the host; see weights.h.
#include "models/gpu/weights.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "models/gpu/weight_memory.h"
#include "runtime/base/error.h"
#include "runtime/ops/half.h"

namespace outrider {
namespace {

using gpu::Type;

constexpr unsigned kMaxThreads = 16;

// Integers come to the device as the floats they stand for.
Type file_type(const ops::PackedMatrix& matrix, const ModelConfig& config) {
  return gpu_type(matrix.is_quantized() ? config.dtype : matrix.dtype());
}

// One row of what Weights::embedding holds.
void read_embedding(const Weights& host, int64_t row, int64_t n, float* out) {
  const std::byte* from =
      host.embedding.get() + static_cast<size_t>(row * n) * ops::dtype_bytes(host.embedding_dtype);
  if (host.embedding_dtype == ops::DType::kF32) {
    std::memcpy(out, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    out[i] = host.embedding_dtype == ops::DType::kBF16 ? ops::bf16_to_float(bits)
                                                       : ops::f16_to_float(bits);
  }
}

// upload(layout, matrix) puts a matrix there and drops it here.
template <typename Upload>
GpuExpertWeights upload_experts(GpuWeightMemory& memory,
                                const GpuExpertLayout& layout,
                                const ModelConfig& config,
                                LayerWeights& from,
                                const Upload& upload) {
  GpuExpertWeights to;
  const auto router_row = [&from](int64_t row, float* values) {
    from.router.read_row(row, values);
  };
  to.router = static_cast<const float*>(
      memory.rows(from.router.n_out(), config.hidden_dim, Type::kF32, router_row));
  to.router_bias = memory.vector(from.router_bias);
  to.router_correction = memory.vector(from.router_correction);
  to.gate_up = memory.of_experts(upload(layout.gate_up, from.gate_up), 2 * layout.ffn);
  to.gate_up_bias = memory.bias(from.gate_up_bias, layout.gate_up_bias);
  to.down = memory.of_experts(upload(layout.down, from.down), config.hidden_dim);
  to.down_bias = memory.bias(from.down_bias, layout.down_bias);
  if (layout.shared_ffn == 0) return to;
  to.shared_gate_up = upload(layout.shared_gate_up, from.shared_gate_up);
  to.shared_down = upload(layout.shared_down, from.shared_down);
  if (activation_type(to.shared_gate_up.type) != activation_type(to.gate_up.type)) {
    throw Error("on a GPU the shared expert must have weights of the other experts' type");
  }
  return to;
}

}  // namespace

Type gpu_type(ops::DType dtype) {
  if (dtype == ops::DType::kF32) return Type::kF32;
  return dtype == ops::DType::kBF16 ? Type::kBF16 : Type::kF16;
}

Type matrix_type(Type file_type, GpuWeightFormat format) {
  if (format == GpuWeightFormat::kF32) return Type::kF32;
  return format == GpuWeightFormat::kFp8 ? Type::kE4M3 : file_type;
}

Type embedding_type(Type file_type, GpuWeightFormat format) {
  return format == GpuWeightFormat::kF32 ? Type::kF32 : file_type;
}

Type activation_type(Type weights) { return weights == Type::kE4M3 ? Type::kBF16 : weights; }

std::unique_ptr<GpuWeights> upload_weights(gpu::Device& device,
                                           const ModelConfig& config,
                                           const ModelShard& shard,
                                           std::unique_ptr<Weights> host,
                                           GpuWeightFormat format,
                                           int num_threads) {
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const GpuLayout layout = gpu_layout(config, shard);
  GpuWeightMemory memory(device, layout, num_threads > 0 ? num_threads : static_cast<int>(cores));
  GpuWeights& out = memory.weights();
  const int64_t hidden = config.hidden_dim;
  const auto upload = [&](const GpuMatrixLayout& where, ops::PackedMatrix& from) {
    const Type type = matrix_type(file_type(from, config), format);
    const gpu::Matrix matrix = memory.matrix(where, type, from);
    from = {};
    return matrix;
  };
  const auto norm = [&memory](const NormWeights& from) {
    return GpuNorm{memory.vector(from.weight), memory.vector(from.bias)};
  };

  out.embedding_type = embedding_type(gpu_type(host->embedding_dtype), format);
  if (host->embedding != nullptr) {
    out.embedding = memory.rows(
        shard.vocab.size(), hidden, out.embedding_type, [&](int64_t row, float* values) {
          read_embedding(*host, row, hidden, values);
        });
    host->embedding = nullptr;
  } else if (matrix_type(out.embedding_type, format) != out.embedding_type) {
    out.embedding = memory.rows(
        shard.vocab.size(), hidden, out.embedding_type, [&](int64_t row, float* values) {
          host->head.read_row(row, values);
        });
  }
  out.head = upload(layout.head, host->head);
  if (out.embedding == nullptr) {
    out.embedding = out.head.data;
    out.embedding_is_packed = out.head.type != Type::kF32;
  }
  for (int32_t i = 0; i < config.n_layers; ++i) {
    LayerWeights& from = host->layers[static_cast<size_t>(i)];
    GpuLayerWeights& to = out.layers.emplace_back();
    to.attn_norm = norm(from.attn_norm);
    to.qkv = upload(layout.qkv, from.qkv);
    to.qkv_bias = memory.bias(from.qkv_bias, layout.qkv);
    to.q_norm = memory.vector(from.q_norm);
    to.k_norm = memory.vector(from.k_norm);
    to.sinks = memory.vector(from.sinks);
    to.o = upload(layout.o, from.o);
    to.o_bias = memory.bias(from.o_bias, layout.o);
    to.attn_post_norm = norm(from.attn_post_norm);
    to.mlp_norm = norm(from.mlp_norm);
    if (from.has_experts()) {
      to.experts = upload_experts(memory, layout.experts, config, from, upload);
    } else {
      to.gate_up = upload(layout.gate_up, from.gate_up);
      to.gate_up_bias = memory.bias(from.gate_up_bias, layout.gate_up);
      to.down = upload(layout.down, from.down);
      to.down_bias = memory.bias(from.down_bias, layout.down);
    }
    to.mlp_post_norm = norm(from.mlp_post_norm);
  }
  out.positions = memory.vector(host->positions);
  out.final_norm = norm(host->final_norm);
  return memory.take();
}

}  // namespace outrider
