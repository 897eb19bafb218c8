// A model by itself, outside the engine: the exact next-token distribution that tests compare
// samples with.
#pragma once

#include <memory>
#include <vector>

#include "runtime/ranks/model_loader.h"

namespace outrider::test {

class ModelProbe {
 public:
  // The target or the draft of a config, on one rank.
  ModelProbe(const RunConfig& config, Role role);

  // [tokens.size()][vocab]: softmax of the logits after each token, in double.
  std::vector<std::vector<double>> next_token_probs(const std::vector<int32_t>& tokens);

 private:
  LoadedModel loaded_;
  std::vector<int32_t> blocks_;
};

}  // namespace outrider::test
