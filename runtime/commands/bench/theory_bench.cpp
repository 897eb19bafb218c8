// See theory_bench.h.
#include "runtime/commands/bench/theory_bench.h"

#include <fmt/format.h>

#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/theory_report.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

constexpr double kAlphas[] = {0.6, 0.7, 0.8, 0.9};
constexpr int32_t kLongestSimulated = 10;

std::vector<SimulatedCell> simulate_all(const TheoryBenchOptions& options) {
  std::vector<SimulatedCell> cells;
  for (double alpha : kAlphas) {
    const ToyPair pair = toy_pair(alpha);
    for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
      for (int32_t draft_len = 1; draft_len <= kLongestSimulated; ++draft_len) {
        if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
        const SimulationSpec spec = {
            .mode = mode,
            .draft_len = draft_len,
            .num_rounds = options.num_rounds,
            .seed = mix_seed(static_cast<uint64_t>(options.seed), cells.size())};
        cells.push_back(
            {alpha, spec, simulate_rounds(pair, spec), expected_simulated_tokens(pair, spec)});
      }
    }
    fmt::print(stderr, "simulated acceptance {}\n", alpha);
  }
  return cells;
}

std::string title_of(const FrontEndContext& context, const TheoryBenchOptions& options) {
  const EngineInfo& info = context.engine.info();
  return fmt::format("model {}, draft {}, {} target rank(s), temperature {}",
                     info.served_model_name,
                     info.draft,
                     info.num_target_ranks,
                     options.temperature);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(fmt::format("cannot write {}", path));
}

}  // namespace

int run_theory_bench(const FrontEndContext& context, const TheoryBenchOptions& options) {
  TheoryReport report;
  report.title = title_of(context, options);
  const auto prompts = read_bench_prompts(options.prompts_file, options.num_prompts);
  report.pair = measure_pair(context,
                             {.prompts = prompts,
                              .max_tokens = options.max_tokens,
                              .temperature = options.temperature,
                              .seed = static_cast<uint64_t>(options.seed)});
  report.simulated = simulate_all(options);
  print_report(report, stdout);
  if (!options.json_file.empty()) write_text(options.json_file, report_json(report));
  if (!options.svg_file.empty()) write_svg(options.svg_file, report_plot(report));
  return 0;
}

}  // namespace outrider
