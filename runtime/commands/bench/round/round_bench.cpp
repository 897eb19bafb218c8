// See round_bench.h.
#include "runtime/commands/bench/round/round_bench.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/round/round_costs.h"

namespace outrider {
namespace {

struct RoundOptions {
  RoundShape shape;
  std::vector<int32_t> sequences = {1, 16, 64};
  std::string verify_mode = "block";
  double temperature = 1;
  double top_p = 1;
  int32_t num_repeats = 50;
};

std::vector<Option> round_options(RoundOptions* options) {
  RoundShape& shape = options->shape;
  return {
      integer_list_option("sequences", &options->sequences, 1, 1024, "how many at once"),
      integer_option("draft_len", &shape.draft_len, 0, 64, "draft tokens of each"),
      integer_option(
          "candidates", &shape.num_candidates, 1, 256, "entries of a draft token's distribution"),
      integer_option("columns", &shape.vocab_size, 16, 1 << 18, "of the logits, on one rank"),
      text_option("verify_mode", &options->verify_mode, "standard, block or coupled"),
      number_option("temperature", &options->temperature, 0, 10, "0 = greedy"),
      number_option("top_p", &options->top_p, 0.01, 1, "1 = off"),
      integer_option("repeat", &options->num_repeats, 1, 100000, "timed times of everything"),
  };
}

int run_round(const CommandLine& line) {
  RoundOptions options;
  BenchRun run("round", line, round_options(&options), kNoWords);
  RoundShape shape = options.shape;
  const auto mode = verify_mode_from_name(options.verify_mode);
  if (!mode)
    throw Error(fmt::format("verify_mode must be standard, block or coupled, not '{}'",
                            options.verify_mode));
  shape.params.verify_mode = *mode;
  shape.params.temperature = static_cast<float>(options.temperature);
  shape.params.top_p = static_cast<float>(options.top_p);
  const ops::ThreadPlan threads =
      ops::plan_threads({.num_threads = run.config().threads, .cpu_bind = run.config().cpu_bind});
  BenchReport report = run.new_report({});
  report.title = fmt::format("a round's work besides the models: {} draft tokens, {} columns, {}",
                             shape.draft_len,
                             shape.vocab_size,
                             options.verify_mode);
  BenchTable table;
  table.columns = {"sequences", "work", "us median", "p95"};
  for (const int32_t num_sequences : options.sequences) {
    shape.num_sequences = num_sequences;
    for (const RoundCost& cost : round_costs(shape, threads, options.num_repeats)) {
      const BenchX x = {"sequences", static_cast<double>(num_sequences)};
      report.add_series(cost.name, "us", cost.microseconds, x);
      table.rows.push_back({fmt::format("{}", num_sequences),
                            cost.name,
                            fmt::format("{:.1f}", median(cost.microseconds)),
                            fmt::format("{:.1f}", quantile(cost.microseconds, 0.95))});
    }
  }
  report.tables.push_back(std::move(table));
  report.notes.push_back(describe(threads) +
                         ", one shard; the exchange between ranks is not in it");
  run.finish(std::move(report));
  return 0;
}

}  // namespace

Command round_bench() {
  return {"round", "a round's work besides the models, on made-up logits", run_round};
}

}  // namespace outrider
