// Models without files: the shapes of well-known models by name, and weights drawn from a counter
// per tensor name, so any rank of any sharding, and any other program that follows the recipe,
// makes the same elements. For benchmarks and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/weights/weights.h"

namespace outrider {

// tinyllama-1.1b, llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, qwen3-4b, qwen3-30b-a3b; "NAME@L" is
// its first L layers, which with the weights below is a draft of NAME. The first two layers of
// qwen3-30b-a3b have no experts here, so "@2" is a dense draft. Throws Error naming the known ones.
ModelConfig synthetic_shape(const std::string& name);
// The same; of a dense family when none of these layers has experts.
ModelConfig first_layers(ModelConfig config, int32_t n_layers);

// Element i of a tensor: u = mix(key + (i + 1) * 0x9E3779B97F4A7C15) >> 40 with key =
// mix(fnv1a64(name) + seed) and the splitmix64 finaliser mix; the weight is ((u + 0.5) / 2^24 * 2 -
// 1) * (sigma * sqrt(3)), uniform of standard deviation sigma, rounded to float and then to dtype.
// sigma: embedding 1 (5/sqrt(hidden) when it is also the head); q, k sqrt(3)/sqrt(hidden); v, gate,
// up, router 1/sqrt(hidden); o e/sqrt(heads * head_dim); down e/sqrt(ffn), of experts
// e sqrt(chosen)/sqrt(ffn), since about so many equal shares are added up; head 5/sqrt(hidden);
// biases 0.1; norms are 1. e is 1 in the first num_strong_layers and epsilon in the others: the
// smaller epsilon is, the more those first layers alone, as a draft, agree with the whole.
struct SyntheticRecipe {
  uint64_t seed = 42;
  double epsilon = 0.04;
  int32_t num_strong_layers = 2;
  int32_t num_silent_ids =
      259;  // zero rows of the head: special and byte tokens are hardly ever emitted
  ops::DType dtype = ops::DType::kBF16;
};
// config must outlive the source.
std::unique_ptr<TensorSource> make_synthetic_source(const ModelConfig& config,
                                                    const SyntheticRecipe& recipe);
std::unique_ptr<Weights> synthetic_weights(const ModelConfig& config,
                                           const ModelShard& shard,
                                           const SyntheticRecipe& recipe,
                                           const ops::ThreadPlan& threads = 0);

}  // namespace outrider
