// Runs whole jobs in this process (coordinator, targets and draft as threads) and collects what
// requests give.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/ranks/job/job.h"

namespace outrider::test {

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<TokenOrigin> origins;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<TokenLogprobs> stop_token_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  int32_t num_cached_tokens = 0;
  SpeculationStats stats;
};

// The embedded pair with a draft of this length, as small as tests want it; draft_len 0 = no draft.
RunConfig embedded_config(int num_targets, int draft_len);

// KV memory for so many blocks of the config's size on each target rank.
void limit_kv_blocks(RunConfig& config, int64_t num_blocks);

// A round waits for its draft however slow the machine is: for tests that count what was drafted.
RunConfig patient(RunConfig config);

// Submits a request (id, stream and noise seed are filled in) and returns its stream.
std::shared_ptr<ResultStream> submit(Engine& engine,
                                     std::vector<int32_t> prompt,
                                     SamplingParams params,
                                     std::vector<int32_t> resumed = {});
Outcome collect(ResultStream& stream);

// Runs the front end as a job of this config; fails the test when the job does not end with code 0.
void run_engine(const RunConfig& config,
                const std::function<void(const FrontEndContext&)>& front_end);

// All requests at once, in a front end or in one job; outcomes in order, of those that were taken.
struct Ask {
  std::string prompt;
  SamplingParams params;
  std::vector<int32_t> resumed = {};  // Request::resumed
};
std::vector<Outcome> ask_all(const FrontEndContext& context, const std::vector<Ask>& asks);
std::vector<Outcome> run_asks(const RunConfig& config, const std::vector<Ask>& asks);

// Of outcomes without an error.
std::vector<std::vector<int32_t>> tokens_of(const std::vector<Outcome>& outcomes);
int64_t num_accepted(const std::vector<Outcome>& outcomes);

// Bit for bit.
bool same_logprobs(const std::vector<TokenLogprobs>& a, const std::vector<TokenLogprobs>& b);

SamplingParams greedy(int32_t max_tokens);
SamplingParams sampled(float temperature, int32_t max_tokens);  // no seed
SamplingParams seeded(float temperature, uint64_t seed, int32_t max_tokens);

// Greedy and seeded in turns.
std::vector<Ask> mixed_asks(const std::vector<std::string>& prompts);

// An environment variable that is set for as long as this lives.
class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~SetVariable() { unsetenv(name_); }
  SetVariable(const SetVariable&) = delete;

 private:
  const char* const name_;
};

// ../shared/data or OUTRIDER_DATA; empty when absent.
std::string data_folder();

}  // namespace outrider::test
