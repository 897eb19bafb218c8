// Tensors of a checkpoint that the forward pass leaves out: refused where they change the numbers,
// as a config.json does not fit its weights then. Called once by each rank that loads.
#pragma once

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/shard.h"

namespace outrider {

// Throws Error naming the tensor: a head beside a tied embedding with other values (compared in the
// given rows), a bias that is not zero, a norm or the like that the family does not have.
void refuse_unused_tensors(const Checkpoint& checkpoint, const ModelConfig& config, Range vocab);

// Says in the log which tensors are left out: layers behind the last one, and heads, that predict
// more tokens (MTP).
void log_left_out(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace outrider
