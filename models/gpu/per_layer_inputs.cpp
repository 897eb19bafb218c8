// Per-layer inputs and what else ends a layer, on a GPU: what models/forward/per_layer_inputs.h is
// for the CPU. See transformer.h.
#include <cmath>

#include "models/gpu/buffers.h"
#include "models/gpu/transformer.h"

namespace outrider {

// vectors [rows, layers * per_layer_dim], of the tokens and of x.
void GpuTransformer::embed_per_layer(const Pass& pass) {
  const GpuBuffers& b = *buffers_;
  const gpu::Matrix& projection = weights_->per_layer_projection;
  const int32_t width = config_.n_layers * config_.per_layer_dim;
  ops_.embed(*stream_,
             {.out = b.vectors,
              .table = weights_->per_layer_embedding,
              .type = weights_->per_layer_type,
              .n_rows = static_cast<int32_t>(shard_.vocab.size()),
              .n = width,
              .first_id = static_cast<int32_t>(shard_.vocab.begin),
              .max_rows = pass.sizes.rows,
              .step = pass.step});
  sum_over_ranks(pass, b.vectors, width);
  norm(pass, {}, projection);  // x as it is
  ops_.store_product(*stream_, product(pass, b.normed, projection, nullptr), {b.projected});
  ops_.per_layer_inputs(*stream_,
                        {.vectors = b.vectors,
                         .projected = b.projected,
                         .weight = weights_->per_layer_norm,
                         .scale = config_.per_layer_scale,
                         .factor = 1.0f / std::sqrt(static_cast<float>(config_.hidden_dim)),
                         .eps = config_.norm_eps,
                         .n_layers = config_.n_layers,
                         .dim = config_.per_layer_dim,
                         .max_rows = pass.sizes.rows,
                         .step = pass.step});
}

// part [rows, hidden], of every rank alike: the layer's vectors through a gate of what normed
// holds.
void GpuTransformer::read_per_layer(const Pass& pass, int32_t layer) {
  const GpuBuffers& b = *buffers_;
  const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const gpu::ProductArgs out = product(pass, b.gated_vectors, w.per_layer_projection, nullptr);
  ops_.store_product(*stream_, product(pass, b.normed, w.per_layer_gate, nullptr), {b.projected});
  ops_.activate(*stream_,
                {.out = out.in,
                 .x = b.projected,
                 .kind = config_.activation,
                 .max_rows = pass.sizes.rows,
                 .step = pass.step,
                 .factors = b.vectors + static_cast<ptrdiff_t>(layer) * config_.per_layer_dim,
                 .factors_stride = config_.n_layers * config_.per_layer_dim});
  ops_.store_product(*stream_, out, {b.part});
}

// part = norm(part) + norm(experts of x), of all ranks, where experts stand beside the MLP.
void GpuTransformer::add_experts(const Pass& pass, const GpuLayerWeights& w) {
  const GpuBuffers& b = *buffers_;
  const GpuExpertWeights& experts = w.experts;
  const int32_t hidden = config_.hidden_dim;
  sum_over_ranks(pass, b.part, hidden);
  norm(pass, experts.norm, experts.gate_up);
  experts_->compute(*stream_, ops_, w, {b.x, b.normed, b.expert_part, pass.sizes.rows, pass.step});
  sum_over_ranks(pass, b.expert_part, hidden);
  gpu::NormArgs args = {.out = {b.part, gpu::Type::kF32, hidden},
                        .x = b.part,
                        .weight = experts.dense_post_norm.weight,
                        .eps = config_.norm_eps,
                        .max_rows = pass.sizes.rows,
                        .step = pass.step};
  ops_.add_norm(*stream_, {.norm = args});
  args.out.data = nullptr;
  args.weight = nullptr;
  args.part = b.expert_part;
  ops_.add_norm(*stream_, {.norm = args, .part_weight = experts.post_norm.weight});
}

// What follows the MLP. Returns the norm of what still waits in part; null when nothing does.
const GpuNorm* GpuTransformer::end_layer(const Pass& pass, int32_t layer) {
  const GpuLayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const bool is_summed = w.has_experts() && config_.experts.beside_mlp;
  const bool has_inputs = config_.per_layer_dim > 0;
  if (!has_inputs && !config_.layer_scalar && !is_summed) return &w.mlp_post_norm;
  if (is_summed) {
    add_experts(pass, w);
  } else {
    sum_over_ranks(pass, buffers_->part, config_.hidden_dim);
  }
  add_part(pass, w.mlp_post_norm, has_inputs ? 1.0f : w.scalar);
  if (!has_inputs) return nullptr;
  norm(pass, {}, w.per_layer_gate);
  read_per_layer(pass, layer);
  add_part(pass, w.per_layer_norm, w.scalar);
  return nullptr;
}

}  // namespace outrider
