// See machine_bench.h.
#include "runtime/commands/bench/machine/machine_bench.h"

#include <algorithm>
#include <thread>

#include "models/synthetic/synthetic.h"
#include "runtime/commands/bench/machine/forward_bench.h"
#include "runtime/commands/bench/machine/forward_profile.h"
#include "runtime/ops/bench_ops.h"
#include "runtime/ranks/loading/model_loader.h"

namespace outrider {
namespace {

int default_threads(const RunConfig& config) {
  if (config.threads > 0) return config.threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<Option> forward_options(ForwardBenchOptions& options, int32_t& steps) {
  return {
      text_option("shape", &options.shape, "tinyllama-1.1b, llama-3.2-1b, ..."),
      integer_option("steps", &steps, 1, 100000, "timed steps of every kind"),
      flag_option("json", &options.json, "print JSON"),
      flag_option(
          "profile", &options.profile, "instead: the time of each kind of op, by rows and context"),
  };
}

int run_forward(const CommandLine& line) {
  ForwardBenchOptions options;
  int32_t steps = options.steps;
  const std::vector<Option> own = forward_options(options, steps);
  const LoadedConfig loaded = load_config(line.arguments, option_rows(own), kNoWords);
  options.steps = steps;
  options.isa = loaded.config.isa;
  options.activations = activations_of(loaded.config, synthetic_shape(options.shape));
  options.num_threads = default_threads(loaded.config);
  (options.profile ? run_forward_profile : run_forward_bench)(options, stdout);
  return 0;
}

int run_ops(const CommandLine& line) {
  bool json = false;
  const Option flag = flag_option("json", &json, "print JSON");
  const LoadedConfig loaded = load_config(line.arguments, {&flag}, kNoWords);
  ops::run_ops_bench(default_threads(loaded.config), json, stdout);
  return 0;
}

}  // namespace

Command forward_bench() {
  return {"forward", "one model shape with random weights, without a job", run_forward};
}

Command ops_bench() { return {"ops", "the kernels one by one", run_ops}; }

}  // namespace outrider
