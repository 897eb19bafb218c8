// Tensors of a checkpoint that the forward pass would leave out although they change the numbers: a
// config.json that does not fit its weights. Called once by each rank that loads.
#pragma once

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/shard.h"

namespace outrider {

// Throws Error naming the tensor: a head beside a tied embedding with other values (compared in the
// given rows), a bias that is not zero, a norm or the like that the family does not have.
void refuse_unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config, Range vocab);

}  // namespace outrider
