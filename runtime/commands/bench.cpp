// bench: measurements. decode runs the same prompts with speculation off and on, in turns, in one
// job; theory sets a job's pair and simulated ones beside the papers' formulas; forward and ops
// measure one model shape and the kernels without a job.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "models/forward_bench.h"
#include "models/forward_profile.h"
#include "models/synthetic.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/commands/bench/decode_bench.h"
#include "runtime/commands/bench/theory_bench.h"
#include "runtime/commands/commands.h"
#include "runtime/ops/bench_ops.h"
#include "runtime/ranks/job.h"
#include "runtime/ranks/model_loader.h"

namespace outrider {
namespace {

int default_threads(const RunConfig& config) {
  if (config.threads > 0) return config.threads;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<Option> decode_options(DecodeBenchOptions& options) {
  return {
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
}

std::vector<Option> theory_options(TheoryBenchOptions& options) {
  return {
      integer_option("rounds",
                     &options.num_rounds,
                     2,
                     100000000,
                     "rounds of each of the 120 simulated figures (10000)"),
      text_option("prompts",
                  &options.prompts_file,
                  "for the pair: a text file of one prompt a line, or JSON lines"),
      integer_option("num_prompts", &options.num_prompts, 1, 100000, "how many of them (8)"),
      integer_option("max_tokens", &options.max_tokens, 2, 100000, "tokens per answer (128)"),
      number_option("temperature", &options.temperature, 0, 10, "of the pair (1); 0 = greedy"),
      integer_option("seed", &options.seed, 0, INT32_MAX, "of all noise (1)"),
      text_option("json", &options.json_file, "also write everything as JSON to this file"),
      text_option("svg", &options.svg_file, "also draw measured points and formula lines"),
  };
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

// Said before minutes of measurement, not after them.
void check_folder_of(const std::string& file) {
  const auto folder = std::filesystem::path(file).parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder)) return;
  throw Error(fmt::format("there is no folder {} to write {} into", folder.string(), file));
}

bool is_given(const LoadedConfig& loaded, const std::string& key) {
  return std::any_of(loaded.given.begin(), loaded.given.end(), [&](const GivenValue& given) {
    return given.key == key;
  });
}

int bench_theory(const CommandLine& line, const std::vector<std::string>& arguments) {
  constexpr int32_t kDraftLen = 8;  // long enough to see the formula bend
  TheoryBenchOptions options;
  const std::vector<Option> own = theory_options(options);
  LoadedConfig loaded = load_config(arguments, option_rows(own));
  set_log_level(log_level_from_name(loaded.config.log_level));
  for (const std::string& file : {options.json_file, options.svg_file}) check_folder_of(file);
  SpeculativeConfig& speculative = loaded.config.speculative;
  if (!is_given(loaded, "speculative_config.num_speculative_tokens"))
    speculative.num_speculative_tokens = kDraftLen;
  if (speculative.method == "auto" && loaded.config.model == "embedded" &&
      speculative.model.empty()) {
    speculative.model = "embedded";
  }
  if (speculative.method == "none" || (speculative.method == "auto" && speculative.model.empty()))
    throw Error("bench theory needs a draft: give --speculative-config.model");
  return run_job(loaded.config, line.argc, line.argv, [&](const FrontEndContext& context) {
    return run_theory_bench(context, options);
  });
}

int bench_decode(const CommandLine& line, const std::vector<std::string>& arguments) {
  DecodeBenchOptions options;
  const std::vector<Option> own = decode_options(options);
  LoadedConfig loaded = load_config(arguments, option_rows(own));
  set_log_level(log_level_from_name(loaded.config.log_level));
  // The same prompts with speculation off and on: the second must not profit from the first.
  if (!is_given(loaded, "enable_prefix_caching")) loaded.config.enable_prefix_caching = false;
  return run_job(loaded.config, line.argc, line.argv, [&](const FrontEndContext& context) {
    return run_decode_bench(context, options);
  });
}

int bench_forward(const std::vector<std::string>& arguments) {
  ForwardBenchOptions options;
  int32_t steps = options.steps;
  const std::vector<Option> own = forward_options(options, steps);
  const LoadedConfig loaded = load_config(arguments, option_rows(own));
  options.steps = steps;
  options.isa = loaded.config.isa;
  options.activations = activations_of(loaded.config, synthetic_shape(options.shape));
  options.num_threads = default_threads(loaded.config);
  (options.profile ? run_forward_profile : run_forward_bench)(options, stdout);
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
  if (kind.empty()) throw Error("usage: outrider bench decode|theory|forward|ops [options]");
  const std::vector<std::string> rest(line.arguments.begin() + 1, line.arguments.end());
  if (kind == "decode") return bench_decode(line, rest);
  if (kind == "theory") return bench_theory(line, rest);
  if (kind == "forward") return bench_forward(rest);
  if (kind == "ops") return bench_ops(rest);
  throw Error(
      fmt::format("unknown benchmark '{}'; there are decode, theory, forward and ops", kind));
}

std::string bench_help() {
  DecodeBenchOptions decode;
  TheoryBenchOptions theory;
  ForwardBenchOptions forward;
  int32_t steps = 0;
  const std::vector<Option> decode_rows = decode_options(decode);
  const std::vector<Option> theory_rows = theory_options(theory);
  const std::vector<Option> forward_rows = forward_options(forward, steps);
  return "usage: outrider bench KIND [options]\n\n"
         "decode: the same prompts with speculation off and on\n" +
         help_text(option_rows(decode_rows)) +
         "\ntheory: the founding papers' formulas beside what is measured\n" +
         help_text(option_rows(theory_rows)) + "\nforward: one model shape without a job\n" +
         help_text(option_rows(forward_rows)) +
         "\nops: the kernels\n  --json\n\nand the options of a run, see outrider --help\n";
}

}  // namespace outrider
