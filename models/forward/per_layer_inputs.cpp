// See per_layer_inputs.h.
#include "models/forward/per_layer_inputs.h"

#include <cmath>

#include "runtime/base/error.h"

namespace outrider {

PerLayerInputs::PerLayerInputs(const ModelConfig& config, const ModelShard& shard, int64_t max_rows)
    : config_(config),
      shard_(shard),
      max_rows_(max_rows),
      width_(int64_t{config.n_layers} * config.per_layer_dim) {}

std::vector<StepBuffer> PerLayerInputs::buffers() {
  return {{&vectors_, {max_rows_, width_}}, {&scratch_, {max_rows_, width_}}};
}

std::span<float> PerLayerInputs::embed(ops::Context& ctx,
                                       const Weights& weights,
                                       std::span<const int32_t> tokens) {
  OUTRIDER_CHECK(weights.per_layer_projection.n_out() == width_);
  ops::embed(ctx,
             vectors_,
             tokens,
             {.data = weights.per_layer_embedding.get(),
              .dtype = weights.per_layer_dtype,
              .n_rows = shard_.vocab.size(),
              .n = width_,
              .first_id = static_cast<int32_t>(shard_.vocab.begin)});
  return {vectors_, tokens.size() * static_cast<size_t>(width_)};
}

void PerLayerInputs::add_embeddings(ops::Context& ctx,
                                    const Weights& weights,
                                    const float* x,
                                    int64_t rows) {
  const int64_t count = rows * width_;
  ops::scale(ctx, vectors_, config_.per_layer_scale, count);
  ops::linear(ctx, scratch_, x, rows, weights.per_layer_projection);
  ops::scale(ctx, scratch_, 1.0f / std::sqrt(static_cast<float>(config_.hidden_dim)), count);
  ops::rms_norm(ctx,
                scratch_,
                scratch_,
                weights.per_layer_norm.data(),
                rows * config_.n_layers,
                config_.per_layer_dim,
                config_.norm_eps);
  ops::add_scaled(ctx, vectors_, scratch_, 1.0f, count);
  ops::scale(ctx, vectors_, std::sqrt(0.5f), count);
}

void PerLayerInputs::keep(ops::Context& ctx, std::span<const int32_t> rows) {
  ops::gather_rows(ctx, vectors_, vectors_, rows, width_);
}

void PerLayerInputs::compute(ops::Context& ctx,
                             const LayerWeights& w,
                             int32_t layer,
                             std::span<const float> x,
                             float* part) {
  const int64_t dim = config_.per_layer_dim;
  const int64_t rows = std::ssize(x) / config_.hidden_dim;
  ops::linear(ctx, scratch_, x.data(), rows, w.per_layer_gate);
  ops::activate(ctx, scratch_, rows * dim, config_.activation);
  ops::multiply_rows(ctx, scratch_, {vectors_ + layer * dim, rows, width_, 1, dim});
  ops::linear(ctx, part, scratch_, rows, w.per_layer_projection);
}

}  // namespace outrider
