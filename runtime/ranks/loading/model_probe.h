// A model by itself, outside the engine: its exact next-token distribution, which counts are
// compared with. Used by `synth` and the tests, on a thread of rank 0; it has its own copy of the
// weights.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/ranks/loading/model_loader.h"

namespace outrider {

class ModelProbe {
 public:
  // The whole target or the whole draft of a config, with KV for one sequence.
  ModelProbe(const RunConfig& config, Role role, int num_threads = 1);

  int32_t vocab_size() const { return loaded_.model->config().vocab_size; }

  // visit(i, logits [vocab_size]) for the token after tokens[0 .. i], i from `first` on; the logits
  // are valid during the call. At most max_model_len tokens.
  using Visit = std::function<void(size_t, std::span<const float>)>;
  void visit_logits(std::span<const int32_t> tokens, size_t first, const Visit& visit);

  // [tokens.size()][vocab]: softmax of the logits after each token, in double.
  std::vector<std::vector<double>> next_token_probs(const std::vector<int32_t>& tokens);

 private:
  LoadedModel loaded_;
  std::vector<int32_t> blocks_;
};

// softmax(logits / temperature) in double; temperature 0: all of it on the first of the greatest.
std::vector<double> softmax(std::span<const float> logits, double temperature);

}  // namespace outrider
