// From the options of `bench serve` to the requests of a run: lengths, times, prompts and bodies. A
// seed gives the same ones on every machine up to the last bits of libm. Pure but for the files
// that load_shapes() reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_run.h"
#include "runtime/commands/bench/serve/serve_traces.h"

namespace outrider {

struct ArrivalSpec {
  double rate_per_s = 0;  // infinity = all at once
  // Shape of the gaps' gamma law, whose mean is 1 / rate: 1 = Poisson, below 1 = bursts, above 1 =
  // more even, infinity = constant gaps.
  double burstiness = 1;
  uint64_t seed = 0;
};

// Seconds from the run's start, ascending. As vLLM does, the gaps are scaled so that the last
// request leaves at count / rate: the offered load is the one asked for, whatever the seed.
std::vector<double> arrival_times(const ArrivalSpec& spec, size_t count);

struct ServePrompt {
  std::string text;
  int32_t num_tokens = 0;  // with a tokenizer as it counts the text, else as asked for
};

class PromptMaker {
 public:
  // Words that are one token each of the tokenizer; null: common English words, taken for one token
  // each. Throws Error when the tokenizer has too few.
  explicit PromptMaker(std::shared_ptr<const Tokenizer> tokenizer);

  // The pieces one after the other. With a tokenizer, the last one is cut or filled up so that the
  // text has the sum of the pieces' tokens, special tokens counted.
  ServePrompt make(const std::vector<PromptPiece>& pieces) const;

 private:
  void append(const PromptPiece& piece, std::string* text) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::string> words_;  // each with the space before it
};

// One request before it has a time and words.
struct RequestShape {
  TraceRow row;      // lengths, scaled; of a trace also its time and hash ids
  std::string text;  // custom: the prompt
};

// Lines of text, or JSON lines with "prompt" or "turns" (the first) and perhaps "output_tokens" (as
// vLLM's custom data sets) or "max_tokens"; output_len is 0 where none is said. Throws Error naming
// `origin` and the line.
std::vector<RequestShape> parse_prompt_lines(std::string_view text, const std::string& origin);

// All requests of the workload, the same for each variant. max_model_len bounds random lengths that
// were not given; 0 = not known. Throws Error naming file and line.
std::vector<RequestShape> load_shapes(const ServeBenchOptions& options, int32_t max_model_len);

// What every body has in common.
struct BodySpec {
  std::string model;
  bool chat = false;
  bool ignore_eos = false;
  bool continuous_usage = true;
  double temperature = 0;
  // JSON objects that are merged in, in this order (RFC 7386: null takes a member away); empty =
  // none.
  std::string extra_body;
  std::string variant_body;
};

// Throws Error naming the option when it is not a JSON object.
void check_body_option(const std::string& json, const char* option);

std::string request_body(const BodySpec& spec, const ServePrompt& prompt, int32_t output_len);

// A run: what is particular to it.
struct RunSpec {
  ArrivalSpec arrivals;  // rate 0 = the trace's times
  // Made prompts of runs with different salts have nothing in common, so that a server's prefix
  // cache does not carry over.
  uint64_t salt = 0;
  double length_scale = 1;  // of the trace's blocks
  int32_t random_prefix_len = 0;
};

std::vector<PlannedRequest> plan_run(std::span<const RequestShape> shapes,
                                     const RunSpec& run,
                                     const BodySpec& body,
                                     const PromptMaker& prompts);

}  // namespace outrider
