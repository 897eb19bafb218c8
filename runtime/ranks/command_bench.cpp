// bench: measurements. decode runs the same prompts with speculation off and on, in turns, in one
// job; forward and ops measure one model shape and the kernels without a job.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "models/forward_bench.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/ops/bench_ops.h"
#include "runtime/ranks/commands.h"
#include "runtime/ranks/decode_bench.h"
#include "runtime/ranks/job.h"

namespace outrider {
namespace {

int default_threads(const RunConfig& config) {
  if (config.threads > 0) return config.threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int bench_decode(const CommandLine& line, const std::vector<std::string>& arguments) {
  DecodeBenchOptions options;
  const std::vector<Option> own = {
      text_option("prompts",
                  &options.prompts_file,
                  "a text file of one prompt a line, or JSON lines with prompt or turns"),
      integer_option("num_prompts", &options.num_prompts, 1, 100000, "how many of them"),
      integer_option("max_tokens", &options.max_tokens, 1, 100000, "tokens per answer"),
      integer_option("concurrency", &options.concurrency, 1, 4096, "requests in flight"),
      integer_option("repeat",
                     &options.num_repeats,
                     1,
                     1000,
                     "passes over the prompts, speculation off and on in turns"),
      number_option("temperature", &options.temperature, 0, 10, "0 = greedy"),
      text_option("seed",
                  &options.seed,
                  "a seed makes sampled text the same with speculation on and off; empty = none"),
      text_option("json", &options.json_file, "also write the result as JSON to this file"),
  };
  const LoadedConfig loaded = load_config(arguments, option_rows(own));
  set_log_level(log_level_from_name(loaded.config.log_level));
  return run_job(loaded.config, line.argc, line.argv, [&](const FrontEndContext& context) {
    return run_decode_bench(context, options);
  });
}

int bench_forward(const std::vector<std::string>& arguments) {
  ForwardBenchOptions options;
  int32_t steps = options.steps;
  const std::vector<Option> own = {
      text_option("shape", &options.shape, "tinyllama-1.1b, llama-3.2-1b, ..."),
      integer_option("steps", &steps, 1, 100000, "timed steps of every kind"),
      flag_option("json", &options.json, "print JSON"),
  };
  const LoadedConfig loaded = load_config(arguments, option_rows(own));
  options.steps = steps;
  options.isa = loaded.config.isa;
  options.num_threads = default_threads(loaded.config);
  run_forward_bench(options, stdout);
  return 0;
}

int bench_ops(const std::vector<std::string>& arguments) {
  bool json = false;
  const Option flag = flag_option("json", &json, "print JSON");
  const LoadedConfig loaded = load_config(arguments, {&flag});
  ops::run_ops_bench(default_threads(loaded.config), json, stdout);
  return 0;
}

}  // namespace

int bench_command(const CommandLine& line) {
  const std::string kind = line.arguments.empty() ? "" : line.arguments[0];
  if (kind.empty()) throw Error("usage: outrider bench decode|forward|ops [options]");
  const std::vector<std::string> rest(line.arguments.begin() + 1, line.arguments.end());
  if (kind == "decode") return bench_decode(line, rest);
  if (kind == "forward") return bench_forward(rest);
  if (kind == "ops") return bench_ops(rest);
  throw Error(fmt::format("unknown benchmark '{}'; there are decode, forward and ops", kind));
}

}  // namespace outrider
