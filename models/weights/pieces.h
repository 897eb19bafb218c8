// Which rows of which tensors become the matrices of attention and of a layer's experts, these in
// both forms of checkpoints: a tensor for each expert, or one for all of them. Used by the loader.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/checkpoint/weight_names.h"
#include "models/weights/weights.h"

namespace outrider {

// Rows of one projection that become consecutive rows of a packed matrix.
struct Piece {
  std::string name;  // without ".weight"
  int64_t n_rows;    // of the whole tensor
  Range rows;
  int64_t zeros_before = 0;  // rows left zero before it
};

inline Range scaled(Range range, int64_t factor) {
  return {range.begin * factor, range.end * factor};
}
inline Range shifted(Range range, int64_t by) { return {range.begin + by, range.end + by}; }

std::vector<Piece> qkv_pieces(const ModelConfig& config,
                              const ModelShard& shard,
                              const LayerNames& names);

// Of latent attention: this rank's heads of kv_b, a tensor of kv_b_rows() rows.
int64_t kv_b_rows(const ModelConfig& config);
TensorPart kv_b_part(const ModelConfig& config, const ModelShard& shard, const LayerNames& names);

// Makes kv_b_keys and kv_b_values of that part. They stay floats in a model of integers, too: the
// groups of the half that is turned over would run the wrong way.
void cut_kv_b(const ModelConfig& config,
              const std::vector<float>& part,
              ops::DType dtype,
              LayerWeights& out);

// For ops::ExpertMatrix: each expert begins with a panel.
std::vector<Piece> expert_gate_up_pieces(const ModelConfig& config,
                                         const ModelShard& shard,
                                         const LayerNames& names);
std::vector<Piece> expert_down_pieces(const ModelConfig& config, const LayerNames& names);
// And a row for the shared expert's gate.
std::vector<Piece> router_pieces(const ModelConfig& config, const LayerNames& names);

}  // namespace outrider
