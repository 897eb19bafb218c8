// bench throughput: many requests offline, total tokens per second by how many are in flight, with
// and without speculation in turns. A front end on rank 0.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/seeded_draws.h"
#include "runtime/ranks/job/job.h"

namespace outrider {
namespace {

constexpr uint32_t kRequestStream = 6;

struct ThroughputOptions {
  std::string prompts_file;  // with input_len 0
  int32_t num_prompts = 32;
  int32_t input_len = 0;  // random ids; 0 = prompts
  int32_t output_len = 64;
  double range_ratio = 0;
  double temperature = 0;
  int32_t seed = 1;
  std::vector<int32_t> concurrency = {0};
  int32_t num_repeats = 3;
};

std::vector<Option> throughput_options(ThroughputOptions* options) {
  return {
      path_option("prompts",
                  &options->prompts_file,
                  "a text file of one prompt a line, or JSON lines; used again when too few"),
      integer_option("num_prompts", &options->num_prompts, 1, 1000000, "requests"),
      integer_option("input_len",
                     &options->input_len,
                     0,
                     1 << 20,
                     "prompts of so many random token ids; 0 = the prompts' texts"),
      integer_option("output_len", &options->output_len, 1, 1 << 20, "tokens per answer"),
      number_option("random_range_ratio",
                    &options->range_ratio,
                    0,
                    0.99,
                    "lengths are drawn from length x (1 - ratio) to length x (1 + ratio)"),
      number_option("temperature", &options->temperature, 0, 10, "0 = greedy"),
      integer_option("seed", &options->seed, 0, INT32_MAX, "of ids, lengths and noise"),
      integer_list_option("concurrency",
                          &options->concurrency,
                          0,
                          100000,
                          "requests in flight, as in 1,4,8,16; 0 = all at once"),
      integer_option("repeat",
                     &options->num_repeats,
                     1,
                     1000,
                     "turns; in each every concurrency is run with and without speculation"),
  };
}

std::vector<Request> make_requests(const FrontEndContext& context,
                                   const ThroughputOptions& options,
                                   bool speculate) {
  const std::vector<std::string> texts =
      read_bench_prompts(options.prompts_file, options.num_prompts);
  const auto vocab_size = static_cast<uint32_t>(context.engine.info().vocab_size);
  std::vector<Request> requests;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    // All runs get the same requests.
    const uint64_t seed = mix_seed(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(i));
    SeededDraws draws(seed, kRequestStream);
    Request request = bench_request(context,
                                    texts[static_cast<size_t>(i) % texts.size()],
                                    random_length(options.output_len, options.range_ratio, &draws));
    if (options.input_len > 0) {
      const int32_t room = context.engine.info().max_model_len - request.params.max_tokens;
      const int32_t length =
          std::min(room, random_length(options.input_len, options.range_ratio, &draws));
      request.prompt.clear();
      for (int32_t at = 0; at < length; ++at)
        request.prompt.push_back(static_cast<int32_t>(draws.below(vocab_size)));
    }
    request.params.temperature = static_cast<float>(options.temperature);
    request.params.noise_seed = seed;
    request.params.max_draft_len = speculate ? -1 : 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

// All runs of one concurrency, with or without speculation. Latencies are of all requests of all
// runs.
struct LoadCell {
  int32_t concurrency = 0;
  bool speculate = false;
  std::vector<double> tokens_per_s;  // one a run: output tokens by wall time
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;  // of answers with more than one token
  int64_t num_drafted = 0;
  int64_t num_accepted = 0;
  std::vector<std::vector<int32_t>> texts;

  std::string name() const { return speculate ? "speculation on" : "speculation off"; }
};

void run_cell(const FrontEndContext& context, const ThroughputOptions& options, LoadCell* cell) {
  const BenchLoad load = run_bench_requests(
      context, make_requests(context, options, cell->speculate), cell->concurrency);
  int64_t num_tokens = 0;
  for (const BenchAnswer& answer : load.answers) {
    num_tokens += static_cast<int64_t>(answer.tokens.size());
    cell->ttft_ms.push_back(1e3 * answer.ttft_s);
    if (answer.tokens.size() > 1) {
      cell->tpot_ms.push_back(1e3 * answer.decode_s /
                              static_cast<double>(answer.tokens.size() - 1));
    }
    cell->num_drafted += answer.stats.num_draft_tokens;
    cell->num_accepted += answer.stats.num_accepted_tokens;
    cell->texts.push_back(answer.tokens);
  }
  cell->tokens_per_s.push_back(static_cast<double>(num_tokens) / load.wall_s);
}

std::vector<LoadCell> measure_cells(const FrontEndContext& context,
                                    const ThroughputOptions& options) {
  const bool has_draft = context.engine.info().num_speculative_tokens > 0;
  std::vector<LoadCell> cells;
  for (int32_t concurrency : options.concurrency) {
    cells.push_back({.concurrency = concurrency});
    if (has_draft) cells.push_back({.concurrency = concurrency, .speculate = true});
  }
  ThroughputOptions few = options;
  few.num_prompts = std::min(2, options.num_prompts);
  for (bool speculate : {false, has_draft}) {  // warm-up
    LoadCell unused{.speculate = speculate};
    run_cell(context, few, &unused);
  }
  Progress progress("throughput", options.num_repeats * static_cast<int64_t>(cells.size()));
  std::vector<std::function<void()>> variants;
  for (LoadCell& cell : cells) {
    variants.emplace_back([&] {
      run_cell(context, options, &cell);
      progress.advance();
    });
  }
  run_in_turns(options.num_repeats, variants);
  return cells;
}

std::string summary_text(const std::vector<double>& values) {
  return fmt::format("{:.1f} {:.1f} {:.1f}",
                     quantile(values, 0.5),
                     quantile(values, 0.95),
                     quantile(values, 0.99));
}

void add_cell(const LoadCell& cell, int32_t in_flight, BenchReport* report) {
  const BenchX x = {"requests in flight", static_cast<double>(in_flight)};
  const Interval rate =
      report->add_samples("output, " + cell.name(), "tokens/s", cell.tokens_per_s, x);
  report->add_series("TTFT, " + cell.name(), "ms", cell.ttft_ms, x);
  report->add_series("TPOT, " + cell.name(), "ms", cell.tpot_ms, x);
  std::string alpha;
  if (cell.num_drafted > 0) {
    const double share =
        static_cast<double>(cell.num_accepted) / static_cast<double>(cell.num_drafted);
    alpha = fmt::format("{:.3f}", report->add_figure("accepted / drafted", "", share, x));
  }
  report->tables[0].rows.push_back({std::to_string(in_flight),
                                    cell.speculate ? "on" : "off",
                                    interval_text(rate, 1),
                                    summary_text(cell.ttft_ms),
                                    summary_text(cell.tpot_ms),
                                    alpha,
                                    "",
                                    ""});
  report->plot.panels[0].series[cell.speculate ? 1 : 0].points.push_back(plot_point(x.value, rate));
}

void add_ratio(const LoadCell& off, const LoadCell& on, int32_t in_flight, BenchReport* report) {
  const BenchX x = {"requests in flight", static_cast<double>(in_flight)};
  const Interval ratio =
      report->add_figure("on / off", "", bootstrap_ratio(on.tokens_per_s, off.tokens_per_s), x);
  int num_same = 0;
  for (size_t i = 0; i < on.texts.size(); ++i) num_same += on.texts[i] == off.texts[i] ? 1 : 0;
  std::vector<std::string>& row = report->tables[0].rows.back();
  row[row.size() - 2] = interval_text(ratio, 3);
  row.back() = fmt::format("{} of {}", num_same, on.texts.size());
}

void fill_report(const FrontEndContext& context,
                 const ThroughputOptions& options,
                 const std::vector<LoadCell>& cells,
                 BenchReport* report) {
  const EngineInfo& info = context.engine.info();
  report->title = fmt::format("model {}, draft {}, {} target rank(s), {} requests of {} tokens",
                              info.served_model_name,
                              info.draft.empty() ? "none" : info.draft,
                              info.num_target_ranks,
                              options.num_prompts,
                              options.output_len);
  report->tables = {{"",
                     {"in flight",
                      "speculation",
                      "tokens/s in total",
                      "TTFT p50 p95 p99, ms",
                      "TPOT p50 p95 p99, ms",
                      "accepted",
                      "on / off",
                      "same text"},
                     {}}};
  report->plot = {.title = report->title,
                  .panels = {{"throughput against load",
                              "requests in flight",
                              "tokens/s in total",
                              {{"without speculation", PlotMark::kDots, 0, {}},
                               {"with speculation", PlotMark::kSquares, 1, {}}}}}};
  for (size_t i = 0; i < cells.size(); ++i) {
    const int32_t in_flight =
        cells[i].concurrency == 0 ? options.num_prompts : cells[i].concurrency;
    add_cell(cells[i], in_flight, report);
    if (cells[i].speculate) add_ratio(cells[i - 1], cells[i], in_flight, report);
  }
  if (!cells.back().speculate) report->plot.panels[0].series.pop_back();
}

}  // namespace

int throughput_bench(const CommandLine& line) {
  ThroughputOptions options;
  BenchRun run("throughput", line, throughput_options(&options));
  // The same requests again and again: the later must not profit from the earlier.
  if (!run.is_given("enable_prefix_caching")) run.config().enable_prefix_caching = false;
  run.config().max_num_queued_reqs =
      std::max(run.config().max_num_queued_reqs, options.num_prompts);
  return run_job(run.config(), line.launch, [&](const FrontEndContext& context) {
    BenchReport report = run.new_report(context.topology);
    fill_report(context, options, measure_cells(context, options), &report);
    run.finish(std::move(report));
    return 0;
  });
}

}  // namespace outrider
