// Which rows of which tensors become the matrices of attention. Used by the loader. Pure.
#pragma once

#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/checkpoint/weight_names.h"
#include "models/weights/expert_pieces.h"
#include "models/weights/weights.h"

namespace outrider {

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

}  // namespace outrider
