// What the benchmarks that run a job, and verify, have in common: prompts, and requests whose
// rounds are watched. Front ends on rank 0; any one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/ranks/job/job.h"

namespace outrider {

// The first num_prompts of a text file of one prompt a line, or JSON lines with "prompt" or
// "turns"; without a file a few of our own. Throws Error when there are none.
std::vector<std::string> read_bench_prompts(const std::string& file, int32_t num_prompts);

// A request with its id and prompt; the prompt is cut so that max_tokens have room. The caller
// fills in the other parameters.
Request bench_request(const FrontEndContext& context,
                      const std::string& prompt,
                      int32_t max_tokens);

// Gives the stream of the answer. Throws Error when the engine does not take it.
std::shared_ptr<ResultStream> submit_bench_request(const FrontEndContext& context, Request request);

// A round that had draft tokens.
struct BenchRound {
  int32_t draft_len = 0;
  int32_t num_accepted = 0;
};

struct BenchAnswer {
  std::vector<int32_t> tokens;
  std::vector<TokenOrigin> origins;            // one per token
  std::vector<TokenLogprobs> logprobs;         // one per token when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // of prompt[1..] when asked for
  std::vector<BenchRound> rounds;
  SpeculationStats stats;
  int num_prompt_tokens = 0;
  double ttft_s = 0;    // from submission to the first token's event
  double decode_s = 0;  // from the first token's event to the last
  int num_decoded = 0;  // tokens in that time
};

// Waits for the whole answer, ttft_s from now. Throws Error when the request failed or a signal
// wants us to stop.
BenchAnswer collect_bench_answer(ResultStream& stream);

struct BenchLoad {
  std::vector<BenchAnswer> answers;  // as the requests
  double wall_s = 0;                 // from the first submission to the last answer
};

// Submits the requests in order, at most so many in flight (0 = all at once); the next as soon as
// one is done. Throws as the two above.
BenchLoad run_bench_requests(const FrontEndContext& context,
                             std::vector<Request> requests,
                             int32_t concurrency);

}  // namespace outrider
