// What `bench serve` can be told. Names are those of vLLM's `bench serve`, as far as it has them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/settings/options.h"
#include "runtime/commands/bench/serve/serve_run.h"

namespace outrider {

struct ServeBenchOptions {
  std::string base_url;  // empty = host and port
  std::string backend = "openai";
  std::string endpoint;  // empty = the backend's
  std::string dataset = "random";
  std::string dataset_path;
  int32_t num_prompts = 0;        // 0 = a file's lines, else 1000
  int32_t random_input_len = 0;   // 0 = 1024, or what the model has room for
  int32_t random_output_len = 0;  // 0 = 128, or what the model has room for
  double random_range_ratio = 0;
  int32_t random_prefix_len = 0;
  int32_t output_len = 0;  // custom: longest answers where the file does not say; 0 = 128
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  int32_t max_concurrency = 0;  // 0 = no limit
  std::string tokenizer;
  bool ignore_eos = false;
  double temperature = 0;
  int32_t seed = 0;
  std::vector<std::string> goodput;
  std::vector<double> percents = {50, 95, 99};
  std::vector<std::string> headers;
  std::string extra_body;
  int32_t num_warmups = 1;
  int32_t ready_check_timeout_s = 60;
  double request_timeout_s = 600;
  bool continuous_usage = true;
};

std::vector<Option> serve_bench_options(ServeBenchOptions* options);

// Limits for goodput (DistServe, arXiv 2401.09670), milliseconds.
struct GoodputLimits {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
};

// The options that need more than a range, understood.
struct ServeSetup {
  // Infinity = all at once, 0 = as the trace has it.
  double rate_per_s = std::numeric_limits<double>::infinity();
  ServeTarget target;  // without the address
  bool chat = false;
  GoodputLimits goodput;
};

// is_rate_given: without a rate of its own a trace is replayed as it was. Throws Error naming the
// option. more_goodput: words that follow --goodput, as vLLM has them.
ServeSetup understand_serve_options(const ServeBenchOptions& options,
                                    bool is_rate_given,
                                    const std::vector<std::string>& more_goodput);

}  // namespace outrider
