// The types of numbers that a rank on a CPU multiplies, and keeps in its KV memory.
#pragma once

#include "models/checkpoint/model_config.h"
#include "runtime/base/settings/run_config.h"
#include "runtime/ops/ops.h"

namespace outrider {

// What a model's products do on this machine under the config's activation_dtype. Of `auto` target
// ranks on different CPUs may think differently; the ready barrier finds out.
ops::Activations activations_of(const RunConfig& config, const ModelConfig& model);

// Of a model's keys and values under the config's kv_cache_dtype, with the same caution.
ops::KvType kv_type_of(const RunConfig& config, const ModelConfig& model);

}  // namespace outrider
