// From the options of `bench serve` to the requests of a run: lengths, times, prompts and bodies.
// Pure but for the file that load_shapes() reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_prompts.h"
#include "runtime/commands/bench/serve/serve_runner.h"
#include "runtime/commands/bench/serve/serve_traces.h"

namespace outrider {

// One request before it has a time and words.
struct RequestShape {
  TraceRow row;      // lengths, scaled; of a trace also its time and hash ids
  std::string text;  // custom: the prompt
};

// All requests of the workload, the same for every load and variant. max_model_len bounds random
// lengths that were not given; 0 = not known. Throws Error naming file and line.
std::vector<RequestShape> load_shapes(const ServeBenchOptions& options,
                                      const ServeSetup& setup,
                                      int32_t max_model_len);

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
  ServeLoad load;
  double burstiness = 1;
  uint64_t seed = 0;  // of the arrivals
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
