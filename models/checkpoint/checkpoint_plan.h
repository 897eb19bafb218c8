// Which tensors a Hugging Face checkpoint of a config has, in the order a step reads them. Used by
// whatever writes weights: synth and quantize. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/checkpoint/model_config.h"

namespace outrider {

struct TensorShape {
  std::string name;  // of the config's WeightNames
  std::vector<int64_t> shape;
};
// A tied head is the embedding and does not come again.
std::vector<TensorShape> checkpoint_tensors(const ModelConfig& config);

}  // namespace outrider
