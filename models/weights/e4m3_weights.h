// The numbers that `quantization: fp8` computes with, for CPUs: there they are float32 matrices, so
// a pair's acceptance can be counted where no GPU is. They bring no speed, and take twice the
// memory of 16-bit weights.
#pragma once

#include "models/checkpoint/model_config.h"
#include "models/weights/weights.h"

namespace outrider {

// Every matrix of a product becomes scale * e4m3 with one scale per output, as on its way to a GPU
// (models/gpu/weight_memory.cpp); embedding rows, norms and biases stay.
void round_to_e4m3(const ModelConfig& config, const ModelShard& shard, Weights& weights);

}  // namespace outrider
