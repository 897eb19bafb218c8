// Weights that come from the host; see weights.h.
#include "models/gpu/weights.h"

#include "models/gpu/weight_memory.h"
#include "runtime/base/error.h"
#include "runtime/ops/ops.h"

namespace outrider {
namespace {

using gpu::Type;

// Integers come to the device as the floats they stand for.
Type file_type(const ops::PackedMatrix& matrix, const ModelConfig& config) {
  return gpu_type(matrix.is_quantized() ? config.dtype : matrix.dtype());
}

// Rows of two forms in one matrix, as the device wants them.
ops::PackedMatrix joined(const ops::PackedMatrix& a, const ops::PackedMatrix& b, ops::DType dtype) {
  ops::PackedMatrix both(a.n_out() + b.n_out(), a.n_in(), dtype);
  std::vector<float> row(static_cast<size_t>(a.n_in()));
  for (int64_t i = 0; i < both.n_out(); ++i) {
    i < a.n_out() ? a.read_row(i, row.data()) : b.read_row(i - a.n_out(), row.data());
    both.fill_rows(i, row.data(), 1, a.n_in(), ops::DType::kF32);
  }
  return both;
}

// Puts one model's tensors on the device, each dropped from host memory when it is there.
class Upload {
 public:
  Upload(gpu::Device& device,
         const ModelConfig& config,
         const ModelShard& shard,
         Weights& host,
         GpuWeightFormat format)
      : config_(config),
        shard_(shard),
        host_(host),
        format_(format),
        of_model_(gpu_layout(config, shard, 0)),
        memory_(device, of_model_) {}

  std::unique_ptr<GpuWeights> make() {
    GpuWeights& out = memory_.weights();
    put_embedding(out);
    if (config_.per_layer_dim > 0) put_per_layer_inputs(out);
    for (int32_t i = 0; i < config_.n_layers; ++i) {
      put_layer(i, host_.layers[static_cast<size_t>(i)], out.layers.emplace_back());
    }
    out.positions = memory_.vector(host_.positions);
    out.final_norm = norm(host_.final_norm);
    return memory_.take();
  }

 private:
  gpu::Matrix matrix(const GpuMatrixLayout& where, ops::PackedMatrix& from) {
    const gpu::Matrix matrix =
        memory_.matrix(where, matrix_type(file_type(from, config_), format_), from);
    from = {};
    return matrix;
  }
  GpuNorm norm(const NormWeights& from) {
    return {memory_.vector(from.weight), memory_.vector(from.bias)};
  }
  // Rows of n numbers of this shard's tokens.
  const void* table(ops::AlignedBytes& from, ops::DType dtype, int64_t n, Type type) {
    const void* rows = memory_.rows(shard_.vocab.size(), n, type, [&](int64_t row, float* out) {
      const size_t first = static_cast<size_t>(row * n) * ops::dtype_bytes(dtype);
      ops::widen(from.get() + first, n, dtype, out);
    });
    from = nullptr;
    return rows;
  }
  void put_embedding(GpuWeights& out);
  void put_per_layer_inputs(GpuWeights& out);
  gpu::HeadMatrix head_matrix(ops::PackedMatrix& from, int64_t n_out, int64_t n_heads);
  void put_latent(const GpuLayout& layout, LayerWeights& from, GpuLayerWeights& to);
  GpuExpertWeights put_experts(const GpuExpertLayout& layout, LayerWeights& from);
  void put_mlp(const GpuLayout& layout, LayerWeights& from, GpuLayerWeights& to);
  void put_layer(int32_t layer, LayerWeights& from, GpuLayerWeights& to);

  const ModelConfig& config_;
  const ModelShard& shard_;
  Weights& host_;
  const GpuWeightFormat format_;
  const GpuLayout of_model_;
  GpuWeightMemory memory_;
};

void Upload::put_embedding(GpuWeights& out) {
  const int64_t hidden = config_.hidden_dim;
  out.embedding_type = embedding_type(gpu_type(host_.embedding_dtype), format_);
  if (host_.embedding != nullptr) {
    out.embedding = table(host_.embedding, host_.embedding_dtype, hidden, out.embedding_type);
  } else if (host_.embedding_integers.n_out() > 0 ||
             matrix_type(out.embedding_type, format_) != out.embedding_type) {
    out.embedding = memory_.rows(
        shard_.vocab.size(), hidden, out.embedding_type, [&](int64_t row, float* values) {
          host_.packed_embedding().read_row(row, values);
        });
  }
  out.head = matrix(of_model_.head, host_.head);
  if (out.embedding != nullptr) return;
  out.embedding = out.head.data;
  out.embedding_is_packed = out.head.type != Type::kF32;
}

void Upload::put_per_layer_inputs(GpuWeights& out) {
  const GpuMatrixLayout& projection = of_model_.per_layer_model_projection;
  out.per_layer_type = embedding_type(gpu_type(host_.per_layer_dtype), format_);
  out.per_layer_embedding =
      table(host_.per_layer_embedding, host_.per_layer_dtype, projection.n_out, out.per_layer_type);
  out.per_layer_projection = matrix(projection, host_.per_layer_projection);
  out.per_layer_norm = memory_.vector(host_.per_layer_norm);
}

// Of each head a matrix; from: in whole panels, as ops::ExpertMatrix has them.
gpu::HeadMatrix Upload::head_matrix(ops::PackedMatrix& from, int64_t n_out, int64_t n_heads) {
  const int64_t n_in = from.n_in();
  const int64_t stride = ops::panels_of(n_out) * ops::kRowsPerPanel;
  gpu::HeadMatrix matrix = {.type = embedding_type(gpu_type(from.dtype()), format_),
                            .n_out = static_cast<int32_t>(n_out),
                            .n_in = static_cast<int32_t>(n_in)};
  matrix.data = memory_.rows(n_heads * n_out, n_in, matrix.type, [&](int64_t row, float* values) {
    from.read_row(row / n_out * stride + row % n_out, values);
  });
  memory_.weights().matrix_bytes +=
      static_cast<size_t>(n_heads * n_out * n_in) * gpu::type_bytes(matrix.type);
  from = {};
  return matrix;
}

// Before the key, whose matrix on the host begins with these rows.
void Upload::put_latent(const GpuLayout& layout, LayerWeights& from, GpuLayerWeights& to) {
  const LatentConfig& latent = config_.latent;
  const Type type = matrix_type(file_type(from.qkv, config_), format_);
  if (latent.q_rank > 0) {
    to.q_a = memory_.matrix(layout.q_a, type, from.qkv);
    to.q_a_bias = memory_.bias(from.qkv_bias, layout.q_a);
    to.q = matrix(layout.q, from.q_b);
  } else {
    to.q = memory_.matrix(layout.q, type, from.qkv);
  }
  to.kv_b_keys = head_matrix(from.kv_b_keys, latent.kv_rank, to.n_heads);
  to.kv_b_values = head_matrix(from.kv_b_values, latent.value_dim, to.n_heads);
}

GpuExpertWeights Upload::put_experts(const GpuExpertLayout& layout, LayerWeights& from) {
  GpuExpertWeights to;
  const auto router_row = [&from](int64_t row, float* values) {
    from.router.read_row(row, values);
  };
  to.router = static_cast<const float*>(
      memory_.rows(from.router.n_out(), config_.hidden_dim, Type::kF32, router_row));
  to.router_bias = memory_.vector(from.router_bias);
  to.router_correction = memory_.vector(from.router_correction);
  to.gate_up = memory_.of_experts(matrix(layout.gate_up, from.gate_up), 2 * layout.ffn);
  to.gate_up_bias = memory_.bias(from.gate_up_bias, layout.gate_up_bias);
  to.down = memory_.of_experts(matrix(layout.down, from.down), config_.hidden_dim);
  to.down_bias = memory_.bias(from.down_bias, layout.down_bias);
  to.router_norm = memory_.vector(from.router_norm);
  to.expert_scale = memory_.vector(from.expert_scale);
  to.norm = norm(from.experts_norm);
  to.post_norm = norm(from.experts_post_norm);
  to.dense_post_norm = norm(from.dense_post_norm);
  if (layout.shared_ffn == 0) return to;
  to.shared_gate_up = matrix(layout.shared_gate_up, from.shared_gate_up);
  to.shared_down = matrix(layout.shared_down, from.shared_down);
  if (activation_type(to.shared_gate_up.type) != activation_type(to.gate_up.type)) {
    throw Error("on a GPU the shared expert must have weights of the other experts' type");
  }
  return to;
}

void Upload::put_mlp(const GpuLayout& layout, LayerWeights& from, GpuLayerWeights& to) {
  if (from.has_experts()) {
    to.experts = put_experts(layout.experts, from);
    if (!config_.experts.beside_mlp) return;
    to.gate_up = matrix(layout.gate_up, from.shared_gate_up);
    to.down = matrix(layout.down, from.shared_down);
  } else {
    to.gate_up = matrix(layout.gate_up, from.gate_up);
    to.gate_up_bias = memory_.bias(from.gate_up_bias, layout.gate_up);
    to.down = matrix(layout.down, from.down);
    to.down_bias = memory_.bias(from.down_bias, layout.down);
  }
}

void Upload::put_layer(int32_t layer, LayerWeights& from, GpuLayerWeights& to) {
  const GpuLayout layout = gpu_layout(config_, shard_, layer);
  to.attn_norm = norm(from.attn_norm);
  to.n_heads = static_cast<int32_t>(shard_of_layer(config_, shard_, layer).heads.size());
  if (config_.is_latent()) put_latent(layout, from, to);
  if (from.v.n_out() > 0) from.qkv = joined(from.qkv, from.v, config_.dtype);
  to.qkv = matrix(layout.qkv, from.qkv);
  to.qkv_bias = memory_.bias(from.qkv_bias, layout.qkv);
  to.q_norm = memory_.vector(from.q_norm);
  to.k_norm = memory_.vector(from.k_norm);
  to.v_norm = memory_.vector(from.v_norm);
  to.sinks = memory_.vector(from.sinks);
  to.o = matrix(layout.o, from.o);
  to.o_bias = memory_.bias(from.o_bias, layout.o);
  to.attn_post_norm = norm(from.attn_post_norm);
  to.mlp_norm = norm(from.mlp_norm);
  put_mlp(layout, from, to);
  to.mlp_post_norm = norm(from.mlp_post_norm);
  to.scalar = from.scalar;
  if (config_.per_layer_dim == 0) return;
  to.per_layer_gate = matrix(layout.per_layer_gate, from.per_layer_gate);
  to.per_layer_projection = matrix(layout.per_layer_projection, from.per_layer_projection);
  to.per_layer_norm = norm(from.per_layer_norm);
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
                                           GpuWeightFormat format) {
  return Upload(device, config, shard, *host, format).make();
}

}  // namespace outrider
