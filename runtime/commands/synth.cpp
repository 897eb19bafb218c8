// synth: the synthetic pair as two Hugging Face folders, for benchmarks against other programs on
// the same weights. One process; no other rank.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "models/synthetic_folder.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/commands/commands.h"

namespace outrider {
namespace {

struct SynthOptions {
  std::string shape = "tinyllama-1.1b";
  std::string output;
  std::string dtype = "bfloat16";
  int32_t draft_layers = 2;
  int32_t seed = 42;
  double epsilon = -1.0;
};

std::vector<Option> rows_of(SynthOptions* options) {
  return {
      text_option("shape", &options->shape, "tinyllama-1.1b, llama-3.2-1b, llama-3.1-8b, qwen3-4b"),
      with_aliases(text_option("output", &options->output, "folder to make"), {"-o"}),
      choice_option("dtype", &options->dtype, {"bfloat16", "float16", "float32"}, "of the weights"),
      integer_option("draft_layers", &options->draft_layers, 1, 1024, "of the draft (2)"),
      integer_option("seed", &options->seed, 0, INT32_MAX, "of the weights (42)"),
      number_option("epsilon", &options->epsilon, 0.0, 1.0, "strength of the later layers")};
}

ops::DType dtype_of(const std::string& name) {
  if (name == "float32") return ops::DType::kF32;
  return name == "float16" ? ops::DType::kF16 : ops::DType::kBF16;
}

std::function<void(uint64_t, uint64_t)> progress_of(const std::string& what) {
  auto last = std::chrono::steady_clock::now();
  return [what, last](uint64_t done, uint64_t all) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::seconds(2)) return;
    last = now;
    log_info("writing {}: {} of {} MB", what, done >> 20, all >> 20);
  };
}

}  // namespace

int synth_command(const CommandLine& line) {
  SynthOptions options;
  const std::vector<Option> rows = rows_of(&options);
  load_config(line.arguments, option_rows(rows));
  if (options.output.empty()) throw Error("usage: outrider synth --shape NAME --epsilon E -o DIR");
  const ModelConfig target = synthetic_shape(options.shape);
  ModelConfig draft = target;
  draft.n_layers = options.draft_layers;
  SyntheticRecipe recipe;
  recipe.seed = static_cast<uint64_t>(options.seed);
  recipe.num_strong_layers = options.draft_layers;
  recipe.dtype = dtype_of(options.dtype);
  if (options.epsilon >= 0) recipe.epsilon = options.epsilon;
  const std::filesystem::path folder = options.output;
  write_synthetic_folder(folder / "draft", draft, recipe, progress_of("draft"));
  write_synthetic_folder(folder / "target", target, recipe, progress_of("target"));
  return 0;
}

}  // namespace outrider
