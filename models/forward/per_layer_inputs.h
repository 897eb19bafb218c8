// Per-layer inputs (PLE, Gemma 3n and 4): each token gives each layer a vector of its own, beside
// the embedding, and the layer adds it to the residual stream through a gate. Used by the
// transformer, on its compute thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/forward/step_buffer.h"
#include "models/weights/weights.h"
#include "runtime/ops/ops.h"

namespace outrider {

class PerLayerInputs {
 public:
  // config and shard must outlive this; max_rows of a step.
  PerLayerInputs(const ModelConfig& config, const ModelShard& shard, int64_t max_rows);

  std::vector<StepBuffer> buffers();

  // This rank's part of the tokens' vectors, to be summed over the ranks in place:
  // [tokens, layers * per_layer_dim].
  std::span<float> embed(ops::Context& ctx,
                         const Weights& weights,
                         std::span<const int32_t> tokens);
  // Then what the embeddings x [rows, hidden] add to them: (vectors + norm(W x)) / sqrt(2).
  void add_embeddings(ops::Context& ctx, const Weights& weights, const float* x, int64_t rows);
  // From here on only these rows are there.
  void keep(ops::Context& ctx, std::span<const int32_t> rows);
  // part = what layer `layer`, which has the weights w, adds to x, both [rows, hidden].
  void compute(ops::Context& ctx,
               const LayerWeights& w,
               int32_t layer,
               std::span<const float> x,
               float* part);

 private:
  const ModelConfig& config_;
  const ModelShard& shard_;
  int64_t max_rows_;
  int64_t width_;             // layers * per_layer_dim
  float* vectors_ = nullptr;  // [rows, width]
  float* scratch_ = nullptr;  // [rows, width] W x; of a layer [rows, per_layer_dim], its gates
};

}  // namespace outrider
