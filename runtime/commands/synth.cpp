// synth: the synthetic pair as two Hugging Face folders, for benchmarks and for other programs on
// the same weights. One process; no other rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "models/synthetic/folder.h"
#include "runtime/base/error.h"
#include "runtime/base/files/new_file.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/synth/acceptance.h"
#include "runtime/ranks/loading/cpu_dtypes.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxTrials = 6;
constexpr int32_t kTokensPerText = 32;

struct SynthOptions {
  std::string shape = "tinyllama-1.1b";
  std::string output;
  std::string dtype = "bfloat16";
  int32_t draft_layers = 2;
  int32_t seed = 42;
  double alpha = 0.8;
  double epsilon = -1.0;  // negative: found from alpha
  double temperature = 0.0;
  int32_t positions = 2048;
};

std::vector<Option> rows_of(SynthOptions* options) {
  return {
      text_option("shape",
                  &options->shape,
                  "tinyllama-1.1b, llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, qwen3-4b, "
                  "qwen3-30b-a3b"),
      with_aliases(path_option("output", &options->output, "folder to make"), {"-o"}),
      number_option("alpha", &options->alpha, 0.01, 0.99, "acceptance wanted, found by measuring"),
      number_option("epsilon", &options->epsilon, 0.0, 1.0, "given instead of alpha"),
      choice_option("dtype", &options->dtype, {"bfloat16", "float16", "float32"}, "of the weights"),
      integer_option("draft_layers", &options->draft_layers, 1, 1024, "of the draft"),
      integer_option("seed", &options->seed, 0, INT32_MAX, "of the weights"),
      number_option("temperature", &options->temperature, 0.0, 10.0, "of the measured text"),
      integer_option(
          "positions", &options->positions, 0, 1 << 20, "measured; 0 = none, with epsilon")};
}

void check(const SynthOptions& options, const LoadedConfig& loaded) {
  if (options.output.empty()) {
    throw Error("usage: outrider synth --shape NAME --alpha A (or --epsilon E) -o DIR");
  }
  if (loaded.is_given("alpha") && loaded.is_given("epsilon")) {
    throw Error("alpha and epsilon are two ways to say the same; give one");
  }
  if (options.epsilon < 0 && options.positions < 2 * kTokensPerText) {
    throw Error(
        fmt::format("alpha is found by measuring: positions must be {} at least, or give "
                    "epsilon",
                    2 * kTokensPerText));
  }
}

ops::DType dtype_of(const std::string& name) {
  if (name == "float32") return ops::DType::kF32;
  return name == "float16" ? ops::DType::kF16 : ops::DType::kBF16;
}

// At most a line every two seconds.
template <typename Say>
auto seldom(Say say) {
  auto last = std::chrono::steady_clock::now();
  return [say, last](auto done, auto all) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::seconds(2)) return;
    last = now;
    say(done, all);
  };
}

std::function<void(uint64_t, uint64_t)> writing(const std::string& what) {
  return seldom([what](uint64_t done, uint64_t all) {
    log_info("writing {}: {} of {} MB", what, done >> 20, all >> 20);
  });
}

AcceptanceOptions acceptance_options(const SynthOptions& options,
                                     const RunConfig& config,
                                     const ModelConfig& target) {
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return {.num_threads = config.threads > 0 ? config.threads : cores,
          .isa = ops::isa_from_name(config.isa),
          .activations = activations_of(config, target),
          .num_texts = std::max(2, options.positions / kTokensPerText),
          .tokens_per_text = kTokensPerText,
          .temperature = options.temperature};
}

void print(const EpsilonTrial& trial, double temperature) {
  std::printf("epsilon %.5f: acceptance %.4f, standard error %.4f, %lld positions, %s\n",
              trial.epsilon,
              trial.acceptance.mean,
              trial.acceptance.standard_error,
              static_cast<long long>(trial.acceptance.num_positions),
              temperature == 0 ? "greedy" : fmt::format("temperature {}", temperature).c_str());
  std::fflush(stdout);
}

// The last one is what the pair is made with.
std::vector<EpsilonTrial> measured(const SynthOptions& options,
                                   const RunConfig& config,
                                   const ModelConfig& target,
                                   const SyntheticRecipe& recipe) {
  log_info("making {} in memory", options.shape);
  SyntheticPair pair(target, recipe, acceptance_options(options, config, target));
  const auto measure = [&](double epsilon) {
    pair.set_epsilon(epsilon);
    const Acceptance acceptance = pair.measure(seldom([epsilon](int32_t done, int32_t all) {
      log_info("measuring epsilon {:.5f}: {} of {} tokens of each text", epsilon, done, all);
    }));
    print({epsilon, acceptance}, options.temperature);
    return acceptance;
  };
  if (options.epsilon >= 0) return {{recipe.epsilon, measure(recipe.epsilon)}};
  return find_epsilon(options.alpha, recipe.epsilon, kMaxTrials, measure);
}

Json trial_json(const EpsilonTrial& trial) {
  return Json{{"epsilon", trial.epsilon},
              {"acceptance", trial.acceptance.mean},
              {"standard_error", trial.acceptance.standard_error},
              {"positions", trial.acceptance.num_positions}};
}

std::string report(const SynthOptions& options,
                   double epsilon,
                   const std::vector<EpsilonTrial>& trials,
                   const CommandLine& line) {
  Json json;
  json["shape"] = options.shape;
  json["dtype"] = options.dtype;
  json["seed"] = options.seed;
  json["draft_layers"] = options.draft_layers;
  json["epsilon"] = epsilon;
  json["alpha"] = options.epsilon < 0 ? Json(options.alpha) : Json(nullptr);
  json["temperature"] = options.temperature;
  json["measured"] = trials.empty() ? Json(nullptr) : trial_json(trials.back());
  json["trials"] = Json::array();
  for (const EpsilonTrial& trial : trials) json["trials"].push_back(trial_json(trial));
  json["command"] = fmt::format("outrider synth {}", fmt::join(line.arguments, " "));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int synth_command(const CommandLine& line) {
  SynthOptions options;
  const std::vector<Option> rows = rows_of(&options);
  const LoadedConfig loaded = load_config(line.arguments, option_rows(rows), kNoWords);
  check(options, loaded);
  const std::filesystem::path folder = options.output;
  check_new_folder(folder / "target");
  check_new_folder(folder / "draft");
  if (std::filesystem::exists(folder / "synthetic.json"))
    throw Error(fmt::format("{}: is there already", (folder / "synthetic.json").string()));

  const ModelConfig target = synthetic_shape(options.shape);
  if (options.draft_layers >= target.n_layers)
    throw Error(fmt::format("draft_layers: must be fewer than the target's {}", target.n_layers));
  const ModelConfig draft = first_layers(target, options.draft_layers);
  const int32_t num_later_layers = target.n_layers - draft.n_layers;
  SyntheticRecipe recipe;
  recipe.seed = static_cast<uint64_t>(options.seed);
  recipe.num_strong_layers = draft.n_layers;
  recipe.dtype = dtype_of(options.dtype);
  recipe.epsilon =
      options.epsilon >= 0 ? options.epsilon : guess_epsilon(options.alpha, num_later_layers);
  std::vector<EpsilonTrial> trials;
  if (options.positions > 0) trials = measured(options, loaded.config, target, recipe);
  if (!trials.empty()) recipe.epsilon = trials.back().epsilon;

  write_synthetic_folder(folder / "draft", draft, recipe, writing("draft"));
  write_synthetic_folder(folder / "target", target, recipe, writing("target"));
  write_new_file(folder / "synthetic.json", report(options, recipe.epsilon, trials, line));
  std::printf("%s and %s: epsilon %.5f",
              (folder / "target").c_str(),
              (folder / "draft").c_str(),
              recipe.epsilon);
  if (!trials.empty()) std::printf(", acceptance %.4f", trials.back().acceptance.mean);
  std::printf("\n");
  return 0;
}

}  // namespace outrider
