// See theory_report.h.
#include "tests/theory/theory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/commands/bench/speedup_formulas.h"
#include "tests/theory/paper_formulas.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr VerifyMode kModes[] = {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled};

const SimulatedCell* find(const TheoryReport& report,
                          double alpha,
                          VerifyMode mode,
                          int32_t draft_len) {
  for (const SimulatedCell& cell : report.simulated) {
    if (cell.alpha == alpha && cell.spec.mode == mode && cell.spec.draft_len == draft_len)
      return &cell;
  }
  return nullptr;
}

std::set<double> alphas_of(const TheoryReport& report) {
  std::set<double> alphas;
  for (const SimulatedCell& cell : report.simulated) alphas.insert(cell.alpha);
  return alphas;
}

std::set<int32_t> lengths_of(const TheoryReport& report) {
  std::set<int32_t> lengths;
  for (const SimulatedCell& cell : report.simulated) lengths.insert(cell.spec.draft_len);
  return lengths;
}

// How far measured and expected are apart, in standard errors.
double deviation(const SimulatedCell& cell) {
  const double apart = cell.rounds.tokens_per_round - cell.expected;
  return cell.rounds.standard_error > 0 ? apart / cell.rounds.standard_error : 0;
}

double largest_deviation(const TheoryReport& report) {
  double most = 0;
  for (const SimulatedCell& cell : report.simulated) {
    most = std::max(most, std::abs(deviation(cell)));
  }
  return most;
}

void print_simulated(const TheoryReport& report, std::FILE* out) {
  fmt::print(out,
             "Simulated acceptance: tokens per round through propose() and verify(), {} rounds a "
             "figure\n(the standard rule's expectation is (1 - a^(K+1)) / (1 - a))\n\n",
             report.simulated.empty() ? 0 : report.simulated[0].spec.num_rounds);
  fmt::print(out, "{:>4} {:>3}", "a", "K");
  for (VerifyMode mode : kModes)
    fmt::print(out, " | {:>8} {:>8} {:>7}", "expected", verify_mode_name(mode), "+-");
  fmt::print(out, "\n");
  for (double alpha : alphas_of(report)) {
    for (int32_t draft_len : lengths_of(report)) {
      fmt::print(out, "{:>4} {:>3}", alpha, draft_len);
      for (VerifyMode mode : kModes) {
        const SimulatedCell* cell = find(report, alpha, mode, draft_len);
        if (cell == nullptr) continue;
        fmt::print(out,
                   " | {:>8.4f} {:>8.4f} {:>7.4f}",
                   cell->expected,
                   cell->rounds.tokens_per_round,
                   cell->rounds.standard_error);
      }
      fmt::print(out, "\n");
    }
  }
  fmt::print(out,
             "largest deviation: {:.2f} standard errors in {} figures\n\n",
             largest_deviation(report),
             report.simulated.size());
}

void print_published(const TheoryReport& report, std::FILE* out) {
  fmt::print(out,
             "Leviathan et al., factors at c = 0, beside the simulation by the standard rule\n\n"
             "{:>4} {:>3} | {:>9} {:>9} | {:>10} {:>9}\n",
             "a",
             "K",
             "speed",
             "measured",
             "operations",
             "measured");
  for (const PublishedFactors& row : kPublishedFactors) {
    const SimulatedCell* cell = find(report, row.alpha, VerifyMode::kStandard, row.draft_len);
    if (cell == nullptr) continue;
    fmt::print(out,
               "{:>4} {:>3} | {:>9.2f} {:>9.3f} | {:>10.2f} {:>9.3f}\n",
               row.alpha,
               row.draft_len,
               row.speed,
               cell->rounds.tokens_per_round,
               row.operations,
               (row.draft_len + 1) / cell->rounds.tokens_per_round);
  }
  fmt::print(out, "\n");
}

constexpr double kAsyncAlphas[] = {0.6, 0.7, 0.8, 0.9};
constexpr double kAsyncCosts[] = {0.05, 0.1, 0.2};
constexpr int kLongestSynchronous = 40;

void print_async_drafting(std::FILE* out) {
  fmt::print(
      out,
      "Asynchronous drafting, by formula: speed-up over plain decoding when a verify costs what a "
      "plain "
      "step costs\n(chain: waits for m tokens after a rejection, then goes on; cache: hit rate "
      "h, b tokens drafted after a miss)\n\n"
      "{:>4} {:>5} | {:>11} {:>3} | {:>6} {:>3} {:>3} | {:>9} {:>9} {:>3} | {:>7}\n",
      "a",
      "c",
      "synchronous",
      "K",
      "chain",
      "m",
      "K",
      "cache .8",
      "cache .9",
      "b",
      "ceiling");
  for (double alpha : kAsyncAlphas) {
    for (double cost : kAsyncCosts) {
      const int draft_len = best_draft_len(alpha, cost, kLongestSynchronous);
      const ChainChoice chain = best_chain(alpha, cost);
      const CacheChoice cache = best_cache(alpha, cost, 0.8);
      fmt::print(out,
                 "{:>4} {:>5} | {:>11.2f} {:>3} | {:>6.2f} {:>3} {:>3} | {:>9.2f} {:>9.2f} {:>3} | "
                 "{:>7.2f}\n",
                 alpha,
                 cost,
                 predicted_speedup(alpha, cost, draft_len),
                 draft_len,
                 chain.speedup,
                 chain.num_waited,
                 chain.draft_len,
                 cache.speedup,
                 best_cache(alpha, cost, 0.9).speedup,
                 cache.backup_len,
                 cache_ceiling(alpha, cost));
    }
  }
  fmt::print(out, "\n");
}

void print_mean(std::FILE* out, const char* name, const Mean& mean) {
  fmt::print(out,
             "{:<52} {:>8.4f} +- {:.4f}   over {}\n",
             name,
             mean.value,
             mean.standard_error,
             mean.count);
}

void print_acceptance(const PairMeasurement& pair, std::FILE* out) {
  if (pair.asked) {
    print_mean(out, "alpha: mean of sum min(target_prob, draft_prob)", pair.asked->whole);
    print_mean(out, "  of the distribution that the draft sends", pair.asked->sent);
    print_mean(out, "D_LK, mean", pair.asked->distance);
    fmt::print(out, "{:<52} {:>8.4f}\n", "  1 - D_LK", 1 - pair.asked->distance.value);
    print_mean(out, "chance that coupled choices agree", pair.asked->agreement);
  } else {
    fmt::print(out, "This draft's distributions cannot be asked for: acceptance is counted.\n");
  }
  print_mean(out, "counted acceptance, standard rule, all K", pair.counted);
  if (pair.compared) {
    print_mean(out, "counted acceptance, longest K", pair.compared->counted);
    print_mean(out, "  sum min at the same positions", pair.compared->asked);
  }
}

// The standard rule's expectation from alpha, the coupled one's from the chance of agreement;
// block verification has no formula for a real pair, it is to be no worse than standard.
std::optional<double> expected_of(const PairMeasurement& pair, VerifyMode mode, int32_t draft_len) {
  if (mode == VerifyMode::kStandard) return expected_tokens(pair.alpha(), draft_len);
  if (mode == VerifyMode::kCoupled && pair.asked)
    return expected_tokens(pair.asked->agreement.value, draft_len);
  return std::nullopt;
}

void print_cells(const PairMeasurement& pair, std::FILE* out) {
  fmt::print(out,
             "\n{:<9} {:>3} | {:>8} {:>9} {:>7} {:>7} | {:>8} {:>8} {:>9}\n",
             "rule",
             "K",
             "formula",
             "tok/round",
             "+-",
             "rounds",
             "speed-up",
             "by cost",
             "measured");
  for (const PairCell& cell : pair.cells) {
    const auto expected = expected_of(pair, cell.mode, cell.draft_len);
    const std::string formula = expected ? fmt::format("{:.3f}", *expected) : "-";
    const std::string speedup =
        expected ? fmt::format("{:.2f}", *expected / (cell.draft_len * pair.cost_ratio + 1)) : "-";
    fmt::print(out,
               "{:<9} {:>3} | {:>8} {:>9.3f} {:>7.3f} {:>7} | {:>8} {:>8.2f} {:>9.2f}\n",
               verify_mode_name(cell.mode),
               cell.draft_len,
               formula,
               cell.tokens_per_round.value,
               cell.tokens_per_round.standard_error,
               cell.tokens_per_round.count,
               speedup,
               pair.speedup_by_cost(cell),
               pair.off_tokens_per_s > 0 ? cell.tokens_per_s / pair.off_tokens_per_s : 0);
  }
}

void print_async_pair(const PairMeasurement& pair, std::FILE* out) {
  if (pair.async_passes.empty() || pair.cells.empty()) return;
  const double alpha = pair.alpha();
  const double cost = pair.cost_ratio;
  fmt::print(out,
             "\nAsynchronous drafting, standard rule, K = {}; by formula the chain gives "
             "{:.2f}, the "
             "cache at most {:.2f}\nwhen draft and target do not share cores\n\n",
             pair.cells.back().draft_len,
             best_chain(alpha, cost).speedup,
             cache_ceiling(alpha, cost));
  for (const AsyncPass& pass : pair.async_passes) {
    fmt::print(
        out,
        "{:<8} speed-up {:>5.2f}   of {} bonus draft tokens were accepted {:.3f} +- {:.3f}\n",
        async_drafting_name(pass.mode),
        pair.off_tokens_per_s > 0 ? pass.tokens_per_s / pair.off_tokens_per_s : 0,
        pass.bonus_drafts.count,
        pass.bonus_drafts.value,
        pass.bonus_drafts.standard_error);
  }
}

void print_pair(const TheoryReport& report, std::FILE* out) {
  const PairMeasurement& pair = report.pair;
  fmt::print(out, "{}\n\n", report.title);
  print_acceptance(pair, out);
  fmt::print(out,
             "{:<52} {:>8.4f}   draft step {:.3f} ms, target step {:.3f} ms\n",
             "cost ratio c",
             pair.cost_ratio,
             1e3 * pair.draft_step_s,
             1e3 * pair.target_step_s);
  fmt::print(out,
             "{:<52} {:>8}   speed-up {:.2f} by Theorem 3.8\n",
             "best draft length",
             pair.best_draft_len,
             pair.best_speedup);
  print_cells(pair, out);
  fmt::print(out,
             "\nThe formula takes positions as independent and alike, and a verify to cost what a "
             "plain step costs;\n\"by cost\" takes the tokens per round and the cost of draft and "
             "verify steps as measured.\n");
  print_async_pair(pair, out);
}

Json json_of(const Mean& mean) {
  return {{"mean", mean.value}, {"standard_error", mean.standard_error}, {"count", mean.count}};
}

Json simulated_json(const TheoryReport& report) {
  Json cells = Json::array();
  for (const SimulatedCell& cell : report.simulated) {
    cells.push_back({{"alpha", cell.alpha},
                     {"mode", verify_mode_name(cell.spec.mode)},
                     {"draft_len", cell.spec.draft_len},
                     {"num_rounds", cell.spec.num_rounds},
                     {"tokens_per_round", cell.rounds.tokens_per_round},
                     {"standard_error", cell.rounds.standard_error},
                     {"expected", cell.expected}});
  }
  return cells;
}

Json published_json(const TheoryReport& report) {
  Json rows = Json::array();
  for (const PublishedFactors& row : kPublishedFactors) {
    const SimulatedCell* cell = find(report, row.alpha, VerifyMode::kStandard, row.draft_len);
    if (cell == nullptr) continue;
    rows.push_back({{"alpha", row.alpha},
                    {"draft_len", row.draft_len},
                    {"speed", row.speed},
                    {"operations", row.operations},
                    {"measured_speed", cell->rounds.tokens_per_round},
                    {"measured_operations", (row.draft_len + 1) / cell->rounds.tokens_per_round}});
  }
  return rows;
}

Json async_drafting_json() {
  Json rows = Json::array();
  for (double alpha : kAsyncAlphas) {
    for (double cost : kAsyncCosts) {
      const int draft_len = best_draft_len(alpha, cost, kLongestSynchronous);
      const ChainChoice chain = best_chain(alpha, cost);
      rows.push_back({{"alpha", alpha},
                      {"cost_ratio", cost},
                      {"synchronous", predicted_speedup(alpha, cost, draft_len)},
                      {"draft_len", draft_len},
                      {"chain", chain.speedup},
                      {"chain_waits", chain.num_waited},
                      {"cache_80", best_cache(alpha, cost, 0.8).speedup},
                      {"cache_90", best_cache(alpha, cost, 0.9).speedup},
                      {"ceiling", cache_ceiling(alpha, cost)}});
    }
  }
  return rows;
}

Json pair_json(const TheoryReport& report) {
  const PairMeasurement& pair = report.pair;
  Json json = {{"title", report.title},
               {"counted_acceptance", json_of(pair.counted)},
               {"cost_ratio", pair.cost_ratio},
               {"draft_step_s", pair.draft_step_s},
               {"target_step_s", pair.target_step_s},
               {"tokens_per_s_off", pair.off_tokens_per_s},
               {"best_draft_len", pair.best_draft_len},
               {"best_speedup", pair.best_speedup},
               {"cells", Json::array()}};
  if (pair.asked) {
    json["alpha"] = json_of(pair.asked->whole);
    json["alpha_sent"] = json_of(pair.asked->sent);
    json["d_lk"] = json_of(pair.asked->distance);
    json["coupled_agreement"] = json_of(pair.asked->agreement);
  }
  if (pair.compared) {
    json["same_positions"] = {{"counted", json_of(pair.compared->counted)},
                              {"asked", json_of(pair.compared->asked)}};
  }
  for (const AsyncPass& pass : pair.async_passes) {
    json["async_drafting"].push_back({{"mode", async_drafting_name(pass.mode)},
                                      {"bonus_drafts", json_of(pass.bonus_drafts)},
                                      {"tokens_per_s", pass.tokens_per_s}});
  }
  for (const PairCell& cell : pair.cells) {
    Json entry = {{"mode", verify_mode_name(cell.mode)},
                  {"draft_len", cell.draft_len},
                  {"tokens_per_round", json_of(cell.tokens_per_round)},
                  {"num_examined", cell.num_examined},
                  {"num_accepted", cell.num_accepted},
                  {"tokens_per_s", cell.tokens_per_s},
                  {"verify_step_s", cell.verify_step_s},
                  {"speedup_by_cost", pair.speedup_by_cost(cell)}};
    const auto expected = expected_of(pair, cell.mode, cell.draft_len);
    if (expected) entry["expected_tokens_per_round"] = *expected;
    json["cells"].push_back(std::move(entry));
  }
  return json;
}

PlotPanel simulated_panel(const TheoryReport& report) {
  PlotPanel panel{.title = "simulated acceptance, standard rule: formula and measured",
                  .x_label = "draft length K",
                  .y_label = "tokens per round"};
  int color = 0;
  for (double alpha : alphas_of(report)) {
    PlotSeries line{.name = fmt::format("alpha {}", alpha), .color = color};
    PlotSeries points{.mark = PlotMark::kDots, .color = color};
    for (int32_t draft_len : lengths_of(report)) {
      const SimulatedCell* cell = find(report, alpha, VerifyMode::kStandard, draft_len);
      if (cell == nullptr) continue;
      line.points.push_back({static_cast<double>(draft_len), cell->expected});
      points.points.push_back({static_cast<double>(draft_len),
                               cell->rounds.tokens_per_round,
                               cell->rounds.standard_error});
    }
    panel.series.push_back(std::move(line));
    panel.series.push_back(std::move(points));
    ++color;
  }
  return panel;
}

constexpr PlotMark kMarks[] = {PlotMark::kDots, PlotMark::kSquares, PlotMark::kRings};

PlotSeries formula_line(const TheoryReport& report, VerifyMode mode, bool speedup) {
  PlotSeries line{.name = fmt::format("{}, formula", verify_mode_name(mode)),
                  .mark = mode == VerifyMode::kStandard ? PlotMark::kLine : PlotMark::kDashedLine};
  const PairMeasurement& pair = report.pair;
  const int32_t most = pair.cells.empty() ? 1 : pair.cells.back().draft_len;
  for (int32_t draft_len = 1; draft_len <= most; ++draft_len) {
    const auto tokens = expected_of(pair, mode, draft_len);
    if (!tokens) continue;
    const double cost = speedup ? draft_len * pair.cost_ratio + 1 : 1;
    line.points.push_back({static_cast<double>(draft_len), *tokens / cost});
  }
  return line;
}

PlotSeries cost_line(const PairMeasurement& pair) {
  PlotSeries line{.name = "standard, by measured step costs", .mark = PlotMark::kDashedLine};
  for (const PairCell& cell : pair.cells) {
    if (cell.mode != VerifyMode::kStandard) continue;
    line.points.push_back({static_cast<double>(cell.draft_len), pair.speedup_by_cost(cell)});
  }
  return line;
}

PlotPanel pair_panel(const TheoryReport& report, bool speedup) {
  const PairMeasurement& pair = report.pair;
  PlotPanel panel{
      .title = speedup ? "this pair: speed-up over plain decoding" : "this pair: tokens per round",
      .x_label = "draft length K",
      .y_label = speedup ? "speed-up" : "tokens per round"};
  for (size_t m = 0; m < std::size(kModes); ++m) {
    const VerifyMode mode = kModes[m];
    PlotSeries line = formula_line(report, mode, speedup);
    line.color = static_cast<int>(m);
    if (!line.points.empty()) panel.series.push_back(std::move(line));
    PlotSeries points{.name = fmt::format("{}, measured", verify_mode_name(mode)),
                      .mark = kMarks[m],
                      .color = static_cast<int>(m)};
    for (const PairCell& cell : pair.cells) {
      if (cell.mode != mode) continue;
      const auto x = static_cast<double>(cell.draft_len);
      if (speedup && pair.off_tokens_per_s > 0) {
        points.points.push_back({x, cell.tokens_per_s / pair.off_tokens_per_s});
      } else if (!speedup) {
        points.points.push_back(
            {x, cell.tokens_per_round.value, cell.tokens_per_round.standard_error});
      }
    }
    panel.series.push_back(std::move(points));
  }
  if (speedup) panel.series.push_back(cost_line(pair));
  return panel;
}

}  // namespace

void print_report(const TheoryReport& report, std::FILE* out) {
  print_simulated(report, out);
  print_published(report, out);
  print_async_drafting(out);
  print_pair(report, out);
}

std::string report_json(const TheoryReport& report) {
  const Json json = {{"simulated", simulated_json(report)},
                     {"published", published_json(report)},
                     {"async_drafting", async_drafting_json()},
                     {"pair", pair_json(report)}};
  return json.dump(2) + "\n";
}

Plot report_plot(const TheoryReport& report) {
  return {.title = report.title,
          .panels = {simulated_panel(report), pair_panel(report, false), pair_panel(report, true)}};
}

}  // namespace outrider
