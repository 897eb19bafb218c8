// How a shard's matrices lie on a GPU: sizes with padding, which output and input of the file goes
// where, slices of sums. Pure arithmetic; what weights.h fills and transformer.h multiplies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/tiles.h"

namespace outrider {

// `count` neighbours on the device, from `to` on: in the file's matrix of this shard from `from`
// on, `step` apart.
struct Stretch {
  int32_t from = 0;
  int32_t to = 0;
  int32_t count = 0;
  int32_t step = 1;
};

struct GpuMatrixLayout {
  int32_t n_out = 0;  // on the device
  int32_t n_in = 0;
  gpu::RowOrder order = gpu::RowOrder::kPlain;
  int32_t span = 0;              // of the order
  std::vector<Stretch> outputs;  // where the file's go; what they leave free is zeros
  std::vector<Stretch> inputs;   // the same
  gpu::SliceEnds slices;         // num_slices 0: numerics strict does not say; device's inputs
};

// Of a layer with experts. Their matrices hold all of them, each from a whole tile of outputs on.
struct GpuExpertLayout {
  int32_t ffn = 0;         // of an expert, on the device
  int32_t shared_ffn = 0;  // 0: there is no shared one
  GpuMatrixLayout gate_up;
  GpuMatrixLayout gate_up_bias;  // as the vector lies in the file
  GpuMatrixLayout down;
  GpuMatrixLayout down_bias;
  GpuMatrixLayout shared_gate_up;
  GpuMatrixLayout shared_down;

  std::vector<const GpuMatrixLayout*> matrices() const {
    return {&gate_up, &down, &shared_gate_up, &shared_down};
  }
};

// Of a layer.
struct GpuLayout {
  // Feed-forward units with the padding between: every slice of down's sums is whole tiles, so that
  // it has the same bits on any number of ranks.
  int32_t ffn = 0;
  // The products that make queries, keys and values turn and store them themselves.
  bool qkv_is_fused = false;
  bool mlp_is_fused = false;  // the product of gate and up ends in SwiGLU
  GpuMatrixLayout qkv;        // of latent attention the key: what turns of it, then the latent
  GpuMatrixLayout q_a;  // of latent attention, of which the next one makes queries; else of hidden
  GpuMatrixLayout q;
  GpuMatrixLayout o;
  GpuMatrixLayout gate_up;
  GpuMatrixLayout down;
  // Of per-layer inputs, whole on every rank.
  GpuMatrixLayout per_layer_gate;
  GpuMatrixLayout per_layer_projection;
  int64_t kv_b_elements = 0;  // of latent attention: the matrices that each head has of its own
  // Of the model.
  GpuMatrixLayout per_layer_model_projection;
  GpuMatrixLayout head;
  GpuExpertLayout experts;  // in place of gate_up and down, or beside them

  // The layer's, of which some may be empty.
  std::vector<const GpuMatrixLayout*> matrices() const {
    return {&qkv, &q_a, &q, &o, &gate_up, &down, &per_layer_gate, &per_layer_projection};
  }
};
GpuLayout gpu_layout(const ModelConfig& config, const ModelShard& shard, int32_t layer);

}  // namespace outrider
