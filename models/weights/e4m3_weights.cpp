// See e4m3_weights.h.
#include "models/weights/e4m3_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/ops/gpu/float8.h"

namespace outrider {
namespace {

void round_matrix(ops::PackedMatrix& matrix) {
  if (matrix.n_out() == 0) return;  // the layer has none
  ops::PackedMatrix rounded(matrix.n_out(), matrix.n_in(), ops::DType::kF32);
  const auto n_in = static_cast<size_t>(matrix.n_in());
  std::vector<float> rows(static_cast<size_t>(ops::kRowsPerPanel) * n_in);
  for (int64_t first = 0; first < matrix.n_out(); first += ops::kRowsPerPanel) {
    const int64_t count = std::min(ops::kRowsPerPanel, matrix.n_out() - first);
    for (int64_t i = 0; i < count; ++i) {
      const std::span row(rows.data() + static_cast<size_t>(i) * n_in, n_in);
      matrix.read_row(first + i, row.data());
      const float scale = gpu::e4m3_scale(row);
      for (float& value : row) {
        value = scale * gpu::e4m3_to_float(gpu::float_to_e4m3(value / scale));
      }
    }
    rounded.fill_rows(first, rows.data(), count, matrix.n_in(), ops::DType::kF32);
  }
  matrix = std::move(rounded);
}

// Of integers, or a tied head, whose rows are the embedding's only copy.
void keep_embedding(const ModelConfig& config, const ModelShard& shard, Weights& weights) {
  const auto hidden = static_cast<size_t>(config.hidden_dim);
  const auto num_rows = static_cast<size_t>(shard.vocab.size());
  weights.embedding_dtype = ops::DType::kF32;
  weights.embedding_bytes = num_rows * hidden * sizeof(float);
  weights.embedding = ops::allocate_bytes(weights.embedding_bytes);
  std::vector<float> values(hidden);
  for (size_t row = 0; row < num_rows; ++row) {
    weights.packed_embedding().read_row(static_cast<int64_t>(row), values.data());
    std::memcpy(weights.embedding.get() + row * hidden * sizeof(float),
                values.data(),
                hidden * sizeof(float));
  }
}

}  // namespace

void round_to_e4m3(const ModelConfig& config, const ModelShard& shard, Weights& weights) {
  if (weights.embedding == nullptr) keep_embedding(config, shard, weights);
  round_matrix(weights.head);
  round_matrix(weights.per_layer_projection);
  for (LayerWeights& layer : weights.layers) {
    for (ops::PackedMatrix* matrix : {&layer.qkv,
                                      &layer.v,
                                      &layer.q_b,
                                      &layer.o,
                                      &layer.gate_up,
                                      &layer.down,
                                      &layer.shared_gate_up,
                                      &layer.shared_down,
                                      &layer.per_layer_gate,
                                      &layer.per_layer_projection}) {
      round_matrix(*matrix);
    }
  }
}

}  // namespace outrider
