// Whole jobs of the embedded pair on GPUs; under strict numerics for tests that hold several target
// ranks, threads or processes, against one.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu/gpu_testing.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {

class GpuJobs : public ::testing::Test {
 protected:
  void SetUp() override { set_gpu_provider(gpu::test_backend); }
  void TearDown() override { set_gpu_provider(gpu::cuda_backend); }
};

inline RunConfig small_config(int num_targets, int draft_len, const std::string& device) {
  RunConfig config = embedded_config(num_targets, draft_len);
  config.device = device;
  config.activation_dtype = "float32";
  config.max_model_len = 96;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 64;
  config.kv_cache_memory_bytes = 8 << 20;
  return config;
}

inline RunConfig gpu_job_config(int num_targets, const std::string& device_sums) {
  RunConfig config = small_config(num_targets, 0, "cuda");
  config.numerics = "strict";
  config.max_model_len = 128;
  config.max_num_batched_tokens = 24;  // prompts in pieces
  config.device_sums = device_sums;
  return config;
}

// Texts of 50 tokens; of 6 on the emulated device, where a token of several ranks takes seconds.
// OUTRIDER_TEST_TOKENS asks for another number.
inline int32_t num_gpu_job_tokens() {
  const char* const asked = std::getenv("OUTRIDER_TEST_TOKENS");
  if (asked != nullptr) return std::atoi(asked);
  return gpu::is_emulated() ? 6 : 50;
}

inline std::vector<Ask> gpu_job_asks() {
  const int32_t num_tokens = num_gpu_job_tokens();
  SamplingParams scored = seeded(0.9f, 11, num_tokens - 1);
  scored.num_logprobs = 2;
  return {{"Once upon a time there was a king who", greedy(num_tokens)}, {"In the forest", scored}};
}

// All that must be the same to the bit: tokens, and what the samples' log-probabilities were.
inline std::string record_of(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (const Outcome& outcome : outcomes) {
    for (const int32_t token : outcome.tokens) text += fmt::format("{} ", token);
    for (const TokenLogprobs& at : outcome.logprobs) {
      text += fmt::format("{:x}", std::bit_cast<uint32_t>(at.logprob));
      for (const auto& [token, logprob] : at.top) {
        text += fmt::format(",{}:{:x}", token, std::bit_cast<uint32_t>(logprob));
      }
      text += " ";
    }
    text += fmt::format("{}\n", outcome.error);
  }
  return text;
}

}  // namespace outrider::test
