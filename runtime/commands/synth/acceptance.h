// How often the draft of a synthetic pair is right, measured with the models themselves, and the
// epsilon at which it is right as often as wanted. Used by `synth`; one process, one thread beside
// the kernels'.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"
#include "runtime/ops/ops.h"

namespace outrider {

// Mean over positions of sum over tokens of min(target_prob, draft_prob); at temperature 0 the
// share of positions where both have the same greatest logit. Texts are independent, so the error
// is that of the mean of their means.
struct Acceptance {
  double mean = 0;
  double standard_error = 0;
  int64_t num_positions = 0;
};

struct AcceptanceOptions {
  int num_threads = 1;
  ops::Isa isa = ops::best_isa();
  ops::Activations activations = ops::Activations::kF32;
  int32_t num_texts = 64;
  int32_t tokens_per_text = 32;
  double temperature = 0;
};

// A target whose first layers, with the same embedding, norm and head, are the draft: the weights
// are in memory once.
class SyntheticPair {
 public:
  // recipe.num_strong_layers, fewer than the target's, is the draft. Throws Error when the machine
  // has not enough memory.
  SyntheticPair(const ModelConfig& target,
                const SyntheticRecipe& recipe,
                const AcceptanceOptions& options);
  ~SyntheticPair();

  // Makes the output projections of the later layers anew; nothing else depends on it.
  void set_epsilon(double epsilon);

  // The target writes num_texts texts side by side, each after a few random tokens (the same ones
  // at every call); after each token both are asked. progress: tokens of each text done and in all.
  Acceptance measure(const std::function<void(int32_t, int32_t)>& progress = {});

  // Weights, KV and buffers.
  static size_t bytes_needed(const ModelConfig& target,
                             const SyntheticRecipe& recipe,
                             const AcceptanceOptions& options);

 private:
  std::vector<int32_t> next_tokens(std::span<const float> target_logits,
                                   std::span<const float> draft_logits,
                                   int32_t position,
                                   std::vector<double>& sums) const;

  ModelConfig target_config_;
  ModelConfig draft_config_;
  SyntheticRecipe recipe_;
  AcceptanceOptions options_;
  ops::Context context_;
  std::unique_ptr<TargetGroup> group_;
  std::shared_ptr<Weights> weights_;
  std::unique_ptr<Transformer> target_;
  std::unique_ptr<Transformer> draft_;
};

struct EpsilonTrial {
  double epsilon = 0;
  Acceptance acceptance;
};

// Measures at one epsilon after another (acceptance falls as epsilon grows, and is 1 at 0) until
// one lies within 0.01 of alpha or within its own standard error; the last is the nearest, at most
// max_trials are made. Throws Error when even epsilon 1 is accepted more often.
std::vector<EpsilonTrial> find_epsilon(double alpha,
                                       double first_guess,
                                       int max_trials,
                                       const std::function<Acceptance(double)>& measure);

// Where to begin: from what was measured on the 1.1B llama shape with 2 of 22 layers as draft.
double guess_epsilon(double alpha, int32_t num_later_layers);

}  // namespace outrider
