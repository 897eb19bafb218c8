// See sim_report.h. The bars are those of docs/benchmarks.md, "Asynchronous drafting".
#include "runtime/commands/bench/sim/sim_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/commands/bench/speedup_formulas.h"

namespace outrider {
namespace {

constexpr double kNearFormula = 0.05;
constexpr double kShareOfCacheColumn = 0.9;
constexpr double kColumnHitRate = 0.8;
constexpr double kNeverSlower = 0.98;
constexpr double kOverSynchronous = 1.4;
constexpr double kMostBubble = 0.03;
constexpr double kHighHitRate = 0.9;
constexpr double kMostOverheadUs = 150;
constexpr double kMostOverheadManyUs = 1000;
constexpr int32_t kManyRequests = 64;

// Measured values may miss a bar by so many of their standard errors.
constexpr double kErrors = 2;

class Verdicts {
 public:
  std::string operator()(bool passes) {
    num_short_ += passes ? 0 : 1;
    return passes ? "pass" : "falls short";
  }
  // error: relative, of value
  std::string at_least(double value, double error, double bar) {
    return (*this)(value * (1 + kErrors * error) >= bar);
  }
  int32_t num_short() const { return num_short_; }

 private:
  int32_t num_short_ = 0;
};

// Variance of sum(part) / sum(whole) over pairs of which each hangs on few others (ratio estimator,
// Cochran 1977, Eq. 2.39); 0 when there are fewer than two.
double ratio_variance(const std::vector<RoundGroup>& groups,
                      double RoundGroup::*part,
                      double RoundGroup::*whole) {
  double parts = 0;
  double wholes = 0;
  for (const RoundGroup& group : groups) {
    parts += group.*part;
    wholes += group.*whole;
  }
  if (groups.size() < 2 || wholes <= 0) return 0;
  double squares = 0;
  for (const RoundGroup& group : groups) {
    const double residual = group.*part - parts / wholes * group.*whole;
    squares += residual * residual;
  }
  const auto count = static_cast<double>(groups.size());
  return squares * count / (count - 1) / (wholes * wholes);
}

double relative_rate_variance(const SimWave& wave) {
  const double rate = wave.full_tokens_per_s();
  if (rate <= 0) return 0;
  return ratio_variance(wave.groups, &RoundGroup::num_tokens, &RoundGroup::seconds) / (rate * rate);
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// 0: the rounds were too few to tell.
std::string error_text(double error) { return error > 0 ? percent(error) : "-"; }

std::string overhead_text(const std::vector<double>& samples) {
  return fmt::format("{:.0f} / {:.0f}", median(samples), quantile(samples, 0.95));
}

std::string name_of(const SimPair& pair) {
  return fmt::format("alpha {} c {}", pair.alpha, pair.cost);
}

Interval ratio_of(const SimFindings& found) {
  return bootstrap_ratio(found.on.rates, found.off.rates);
}

// Adds what was measured to the report; gives the speed-up over no drafts.
Interval add_speedup(const std::string& name, const SimFindings& found, BenchReport* report) {
  report->add_series(name + " on", "tokens/s", found.on.rates);
  report->add_series(name + " off", "tokens/s", found.off.rates);
  if (!found.on.overhead_us.empty())
    report->add_series(name + " overhead", "us", found.on.overhead_us);
  return report->add_figure(name + " speed-up", "", ratio_of(found));
}

double tokens_per_round(const SimFindings& found) {
  return static_cast<double>(found.num_round_tokens) /
         static_cast<double>(std::max<int64_t>(1, found.num_rounds));
}

void report_synchronous(const SimGrid& grid,
                        const std::vector<SimFindings>& findings,
                        Verdicts& verdict,
                        BenchReport* report) {
  BenchTable table;
  table.title = "synchronous drafts, one request: over no drafts";
  table.columns = {"alpha",
                   "c",
                   "K",
                   "alpha seen",
                   "tokens/round",
                   "Leviathan",
                   "measured",
                   "standard error",
                   "of formula",
                   "within 5%",
                   "overhead us median / p95"};
  for (size_t i = 0; i < findings.size(); ++i) {
    const SimCell& cell = grid.cells[i];
    const SimFindings& f = findings[i];
    const std::string name = fmt::format("{} K {}", name_of(cell.pair), cell.draft_len);
    const Interval speedup = add_speedup(name, f, report);
    const double formula = predicted_speedup(cell.pair.alpha, cell.pair.cost, cell.draft_len);
    report->add_figure(name + " Leviathan", "", formula);
    const double ratio = speedup.value / formula;
    const double seen =
        static_cast<double>(f.accepted) / static_cast<double>(std::max<int64_t>(1, f.examined));
    table.rows.push_back(
        {fmt::format("{}", cell.pair.alpha),
         fmt::format("{}", cell.pair.cost),
         fmt::format("{}", cell.draft_len),
         fmt::format("{:.3f}", seen),
         fmt::format("{:.2f}", tokens_per_round(f)),
         fmt::format("{:.2f}", formula),
         interval_text(speedup, 2),
         error_text(f.speedup_error()),
         fmt::format("{:.3f}", ratio),
         verdict(std::abs(ratio - 1) - kErrors * f.speedup_error() * ratio <= kNearFormula),
         overhead_text(f.on.overhead_us)});
  }
  report->tables.push_back(std::move(table));
}

void report_chain(const SimGrid& grid,
                  const std::vector<SimFindings>& findings,
                  Verdicts& verdict,
                  BenchReport* report) {
  BenchTable table;
  table.title = "\nasynchronous drafting of one chain, one request: over no drafts";
  table.columns = {
      "alpha", "c", "chain column", "measured", "standard error", "at least 0.95 of it", "bubble"};
  for (size_t i = 0; i < findings.size(); ++i) {
    const SimPair& pair = grid.cells[i].pair;
    const SimFindings& f = findings[i];
    const Interval speedup = add_speedup(name_of(pair) + " chain", f, report);
    const double column = best_chain(pair.alpha, pair.cost).speedup;
    report->add_figure(name_of(pair) + " chain formula", "", column);
    table.rows.push_back(
        {fmt::format("{}", pair.alpha),
         fmt::format("{}", pair.cost),
         fmt::format("{:.2f}", column),
         interval_text(speedup, 2),
         error_text(f.speedup_error()),
         verdict.at_least(speedup.value, f.speedup_error(), (1 - kNearFormula) * column),
         percent(f.bubble_share())});
  }
  report->tables.push_back(std::move(table));
}

// What asynchronous drafting must reach at least: the chain column everywhere, and most of the
// cache's where drafts are good and cheap.
double cache_bar(const SimPair& pair) {
  const double bar = best_chain(pair.alpha, pair.cost).speedup;
  if (pair.alpha < 0.7 || pair.cost > 0.1) return bar;
  const double column = best_cache(pair.alpha, pair.cost, kColumnHitRate).speedup;
  return std::max(bar, kShareOfCacheColumn * column);
}

void report_cache(const SimGrid& grid,
                  const SimResults& results,
                  Verdicts& verdict,
                  BenchReport* report) {
  BenchTable table;
  table.title = "\nasynchronous drafting with the speculation cache, one request: over no drafts";
  table.columns = {"alpha",
                   "c",
                   "cache h=.8",
                   "bar",
                   "measured",
                   "standard error",
                   "",
                   "hit rate",
                   "at it",
                   "of that",
                   "bubble",
                   "tokens/round",
                   "over synchronous"};
  for (size_t i = 0; i < results.cache.size(); ++i) {
    const SimPair& pair = grid.cells[i].pair;
    const SimFindings& f = results.cache[i];
    const Interval speedup = add_speedup(name_of(pair) + " cache", f, report);
    const double bar = cache_bar(pair);
    const double at_hit_rate = best_cache(pair.alpha, pair.cost, f.hit_rate()).speedup;
    report->add_figure(name_of(pair) + " cache bar", "", bar);
    report->add_figure(name_of(pair) + " cache hit rate", "", f.hit_rate());
    report->add_figure(name_of(pair) + " cache bubble", "", f.bubble_share());
    std::string over = "";
    if (i < results.synchronous.size())
      over = fmt::format("{:.2f}", median(f.on.rates) / median(results.synchronous[i].on.rates));
    const bool bubble_counts = f.hit_rate() >= kHighHitRate;
    table.rows.push_back(
        {fmt::format("{}", pair.alpha),
         fmt::format("{}", pair.cost),
         fmt::format("{:.2f}", best_cache(pair.alpha, pair.cost, kColumnHitRate).speedup),
         fmt::format("{:.2f}", bar),
         interval_text(speedup, 2),
         error_text(f.speedup_error()),
         verdict.at_least(speedup.value, f.speedup_error(), bar),
         fmt::format("{:.3f}", f.hit_rate()),
         fmt::format("{:.2f}", at_hit_rate),
         fmt::format("{:.2f}", speedup.value / at_hit_rate),
         percent(f.bubble_share()) +
             (bubble_counts
                  ? " " + verdict(f.bubble_share() - kErrors * f.bubble_error() <= kMostBubble)
                  : ""),
         fmt::format("{:.2f}", tokens_per_round(f)),
         over});
  }
  report->tables.push_back(std::move(table));
}

// Against the best that waiting for the draft can do, at the cell nearest to alpha 0.8 and c 0.1.
void report_over_synchronous(const SimGrid& grid,
                             const SimResults& results,
                             Verdicts& verdict,
                             BenchReport* report) {
  if (results.cache.empty() || results.synchronous.empty()) return;
  const auto distance = [&](size_t i) {
    return std::abs(grid.cells[i].pair.alpha - 0.8) + std::abs(grid.cells[i].pair.cost - 0.1);
  };
  size_t nearest = 0;
  for (size_t i = 1; i < grid.cells.size(); ++i) {
    if (distance(i) < distance(nearest)) nearest = i;
  }
  const Interval ratio = report->add_figure(
      "asynchronous drafting over the best synchronous",
      "",
      bootstrap_ratio(results.cache[nearest].on.rates, results.synchronous[nearest].on.rates));
  // Both were measured against waves without drafts, which this ratio does not hang on.
  const double error = std::hypot(results.cache[nearest].speedup_error(),
                                  results.synchronous[nearest].speedup_error());
  report->notes.push_back(fmt::format(
      "asynchronous drafting over the best synchronous at {}: {}, standard error {}, bar {}: {}",
      name_of(grid.cells[nearest].pair),
      interval_text(ratio, 2),
      error_text(error),
      kOverSynchronous,
      verdict.at_least(ratio.value, error, kOverSynchronous)));
}

void plot_speedups(const SimGrid& grid, const SimResults& results, BenchReport* report) {
  PlotPanel panel{"speed-up, one request", "acceptance", "over no drafts", {}};
  const auto add = [&](const std::vector<SimFindings>& findings,
                       const char* name,
                       PlotMark mark,
                       double cost,
                       int color) {
    PlotSeries series = {fmt::format("{}, c {}", name, cost), mark, color, {}};
    for (size_t i = 0; i < findings.size(); ++i) {
      if (grid.cells[i].pair.cost != cost) continue;
      series.points.push_back(plot_point(grid.cells[i].pair.alpha, ratio_of(findings[i])));
    }
    if (!series.points.empty()) panel.series.push_back(std::move(series));
  };
  std::vector<double> costs;
  for (const SimCell& cell : grid.cells) {
    if (std::find(costs.begin(), costs.end(), cell.pair.cost) == costs.end())
      costs.push_back(cell.pair.cost);
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto color = static_cast<int>(i);
    add(results.cache, "asynchronous", PlotMark::kLine, costs[i], color);
    add(results.synchronous, "synchronous", PlotMark::kDashedLine, costs[i], color);
  }
  report->plot.panels.push_back(std::move(panel));
}

// With drafts over without, of whole waves and of the time in which all of a wave's requests ran.
// Neither is to be below: the one has in it what drafts do while ever fewer requests run, the other
// is all load.
struct SpeedRatios {
  Interval whole;
  Interval full;
  double error = 0;  // relative, of either
  double lower() const { return std::isfinite(full.value) ? std::min(whole.value, full.value) : 0; }
};

Interval full_ratio(const SimFindings& found) {
  return bootstrap_ratio(found.on.full_rates, found.off.full_rates);
}

// In how many rounds of a wave all ran, without drafts and with.
std::string full_rounds_text(const SimFindings& found) {
  return fmt::format("{:.0f}, {:.0f}", median(found.off.full_rounds), median(found.on.full_rounds));
}

void report_cases(const SimGrid& grid,
                  const std::vector<SimFindings>& findings,
                  Verdicts& verdict,
                  BenchReport* report) {
  BenchTable table;
  table.title = "\nwhere speculation cannot pay: the planner's choice over no drafts";
  table.columns = {"case",
                   "requests",
                   "tokens/s without",
                   "with",
                   "whole wave",
                   "while all run",
                   "standard error",
                   "in rounds",
                   "both at least 0.98"};
  for (size_t i = 0; i < findings.size(); ++i) {
    const SimCase& one = grid.cases[i];
    const SimFindings& f = findings[i];
    const SpeedRatios ratios = {
        add_speedup(one.name, f, report),
        report->add_figure(one.name + " speed-up while all run", "", full_ratio(f)),
        f.speedup_error()};
    report->add_series(one.name + " tokens off", "tokens", f.off.tokens);
    report->add_series(one.name + " tokens on", "tokens", f.on.tokens);
    table.rows.push_back({one.name,
                          fmt::format("{}", one.num_requests),
                          fmt::format("{:.1f}", median(f.off.rates)),
                          fmt::format("{:.1f}", median(f.on.rates)),
                          interval_text(ratios.whole, 3),
                          interval_text(ratios.full, 3),
                          error_text(ratios.error),
                          full_rounds_text(f),
                          verdict.at_least(ratios.lower(), ratios.error, kNeverSlower)});
  }
  report->tables.push_back(std::move(table));
}

void report_sweep(const SimGrid& grid,
                  const std::vector<SimFindings>& findings,
                  Verdicts& verdict,
                  BenchReport* report) {
  BenchTable table;
  table.title = fmt::format("\nrequests at once, {}, {} ms a row more: the planner's choice",
                            name_of(grid.many),
                            grid.many.row_ms);
  table.columns = {"requests",
                   "tokens/s without",
                   "with",
                   "whole wave",
                   "while all run",
                   "standard error",
                   "in rounds",
                   "both at least 0.98",
                   "hit rate",
                   "bubble"};
  PlotSeries off = {"without", PlotMark::kLine, 0, {}};
  PlotSeries on = {"with speculation", PlotMark::kLine, 1, {}};
  for (size_t i = 0; i < findings.size(); ++i) {
    const SimFindings& f = findings[i];
    const BenchX x = {"requests", static_cast<double>(grid.requests[i])};
    report->add_series("sweep off", "tokens/s", f.off.rates, x);
    report->add_series("sweep on", "tokens/s", f.on.rates, x);
    report->add_series("sweep off overhead", "us", f.off.round_overhead_us, x);
    report->add_series("sweep on overhead", "us", f.on.round_overhead_us, x);
    report->add_series("sweep tokens off", "tokens", f.off.tokens, x);
    report->add_series("sweep tokens on", "tokens", f.on.tokens, x);
    const SpeedRatios ratios = {
        report->add_figure("sweep speed-up", "", ratio_of(f), x),
        report->add_figure("sweep speed-up while all run", "", full_ratio(f), x),
        f.speedup_error()};
    table.rows.push_back({fmt::format("{}", grid.requests[i]),
                          fmt::format("{:.1f}", median(f.off.rates)),
                          fmt::format("{:.1f}", median(f.on.rates)),
                          interval_text(ratios.whole, 2),
                          interval_text(ratios.full, 2),
                          error_text(ratios.error),
                          full_rounds_text(f),
                          verdict.at_least(ratios.lower(), ratios.error, kNeverSlower),
                          fmt::format("{:.3f}", f.hit_rate()),
                          percent(f.bubble_share())});
    off.points.push_back({x.value, median(f.off.rates)});
    on.points.push_back({x.value, median(f.on.rates)});
  }
  report->tables.push_back(std::move(table));
  report->plot.panels.push_back(
      {"tokens/s by requests at once", "requests", "tokens/s", {off, on}});
}

// Of rounds and of waves: "median / p90 / mean".
std::string rounds_text(const std::vector<double>& rounds_us, const std::vector<double>& means_us) {
  if (rounds_us.empty()) return "-";
  return fmt::format(
      "{:.0f} / {:.0f} / {:.0f}", median(rounds_us), quantile(rounds_us, 0.9), median(means_us));
}

// What the runtime adds to a round beside the target's step and the wait for drafts. Judged by the
// median round: the mean has in it what the machine does to single ones.
void report_overhead(const SimGrid& grid,
                     const std::vector<SimFindings>& findings,
                     Verdicts& verdict,
                     BenchReport* report) {
  BenchTable table;
  table.title =
      "\na round of all requests less its target step and its wait for drafts, us: median / p90 of "
      "the rounds / mean";
  table.columns = {"requests", "without drafts", "asynchronous drafting", "bar, of the median", ""};
  for (size_t i = 0; i < findings.size(); ++i) {
    const SimFindings& f = findings[i];
    const int32_t num_requests = grid.requests[i];
    const BenchX x = {"requests", static_cast<double>(num_requests)};
    report->add_series("round overhead without drafts", "us", f.off.rounds_us, x);
    report->add_series("round overhead asynchronous drafting", "us", f.on.rounds_us, x);
    const Interval off =
        report->add_figure("overhead without drafts", "us", bootstrap_median(f.off.rounds_us), x);
    const Interval on = report->add_figure(
        "overhead asynchronous drafting", "us", bootstrap_median(f.on.rounds_us), x);
    const double bar = num_requests == 1               ? kMostOverheadUs
                       : num_requests <= kManyRequests ? kMostOverheadManyUs
                                                       : 0;
    table.rows.push_back({fmt::format("{}", num_requests),
                          rounds_text(f.off.rounds_us, f.off.round_overhead_us),
                          rounds_text(f.on.rounds_us, f.on.round_overhead_us),
                          bar > 0 ? fmt::format("{:.0f}", bar) : "",
                          bar > 0 ? verdict(std::max(off.low, on.low) <= bar) : ""});
  }
  if (!table.rows.empty()) report->tables.push_back(std::move(table));
}

}  // namespace

void SimSide::take_in(const SimWave& wave) {
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  rates.push_back(wave.tokens_per_s());
  full_rates.push_back(wave.full_tokens_per_s());
  tokens.push_back(static_cast<double>(wave.num_tokens));
  full_rounds.push_back(static_cast<double>(wave.num_full_rounds));
  append(overhead_us, wave.overhead_us);
  const std::vector<double>& rounds = wave.round_overheads_us;
  round_overhead_us.push_back(rounds.empty() ? 0 : mean(rounds));
  append(rounds_us, rounds);
  variance += relative_rate_variance(wave);
}

void SimFindings::take_in(const SimWave& without, const SimWave& with) {
  off.take_in(without);
  on.take_in(with);
  seconds += with.seconds;
  bubble_s += with.bubble_s;
  num_lookups += with.num_lookups;
  num_hits += with.num_hits;
  num_rounds += with.num_rounds;
  num_round_tokens += with.num_round_tokens;
  examined += with.examined;
  accepted += with.accepted;
  bubble_variance += ratio_variance(with.groups, &RoundGroup::waited_s, &RoundGroup::seconds);
}

double SimFindings::speedup_error() const {
  return std::sqrt(off.variance + on.variance) / static_cast<double>(on.rates.size());
}

double SimFindings::bubble_error() const {
  return std::sqrt(bubble_variance) / static_cast<double>(on.rates.size());
}

int32_t report_sim(const SimGrid& grid, const SimResults& results, BenchReport* report) {
  Verdicts verdict;
  if (!results.synchronous.empty()) report_synchronous(grid, results.synchronous, verdict, report);
  if (!results.chain.empty()) report_chain(grid, results.chain, verdict, report);
  if (!results.cache.empty()) report_cache(grid, results, verdict, report);
  report_over_synchronous(grid, results, verdict, report);
  report_overhead(grid, results.sweep, verdict, report);
  if (!results.cases.empty()) report_cases(grid, results.cases, verdict, report);
  report_sweep(grid, results.sweep, verdict, report);
  plot_speedups(grid, results, report);
  report->notes.push_back(fmt::format(
      "{} rows miss their bar by more than {} standard errors", verdict.num_short(), kErrors));
  return verdict.num_short();
}

}  // namespace outrider
