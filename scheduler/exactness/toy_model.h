// A model small enough that its law is known exactly: the logits depend on the last two tokens.
// With it an independent, plain implementation of the processors and filters in long double, which
// shares no code with the sampling path. Called by law_sampler and by tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "scheduler/sampling/grammar_engine.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling_params.h"

namespace outrider {

class ToyModel {
 public:
  // Logits of about normal distribution; the same on every machine for the same seed.
  ToyModel(int32_t vocab_size, uint64_t seed, float spread);
  // The same model with every logit shifted by such noise: a draft of it.
  ToyModel perturbed(uint64_t seed, float spread) const;

  int32_t vocab_size() const { return vocab_size_; }
  std::span<const float> logits(std::span<const int32_t> context) const;

 private:
  int32_t vocab_size_;
  std::vector<float> table_;  // [vocab, vocab, vocab]
};

// What the target's law of the next token is under the parameters, by sorting and summing in long
// double.
std::vector<long double> exact_law(std::span<const float> logits,
                                   const SamplingParams& params,
                                   std::span<const int32_t> context,
                                   int32_t num_prompt_tokens);

// The law of the next num_tokens tokens, the first varying slowest.
std::vector<double> joint_law(const ToyModel& model,
                              const SamplingParams& params,
                              const std::vector<int32_t>& prompt,
                              int num_tokens);

// Of tokens that stand for the letters from "a" on: a "d" is followed by an "e" or an "f", and
// these come only so. exact_law() knows this grammar by itself, and no other one.
Grammar toy_grammar();
// An engine that knows those letters; null when the parameters have no grammar.
std::unique_ptr<const GrammarEngine> toy_grammar_engine(const SamplingParams& params);

// Near-equal cuts; some ranks get one token more, and none when there are more ranks than tokens.
VocabShard even_shard(int32_t vocab_size, int rank, int num_shards);

}  // namespace outrider
