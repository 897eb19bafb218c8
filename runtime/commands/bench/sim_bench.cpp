// See sim_bench.h. One job holds the whole grid: every cell, an acceptance and a cost of the draft,
// is a dialect of the models (models/simulated_law.h), and a request's prompt picks it.
#include "runtime/commands/bench/sim_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "models/simulated.h"
#include "runtime/base/error.h"
#include "runtime/base/rng.h"
#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/theory/theory_formulas.h"
#include "runtime/ranks/job.h"
#include "runtime/ranks/signals.h"

namespace outrider {
namespace {

using Clock = JobClock;

constexpr int32_t kMostDraftLen = 16;
constexpr int32_t kWarmUpTokens = 24;
// What the issue of simulated models asks for: within 5% of the formula.
constexpr double kPasses = 0.95;

struct SimOptions {
  double step_ms = 10;
  std::string alphas = "0.6,0.7,0.8,0.9";
  std::string costs = "0.05,0.1,0.2";
  std::string draft_len = "best";
  std::string requests = "1,4,16,64";
  std::string target_keys;
  std::string draft_keys;
  int32_t max_tokens = 400;
  int32_t sweep_tokens = 64;
  int32_t num_repeats = 2;
  double temperature = 1;
};

std::vector<double> numbers_of(const char* key,
                               const std::string& text,
                               double least,
                               double most) {
  std::vector<double> values;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double value = 0;
    const auto [rest, problem] = std::from_chars(text.data() + begin, text.data() + end, value);
    const bool inside = value >= least && value <= most;
    if (problem != std::errc() || rest != text.data() + end || !inside) {
      throw Error(fmt::format("{} must be numbers from {} to {} with commas between, not '{}'",
                              key,
                              least,
                              most,
                              text));
    }
    values.push_back(value);
    begin = end + 1;
  }
  return values;
}

struct Cell {
  double alpha = 0;
  double cost = 0;  // of a draft step, in target steps
  int32_t draft_len = 0;
};

struct Grid {
  std::vector<Cell> cells;        // one with each draft length that is asked for
  std::vector<int32_t> dialects;  // of each cell
  std::vector<double> requests;
  int32_t num_dialects = 0;
  SimulatedSpec target;
  SimulatedSpec draft;
};

// Milliseconds of one step with num_rows rows of the dialect, num_sequences of them sequences.
double step_ms(const SimulatedSpec& spec, int32_t dialect, int32_t num_rows, int32_t position) {
  Batch batch;
  batch.tokens.assign(static_cast<size_t>(num_rows), kFirstSimulatedWord + dialect);
  batch.positions.assign(batch.tokens.size(), position);
  batch.sequence_of_row.assign(batch.tokens.size(), 0);
  return simulated_step_ms(spec, batch);
}

// Sets the job's models and limits for the grid.
Grid prepare(const SimOptions& options, RunConfig& config) {
  Grid grid;
  grid.requests = numbers_of("requests", options.requests, 1, 1024);
  std::string alphas;
  std::string steps;
  for (const double alpha : numbers_of("alphas", options.alphas, 0, 1)) {
    for (const double cost : numbers_of("costs", options.costs, 0, 100)) {
      const int32_t dialect = grid.num_dialects++;
      if (dialect > 0) (alphas += '/', steps += '/');
      alphas += fmt::format("{}", alpha);
      steps += fmt::format("{}", cost * options.step_ms);
      std::vector<double> lens = {static_cast<double>(best_draft_len(alpha, cost, 8))};
      if (options.draft_len != "best")
        lens = numbers_of("draft_len", options.draft_len, 0, kMostDraftLen);
      for (const double len : lens) {
        grid.cells.push_back({alpha, cost, static_cast<int32_t>(len)});
        grid.dialects.push_back(dialect);
      }
    }
  }
  const auto keys = [](const std::string& text) { return text.empty() ? "" : "," + text; };
  config.model = fmt::format("sim:step_ms={},dialects={}{}",
                             options.step_ms,
                             grid.num_dialects,
                             keys(options.target_keys));
  config.speculative.model = fmt::format("sim:step_ms={},alpha={},dialects={}{}",
                                         steps,
                                         alphas,
                                         grid.num_dialects,
                                         keys(options.draft_keys));
  grid.target = parse_simulated(config.model);
  grid.draft = parse_simulated(config.speculative.model);
  config.speculative.num_speculative_tokens = 1;
  for (const Cell& cell : grid.cells)
    config.speculative.num_speculative_tokens =
        std::max(config.speculative.num_speculative_tokens, cell.draft_len);
  const auto most =
      static_cast<int32_t>(*std::max_element(grid.requests.begin(), grid.requests.end()));
  config.max_num_seqs = std::max(config.max_num_seqs, most);
  config.max_num_batched_tokens = std::max(config.max_num_batched_tokens,
                                           most * (config.speculative.num_speculative_tokens + 1));
  config.enable_prefix_caching = false;
  return grid;
}

// What one wave of requests showed.
struct Wave {
  double seconds = 0;               // from the first event of the first to the last event of all
  int64_t num_tokens = 0;           // in that time
  std::vector<double> overhead_us;  // of the first request's rounds: all but the models' steps
  int64_t num_rounds = 0;
  int64_t num_round_tokens = 0;
  int64_t examined = 0;
  int64_t accepted = 0;
  double model_ms = 0;  // what the first request's rounds asked the models for
  double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0;
  }
};

struct WaveSpec {
  int32_t dialect = 0;
  int32_t draft_len = 0;
  int32_t num_requests = 1;
  int32_t max_tokens = 0;
};

class SimRunner {
 public:
  SimRunner(const FrontEndContext& context, const SimOptions& options, const Grid& grid)
      : context_(context), options_(options), grid_(grid) {}

  Wave run(const WaveSpec& spec) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (int32_t i = 0; i < spec.num_requests; ++i) streams.push_back(ask(spec, i));
    Wave wave;
    const Clock::time_point begin = follow(*streams[0], spec, &wave);
    for (size_t i = 1; i < streams.size(); ++i) {
      const BenchAnswer answer = collect_bench_answer(*streams[i]);
      wave.num_tokens += static_cast<int64_t>(answer.tokens.size()) - 1;
    }
    wave.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return wave;
  }

 private:
  std::shared_ptr<ResultStream> ask(const WaveSpec& spec, int32_t index) {
    Request request;
    request.id = context_.engine.next_request_id();
    const int32_t word = static_cast<int32_t>((request.id * 7) % 40);
    request.prompt = {index % 200 + 20,
                      kFirstSimulatedWord + spec.dialect + word * grid_.num_dialects};
    request.params.max_tokens = spec.max_tokens;
    request.params.temperature = static_cast<float>(options_.temperature);
    request.params.max_draft_len = spec.draft_len;
    request.params.noise_seed = mix_seed(0x51u, request.id);
    request.stream = std::make_shared<ResultStream>();
    auto stream = request.stream;
    submit_bench_request(context_, std::move(request));
    return stream;
  }

  // Events come once a round, so the time between two is a round's. Returns when the first came.
  Clock::time_point follow(ResultStream& stream, const WaveSpec& spec, Wave* wave) {
    Clock::time_point first{};
    Clock::time_point last{};
    SpeculationStats before;
    int32_t position = 2;
    while (true) {
      auto event = stream.wait_next(std::chrono::milliseconds(200));
      if (wait_stop_signal(std::chrono::milliseconds(0))) throw Error("stopped by a signal");
      if (!event) continue;
      const auto now = Clock::now();
      if (!event->error.empty()) throw Error(event->error);
      const auto num_tokens = static_cast<int32_t>(event->tokens.size());
      const int32_t draft_len = event->stats.num_draft_tokens - before.num_draft_tokens;
      if (first == Clock::time_point{}) {
        first = now;
      } else if (num_tokens > 0) {
        note_round(spec,
                   draft_len,
                   position,
                   std::chrono::duration<double, std::milli>(now - last).count(),
                   wave);
        wave->num_tokens += num_tokens;
        wave->num_round_tokens += num_tokens;
      }
      last = now;
      position += num_tokens;
      before = event->stats;
      if (event->finish_reason == FinishReason::kNone) continue;
      count_acceptance(event->stats, wave);
      return first;
    }
  }

  // The models' part of a round, all requests of the wave taken to do the same.
  void note_round(
      const WaveSpec& spec, int32_t draft_len, int32_t position, double round_ms, Wave* wave) {
    const int32_t num_rows = spec.num_requests * (draft_len + 1);
    double models_ms = step_ms(grid_.target, spec.dialect, num_rows, position);
    models_ms += draft_len * step_ms(grid_.draft, spec.dialect, spec.num_requests, position);
    wave->model_ms += models_ms;
    ++wave->num_rounds;
    wave->overhead_us.push_back(1e3 * (round_ms - models_ms));
  }

  static void count_acceptance(const SpeculationStats& stats, Wave* wave) {
    for (size_t i = 0; i < stats.drafted_per_position.size(); ++i) {
      const int32_t reached = i == 0 ? stats.num_spec_rounds : stats.accepted_per_position[i - 1];
      wave->examined += std::min(reached, stats.drafted_per_position[i]);
      wave->accepted += stats.accepted_per_position[i];
    }
  }

  const FrontEndContext& context_;
  const SimOptions& options_;
  const Grid& grid_;
};

std::string overhead_text(const std::vector<double>& samples) {
  return fmt::format("{:.0f} / {:.0f}", median(samples), quantile(samples, 0.95));
}

// How late the system wakes a sleeper on this machine now: part of every simulated step.
std::vector<double> sleep_overshoot_us() {
  std::vector<double> samples;
  StepClock& clock = system_step_clock();
  for (int i = 0; i < 300; ++i) {
    const int64_t until = clock.now_ns() + 1'000'000;
    clock.sleep_until_ns(until);
    samples.push_back(static_cast<double>(clock.now_ns() - until) / 1e3);
  }
  return samples;
}

struct CellFindings {
  std::vector<double> off;
  std::vector<double> on;
  std::vector<double> overhead_us;
  int64_t num_rounds = 0;
  int64_t num_tokens = 0;
  int64_t examined = 0;
  int64_t accepted = 0;
  double model_ms = 0;
};

void take_in(const Wave& off, const Wave& on, CellFindings* found) {
  found->off.push_back(off.tokens_per_s());
  found->on.push_back(on.tokens_per_s());
  found->overhead_us.insert(found->overhead_us.end(), on.overhead_us.begin(), on.overhead_us.end());
  found->num_rounds += on.num_rounds;
  found->num_tokens += on.num_round_tokens;
  found->examined += on.examined;
  found->accepted += on.accepted;
  found->model_ms += on.model_ms;
}

// Fills table, figures and plot of the grid.
void report_cells(const Grid& grid, const std::vector<CellFindings>& found, BenchReport* report) {
  BenchTable table;
  table.title = "one request, speculation on against off";
  table.columns = {"alpha",
                   "c",
                   "K",
                   "alpha seen",
                   "tokens/round",
                   "Leviathan",
                   "steps as they were",
                   "measured",
                   "of Leviathan",
                   "",
                   "overhead us median / p95"};
  PlotPanel panel;
  panel.title = "speed-up, one request";
  panel.x_label = "acceptance";
  panel.y_label = "speed-up";
  for (size_t i = 0; i < grid.cells.size(); ++i) {
    const Cell& cell = grid.cells[i];
    const CellFindings& f = found[i];
    const std::string name =
        fmt::format("alpha {} c {} K {}", cell.alpha, cell.cost, cell.draft_len);
    const auto rounds = static_cast<double>(std::max<int64_t>(1, f.num_rounds));
    const double tokens_per_round = static_cast<double>(f.num_tokens) / rounds;
    const double plain_ms = step_ms(grid.target, grid.dialects[i], 1, 2);
    const double formula = predicted_speedup(cell.alpha, cell.cost, cell.draft_len);
    const double with_costs = tokens_per_round * plain_ms / (f.model_ms / rounds);
    report->add_series(name + " on", "tokens/s", f.on);
    report->add_series(name + " off", "tokens/s", f.off);
    report->add_series(name + " overhead", "us", f.overhead_us);
    const Interval speedup =
        report->add_figure(name + " speed-up", "", bootstrap_ratio(f.on, f.off));
    report->add_figure(name + " Leviathan", "", formula);
    report->add_figure(name + " with the steps as they were", "", with_costs);
    const double alpha_seen =
        f.examined > 0 ? static_cast<double>(f.accepted) / static_cast<double>(f.examined) : 0;
    table.rows.push_back({fmt::format("{}", cell.alpha),
                          fmt::format("{}", cell.cost),
                          fmt::format("{}", cell.draft_len),
                          fmt::format("{:.3f}", alpha_seen),
                          fmt::format("{:.2f}", tokens_per_round),
                          fmt::format("{:.2f}", formula),
                          fmt::format("{:.2f}", with_costs),
                          interval_text(speedup, 2),
                          fmt::format("{:.3f}", speedup.value / formula),
                          speedup.value >= kPasses * formula ? "pass" : "falls short",
                          overhead_text(f.overhead_us)});
    const int color = static_cast<int>(std::lround(cell.cost * 20)) % 8;
    panel.series.push_back({fmt::format("c {} K {}", cell.cost, cell.draft_len),
                            PlotMark::kDots,
                            color,
                            {{cell.alpha, speedup.value}}});
    PlotSeries line = {"", PlotMark::kLine, color, {}};
    for (int step = -5; step <= 5; ++step) {
      const double alpha = std::clamp(cell.alpha + step * 0.01, 0.0, 1.0);
      line.points.push_back({alpha, predicted_speedup(alpha, cell.cost, cell.draft_len)});
    }
    panel.series.push_back(std::move(line));
  }
  report->tables.push_back(std::move(table));
  report->plot.panels.push_back(std::move(panel));
}

void report_sweep(const Grid& grid,
                  const Cell& cell,
                  const std::vector<CellFindings>& found,
                  const std::vector<std::vector<double>>& off_overhead,
                  BenchReport* report) {
  BenchTable table;
  table.title = fmt::format(
      "\nrequests at once, alpha {}, c {}, K {}", cell.alpha, cell.cost, cell.draft_len);
  table.columns = {
      "requests", "tokens/s off", "on", "on/off", "off: overhead us median / p95", "on"};
  PlotPanel panel;
  panel.title = "tokens/s by requests at once";
  panel.x_label = "requests";
  panel.y_label = "tokens/s";
  PlotSeries off = {"without", PlotMark::kLine, 0, {}};
  PlotSeries on = {"with speculation", PlotMark::kLine, 1, {}};
  for (size_t i = 0; i < found.size(); ++i) {
    const CellFindings& f = found[i];
    const BenchX x = {"requests", grid.requests[i]};
    report->add_series("sweep off", "tokens/s", f.off, x);
    report->add_series("sweep on", "tokens/s", f.on, x);
    report->add_series("sweep off overhead", "us", off_overhead[i], x);
    report->add_series("sweep on overhead", "us", f.overhead_us, x);
    const Interval ratio =
        report->add_figure("sweep speed-up", "", bootstrap_ratio(f.on, f.off), x);
    table.rows.push_back({fmt::format("{}", grid.requests[i]),
                          fmt::format("{:.1f}", median(f.off)),
                          fmt::format("{:.1f}", median(f.on)),
                          interval_text(ratio, 2),
                          overhead_text(off_overhead[i]),
                          overhead_text(f.overhead_us)});
    off.points.push_back({grid.requests[i], median(f.off)});
    on.points.push_back({grid.requests[i], median(f.on)});
  }
  panel.series = {off, on};
  report->tables.push_back(std::move(table));
  report->plot.panels.push_back(std::move(panel));
}

// The cell nearest to alpha 0.8 and c 0.1, whose requests come many at once.
size_t sweep_cell(const Grid& grid) {
  const auto distance = [](const Cell& cell) {
    return std::abs(cell.alpha - 0.8) + std::abs(cell.cost - 0.1);
  };
  size_t nearest = 0;
  for (size_t i = 1; i < grid.cells.size(); ++i) {
    if (distance(grid.cells[i]) < distance(grid.cells[nearest])) nearest = i;
  }
  return nearest;
}

int measure(const BenchRun& run,
            const FrontEndContext& context,
            const SimOptions& options,
            const Grid& grid) {
  BenchReport report = run.new_report(context.topology);
  report.title = fmt::format("{} with {} on {} target ranks",
                             context.config.model,
                             context.config.speculative.model,
                             context.engine.info().num_target_ranks);
  const std::vector<double> overshoot = sleep_overshoot_us();
  report.add_series("sleep of 1 ms: late by", "us", overshoot);
  SimRunner runner(context, options, grid);
  const size_t many = sweep_cell(grid);
  std::vector<CellFindings> cells(grid.cells.size());
  std::vector<CellFindings> sweep(grid.requests.size());
  std::vector<std::vector<double>> off_overhead(grid.requests.size());
  Progress progress("simulated rounds",
                    options.num_repeats * static_cast<int64_t>(cells.size() + sweep.size()));
  for (int32_t repeat = 0; repeat < options.num_repeats; ++repeat) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const int32_t dialect = grid.dialects[i];
      const int32_t draft_len = grid.cells[i].draft_len;
      const Wave off = runner.run({dialect, 0, 1, std::max(8, options.max_tokens / 8)});
      // The draft's deadline has to forget the cell before.
      runner.run({dialect, draft_len, 1, kWarmUpTokens});
      take_in(off, runner.run({dialect, draft_len, 1, options.max_tokens}), &cells[i]);
      progress.advance();
    }
    for (size_t i = 0; i < sweep.size(); ++i) {
      const auto num_requests = static_cast<int32_t>(grid.requests[i]);
      const int32_t dialect = grid.dialects[many];
      const int32_t draft_len = grid.cells[many].draft_len;
      const Wave off = runner.run({dialect, 0, num_requests, options.sweep_tokens});
      off_overhead[i].insert(off_overhead[i].end(), off.overhead_us.begin(), off.overhead_us.end());
      runner.run({dialect, draft_len, num_requests, kWarmUpTokens});
      take_in(off, runner.run({dialect, draft_len, num_requests, options.sweep_tokens}), &sweep[i]);
      progress.advance();
    }
  }
  report_cells(grid, cells, &report);
  report_sweep(grid, grid.cells[many], sweep, off_overhead, &report);
  report.plot.title = "Simulated models through the running job";
  report.notes.push_back(
      fmt::format("a sleep of 1 ms is late by {} us (median / p95): part of the overhead",
                  overhead_text(overshoot)));
  report.notes.push_back("overhead: a round's time less what its steps asked for");
  run.finish(std::move(report));
  return 0;
}

std::vector<Option> sim_options(SimOptions* options) {
  return {
      number_option("step_ms", &options->step_ms, 0.01, 1e5, "the target's step, milliseconds"),
      text_option("alphas", &options->alphas, "acceptances, commas between"),
      text_option("costs", &options->costs, "costs of a draft step in target steps"),
      text_option(
          "draft_len", &options->draft_len, "draft lengths, or best (up to 8, by Leviathan)"),
      text_option("requests", &options->requests, "how many requests at once"),
      text_option(
          "target_keys", &options->target_keys, "further keys of the target, as row_ms=0.1"),
      text_option("draft_keys", &options->draft_keys, "further keys of the draft"),
      integer_option(
          "max_tokens", &options->max_tokens, 16, 4096, "tokens of a request of the grid"),
      integer_option(
          "sweep_tokens", &options->sweep_tokens, 16, 4096, "tokens of each of many requests"),
      integer_option("repeat", &options->num_repeats, 1, 1000, "times through all of it"),
      number_option("temperature", &options->temperature, 0, 10, "0 = greedy"),
  };
}

int run_sim(const CommandLine& line) {
  SimOptions options;
  BenchRun run("sim", line, sim_options(&options));
  for (const char* key : {"model", "speculative_config.model"}) {
    if (run.is_given(key))
      throw Error(fmt::format(
          "bench sim makes its own models: not {}, but target_keys and draft_keys", key));
  }
  const Grid grid = prepare(options, run.config());
  return run_job(run.config(), line.argc, line.argv, [&](const FrontEndContext& context) {
    return measure(run, context, options, grid);
  });
}

std::string sim_help() {
  SimOptions options;
  return bench_options_help(sim_options(&options));
}

}  // namespace

BenchKind sim_bench() {
  return {"sim",
          "simulated models: speed-up against the formula, overhead of a round, many requests",
          run_sim,
          sim_help};
}

}  // namespace outrider
