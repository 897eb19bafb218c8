// See engine_harness.h.
#include "tests/ranks/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>

#include "models/forward/transformer.h"
#include "runtime/base/log.h"
#include "runtime/ranks/loading/cpu_dtypes.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider::test {

RunConfig embedded_config(int num_targets, int draft_len) {
  set_log_level(LogLevel::kError);
  RunConfig config;
  config.tensor_parallel_size = num_targets;
  config.threads = 1;
  config.max_num_seqs = 8;
  config.generation_config = "vllm";
  if (draft_len > 0) {
    config.speculative.model = "embedded";
    config.speculative.num_speculative_tokens = draft_len;
    config.speculative.async_drafting = "cache";
  }
  return config;
}

void limit_kv_blocks(RunConfig& config, int64_t num_blocks) {
  const ModelConfig model = model_config_of(config, Role::kTarget);
  const ModelShard shard =
      shard_model(model, 0, config.tensor_parallel_size, numerics_from_name(config.numerics));
  const size_t block_bytes =
      Transformer::kv_bytes_per_block(model, shard, config.block_size, kv_type_of(config, model));
  config.kv_cache_memory_bytes = num_blocks * static_cast<int64_t>(block_bytes);
}

RunConfig patient(RunConfig config) {
  config.speculative.draft_patience_s = 10;
  return config;
}

std::shared_ptr<ResultStream> submit(Engine& engine,
                                     std::vector<int32_t> prompt,
                                     SamplingParams params,
                                     std::vector<int32_t> resumed) {
  static std::atomic<uint64_t> next_noise_seed{1};
  Request request;
  request.id = engine.next_request_id();
  request.prompt = std::move(prompt);
  request.resumed = std::move(resumed);
  request.params = std::move(params);
  request.params.noise_seed =
      request.params.seed ? *request.params.seed : 0x9E3779B97F4A7C15ull * next_noise_seed++;
  request.stream = std::make_shared<ResultStream>();
  auto stream = request.stream;
  const AdmissionResult result = engine.submit(std::move(request));
  EXPECT_EQ(result.admission, Admission::kAccepted) << result.reason;
  return result.admission == Admission::kAccepted ? stream : nullptr;
}

Outcome collect(ResultStream& stream) {
  Outcome outcome;
  while (true) {
    auto event = stream.wait_next(std::chrono::seconds(120));
    if (!event) {
      ADD_FAILURE() << "no event in two minutes";
      return outcome;
    }
    outcome.tokens.insert(outcome.tokens.end(), event->tokens.begin(), event->tokens.end());
    outcome.origins.insert(outcome.origins.end(), event->origins.begin(), event->origins.end());
    outcome.logprobs.insert(outcome.logprobs.end(), event->logprobs.begin(), event->logprobs.end());
    outcome.prompt_logprobs.insert(outcome.prompt_logprobs.end(),
                                   event->prompt_logprobs.begin(),
                                   event->prompt_logprobs.end());
    if (event->finish_reason == FinishReason::kNone) continue;
    outcome.finish_reason = event->finish_reason;
    outcome.stop_token_logprobs = event->stop_token_logprobs;
    outcome.error = event->error;
    outcome.num_cached_tokens = event->num_cached_tokens;
    outcome.stats = event->stats;
    return outcome;
  }
}

void run_engine(const RunConfig& config,
                const std::function<void(const FrontEndContext&)>& front_end) {
  const int code = run_job(config, {}, [&](const FrontEndContext& context) {
    front_end(context);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

std::vector<Outcome> ask_all(const FrontEndContext& context, const std::vector<Ask>& asks) {
  std::vector<std::shared_ptr<ResultStream>> streams;
  for (const Ask& ask : asks) {
    streams.push_back(
        submit(context.engine, context.tokenizer->encode(ask.prompt), ask.params, ask.resumed));
  }
  std::vector<Outcome> outcomes;
  for (const auto& stream : streams) {
    if (stream != nullptr) outcomes.push_back(collect(*stream));
  }
  return outcomes;
}

std::vector<Outcome> run_asks(const RunConfig& config, const std::vector<Ask>& asks) {
  std::vector<Outcome> outcomes;
  run_engine(config, [&](const FrontEndContext& context) { outcomes = ask_all(context, asks); });
  return outcomes;
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<int32_t>> tokens;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    tokens.push_back(outcome.tokens);
  }
  return tokens;
}

int64_t num_accepted(const std::vector<Outcome>& outcomes) {
  int64_t sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.stats.num_accepted_tokens;
  return sum;
}

bool same_logprobs(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const TokenLogprobs& x, const TokenLogprobs& y) {
        return std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob) &&
               x.rank == y.rank && x.top == y.top;
      });
}

SamplingParams greedy(int32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

SamplingParams sampled(float temperature, int32_t max_tokens) {
  SamplingParams params;
  params.temperature = temperature;
  params.max_tokens = max_tokens;
  return params;
}

SamplingParams seeded(float temperature, uint64_t seed, int32_t max_tokens) {
  SamplingParams params = sampled(temperature, max_tokens);
  params.seed = seed;
  return params;
}

std::vector<Ask> mixed_asks(const std::vector<std::string>& prompts) {
  std::vector<Ask> asks;
  for (size_t i = 0; i < prompts.size(); ++i) {
    asks.push_back({prompts[i], i % 2 == 0 ? greedy(40) : seeded(0.8f, 300 + i, 40)});
  }
  return asks;
}

std::string data_folder() {
  if (const char* folder = std::getenv("OUTRIDER_DATA")) return folder;
  const std::string beside = std::string(OUTRIDER_SOURCE_DIR) + "/../shared/data";
  return std::filesystem::is_directory(beside) ? beside : "";
}

}  // namespace outrider::test
