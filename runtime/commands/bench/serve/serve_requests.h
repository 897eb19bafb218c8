// From the options of `bench serve` to what a run sends: lengths, times, prompts and bodies. A
// seed gives the same ones on every machine up to the last bits of libm. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/text/tokenizer.h"
#include "runtime/commands/bench/prompt_files.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_run.h"

namespace outrider {

// All requests of the workload. max_model_len bounds random lengths that were not given; 0 = not
// known. Throws Error naming file and line.
std::vector<RequestShape> load_shapes(const ServeBenchOptions& options, int32_t max_model_len);

// Seconds from the run's start, ascending. rate: requests/s; infinity: all 0. burstiness: shape of
// the gaps' gamma law, whose mean is 1 / rate: 1 = Poisson, below 1 = bursts, above 1 = more even,
// infinity = constant gaps. As vLLM does, the gaps are scaled so that the last request leaves at
// count / rate: the offered load is the one asked for, whatever the seed.
std::vector<double> arrival_times(double rate, double burstiness, uint64_t seed, size_t count);

// A run of random tokens. Equal keys give equal beginnings, whatever the lengths.
struct PromptPiece {
  uint64_t key = 0;
  int32_t num_tokens = 0;
};

struct ServePrompt {
  std::string text;
  int32_t num_tokens = 0;  // with a tokenizer as it counts the text, else as asked for
};

class PromptMaker {
 public:
  // Words that are one token each of the tokenizer; null: common English words, taken for one token
  // each. Throws Error when the tokenizer has too few.
  explicit PromptMaker(std::shared_ptr<const Tokenizer> tokenizer);

  // One piece after the other. With a tokenizer, `own` is cut or filled up so that the text has the
  // sum of the pieces' tokens, special tokens counted.
  ServePrompt make(const PromptPiece& shared, PromptPiece own) const;

 private:
  void append(const PromptPiece& piece, std::string* text) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> words_;  // each with the space before it
};

// What the requests of one run have in common.
struct RunSpec {
  const ServeBenchOptions& options;
  std::string model;
  bool chat = false;
  double rate_per_s = 0;  // 0 = the trace's times
  // Made prompts of runs with different salts have nothing in common, so that a server's prefix
  // cache does not carry over.
  uint64_t salt = 0;
};

// The members of extra_body are merged in (RFC 7386: null takes a member away).
std::string request_body(const RunSpec& run, const ServePrompt& prompt, int32_t output_len);

std::vector<PlannedRequest> plan_run(const std::vector<RequestShape>& shapes,
                                     const RunSpec& run,
                                     const PromptMaker& prompts);

}  // namespace outrider
