// theory_bench: the founding papers' figures, measured. Simulated acceptances through the program's
// own rules, and the job's pair, beside the formulas. Takes the options of `outrider bench`; part
// of the test build, not installed.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/build_info.h"
#include "runtime/ranks/job/job.h"
#include "runtime/ranks/job/signals.h"
#include "tests/theory/theory_report.h"

namespace outrider {
namespace {

struct TheoryBenchOptions {
  int32_t num_rounds = 10000;  // of every simulated figure
  std::string prompts_file;    // empty = a few of our own
  int32_t num_prompts = 8;
  int32_t max_tokens = 128;
  double temperature = 1;
  int32_t seed = 1;
};

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

std::vector<Option> theory_options(TheoryBenchOptions* options) {
  return {
      integer_option("rounds",
                     &options->num_rounds,
                     2,
                     100000000,
                     "rounds of each of the 120 simulated figures"),
      path_option("prompts",
                  &options->prompts_file,
                  "for the pair: a text file of one prompt a line, or JSON lines"),
      integer_option("num_prompts", &options->num_prompts, 1, 100000, "how many of them"),
      integer_option("max_tokens", &options->max_tokens, 2, 100000, "tokens per answer"),
      number_option("temperature", &options->temperature, 0, 10, "of the pair; 0 = greedy"),
      integer_option("seed", &options->seed, 0, INT32_MAX, "of all noise"),
  };
}

// Simulated figures are means of many rounds: one sample each.
void add_simulated(const TheoryReport& report, BenchReport* out) {
  for (const SimulatedCell& cell : report.simulated) {
    const BenchX x = {"draft length", static_cast<double>(cell.spec.draft_len)};
    out->add_series(
        fmt::format("simulated {}, alpha {}", verify_mode_name(cell.spec.mode), cell.alpha),
        "tokens/round",
        {cell.rounds.tokens_per_round},
        x);
  }
}

int measure(const BenchRun& run,
            const FrontEndContext& context,
            const TheoryBenchOptions& options) {
  BenchReport out = run.new_report(context.topology);
  out.command.replace(0, std::strlen("outrider bench theory"), "theory_bench");
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
  out.title = report.title;
  out.details = report_json(report);
  out.plot = report_plot(report);
  add_simulated(report, &out);
  run.finish(std::move(out));
  return 0;
}

int run_theory(const CommandLine& line) {
  constexpr int32_t kDraftLen = 8;  // long enough to see the formula bend
  TheoryBenchOptions options;
  BenchRun run("theory", line, theory_options(&options));
  SpeculativeConfig& speculative = run.config().speculative;
  if (!run.is_given("speculative_config.num_speculative_tokens"))
    speculative.num_speculative_tokens = kDraftLen;
  if (speculative.method == "auto" && run.config().model == "embedded" &&
      speculative.model.empty()) {
    speculative.model = "embedded";
  }
  if (speculative.method == "none" || (speculative.method == "auto" && speculative.model.empty()))
    throw Error("theory_bench needs a draft: give --speculative-config.model");
  return run_job(run.config(), line.launch, [&](const FrontEndContext& context) {
    return measure(run, context, options);
  });
}

int run_program(int argc, char** argv) {
  try {
    return run_theory({{&argc, &argv, fmt::format("theory_bench ({})", kBuildCommit)},
                       {argv + 1, argv + argc}});
  } catch (const HelpAsked& asked) {
    fmt::print("usage: theory_bench [options]\n\n");
    for (const OptionHelp& row : asked.own) fmt::print("  {:<20} {}\n", row.names[0], row.text);
    return 0;
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  try {
    return outrider::run_program(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "theory_bench: %s\n", error.what());
    return 2;
  }
}
