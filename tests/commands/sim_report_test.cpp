// bench sim: the drawn lengths of a wave's requests, and the verdict over many requests, which
// takes the whole wave and the time while all of them run.
#include "runtime/commands/bench/sim/sim_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/base/settings/run_config.h"
#include "runtime/commands/bench/seeded_draws.h"
#include "runtime/commands/bench/sim/sim_grid.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

TEST(SimLengths, AreUniformBetweenTheRatiosEnds) {
  constexpr int32_t kCount = 40000;
  const std::vector<int32_t> lengths = output_lengths(kCount, 64, 0.5, 7);
  ASSERT_EQ(lengths.size(), static_cast<size_t>(kCount));
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  EXPECT_EQ(*least, 32);
  EXPECT_EQ(*most, 96);
  double mean = 0;
  double squares = 0;
  for (const int32_t length : lengths) mean += static_cast<double>(length) / kCount;
  for (const int32_t length : lengths) squares += (length - mean) * (length - mean) / kCount;
  // 65 numbers: variance (65^2 - 1) / 12 = 352. Standard errors: 0.094 of the mean, 1.6 of it.
  EXPECT_NEAR(mean, 64, 0.4);
  EXPECT_NEAR(squares, 352, 8);
}

TEST(SimLengths, EndsAreRoundedOutwards) {
  const std::vector<int32_t> lengths = output_lengths(2000, 17, 0.5, 0);  // 8.5 to 25.5
  EXPECT_EQ(*std::min_element(lengths.begin(), lengths.end()), 8);
  EXPECT_EQ(*std::max_element(lengths.begin(), lengths.end()), 26);
  const std::vector<int32_t> widest = output_lengths(2000, 16, 0.99, 0);  // 0.16 to 31.84
  EXPECT_EQ(*std::min_element(widest.begin(), widest.end()), 1);
  EXPECT_EQ(*std::max_element(widest.begin(), widest.end()), 32);
}

TEST(SimLengths, ASeedGivesTheSameAndAnotherOneOthers) {
  const std::vector<int32_t> lengths = output_lengths(64, 128, 0.5, 3);
  EXPECT_EQ(output_lengths(64, 128, 0.5, 3), lengths);
  EXPECT_NE(output_lengths(64, 128, 0.5, 4), lengths);
  EXPECT_GT(std::set<int32_t>(lengths.begin(), lengths.end()).size(), 30u);
}

TEST(SimLengths, AreEqualWithoutARatioAndExactForOneRequest) {
  EXPECT_EQ(output_lengths(5, 64, 0, 3), std::vector<int32_t>(5, 64));
  EXPECT_EQ(output_lengths(1, 64, 0.5, 3), std::vector<int32_t>(1, 64));
}

void set(const char* key, const std::string& text) {
  SimOptions options;
  for (const Option& option : sim_options(&options)) {
    if (option.key == key) return option.set(text);
  }
  FAIL() << key;
}

TEST(SimLengths, BadOptionsAreRefused) {
  EXPECT_TRUE(fails_with([] { set("random_range_ratio", "0.5"); }, "no error"));
  for (const char* bad : {"1", "-0.1", "2"}) {
    EXPECT_TRUE(fails_with([&] { set("random_range_ratio", bad); }, "is not between 0 and 0.99"));
  }
  EXPECT_TRUE(fails_with([] { set("random_range_ratio", "nan"); }, "'nan' is not a number"));
  EXPECT_TRUE(fails_with([] { set("random_range_ratio", "half"); }, "'half' is not a number"));
  EXPECT_TRUE(fails_with([] { set("seed", "-1"); }, "is not between 0 and"));
}

SimWave wave(double tokens_per_s, double full_tokens_per_s) {
  SimWave one;
  one.seconds = 10;
  one.num_tokens = static_cast<int64_t>(10 * tokens_per_s);
  one.full_seconds = 5;
  one.num_full_tokens = static_cast<int64_t>(5 * full_tokens_per_s);
  one.num_full_rounds = 40;
  one.round_overheads_us = {100};
  return one;
}

// The cell of the column in the table's first row.
std::string cell(const BenchTable& table, const std::string& column) {
  const auto found = std::find(table.columns.begin(), table.columns.end(), column);
  if (found == table.columns.end() || table.rows.empty()) return "no such column";
  return table.rows[0].at(static_cast<size_t>(found - table.columns.begin()));
}

struct ManyVerdicts {
  BenchReport report;
  int32_t num_short = 0;
  const BenchTable& table(const std::string& title) const {
    for (const BenchTable& one : report.tables) {
      if (one.title.find(title) != std::string::npos) return one;
    }
    ADD_FAILURE() << title;
    return report.tables.front();
  }
  std::string sweep(const std::string& column) const {
    return cell(table("requests at once"), column);
  }
  std::string of_case(const std::string& column) const { return cell(table("cannot pay"), column); }
};

constexpr char kVerdict[] = "both at least 0.98";

// 64 requests, as a row of the sweep and as a case, of two turns: without drafts 1,000 tokens/s.
ManyVerdicts judge(const SimWave& with) {
  SimOptions options;
  options.requests = {64};
  options.modes = {"cache"};
  options.alphas = {0.8};
  options.costs = {0.1};
  RunConfig config;
  SimGrid grid = make_sim_grid(options, config);
  grid.cases.resize(1);
  SimResults results;
  results.sweep.resize(1);
  results.cases.resize(1);
  for (int turn = 0; turn < 2; ++turn) {
    results.sweep[0].take_in(wave(1000, 1000), with);
    results.cases[0].take_in(wave(1000, 1000), with);
  }
  ManyVerdicts verdicts;
  verdicts.num_short = report_sim(grid, results, &verdicts.report);
  return verdicts;
}

TEST(SimVerdict, ManyRequestsPassByTheWholeWaveAndWhileAllRun) {
  const ManyVerdicts good = judge(wave(1500, 990));
  EXPECT_EQ(good.sweep("whole wave"), "1.50 [1.50, 1.50]");
  EXPECT_EQ(good.sweep("while all run"), "0.99 [0.99, 0.99]");
  EXPECT_EQ(good.sweep("in rounds"), "40, 40");
  EXPECT_EQ(good.sweep(kVerdict), "pass");
  EXPECT_EQ(good.of_case("whole wave"), "1.500 [1.500, 1.500]");
  EXPECT_EQ(good.of_case("while all run"), "0.990 [0.990, 0.990]");
  EXPECT_EQ(good.of_case(kVerdict), "pass");
}

TEST(SimVerdict, EitherOfThemBelowFallsShort) {
  for (const SimWave& with : {wave(970, 1500), wave(1500, 970), wave(970, 970)}) {
    const ManyVerdicts bad = judge(with);
    EXPECT_EQ(bad.sweep(kVerdict), "falls short");
    EXPECT_EQ(bad.of_case(kVerdict), "falls short");
  }
}

// 40 rounds in 4 groups, of which two got a share more than the mean and two as much less.
SimWave uneven_wave(double tokens_per_s, double share) {
  SimWave one = wave(tokens_per_s, tokens_per_s);
  for (const double sign : {1.0, -1.0, 1.0, -1.0}) {
    const double tokens = static_cast<double>(one.num_full_tokens) / 4 * (1 + sign * share);
    one.groups.push_back({.seconds = one.full_seconds / 4, .num_tokens = tokens});
  }
  return one;
}

// Two waves of 4 groups: share x sqrt(4 / 3 / 4) of one, by sqrt(2) of both. 0.97 is 1.03% of
// itself below 0.98.
TEST(SimVerdict, ARowMayMissItsBarByTwoStandardErrors) {
  const ManyVerdicts sure = judge(uneven_wave(970, 0.01));
  EXPECT_EQ(sure.sweep("standard error"), "0.4%");
  EXPECT_EQ(sure.sweep(kVerdict), "falls short");
  EXPECT_EQ(sure.of_case(kVerdict), "falls short");
  EXPECT_EQ(sure.num_short, 2);
  const ManyVerdicts unsure = judge(uneven_wave(970, 0.02));
  EXPECT_EQ(unsure.sweep("standard error"), "0.8%");
  EXPECT_EQ(unsure.sweep(kVerdict), "pass");
  EXPECT_EQ(unsure.of_case(kVerdict), "pass");
  EXPECT_EQ(unsure.num_short, 0);
}

// One request against the formulas, all of 3 waves alike.
TEST(SimVerdict, RowsOfOneRequestAreJudgedTheSameWay) {
  SimOptions options;
  options.modes = {"off", "cache"};
  options.alphas = {0.8};
  options.costs = {0.1};
  options.requests = {1};
  RunConfig config;
  SimGrid grid = make_sim_grid(options, config);
  for (const bool is_sure : {true, false}) {
    const double share = is_sure ? 0.001 : 0.25;
    SimResults results;
    results.synchronous.resize(1);
    results.cache.resize(1);
    results.sweep.resize(1);
    for (int turn = 0; turn < 3; ++turn) {
      const SimWave off = wave(100, 100);
      results.synchronous[0].take_in(off, uneven_wave(230, share));  // Leviathan: 2.48
      results.cache[0].take_in(off, uneven_wave(320, share));        // bar: 3.61
      results.sweep[0].take_in(off, uneven_wave(200, share));
    }
    BenchReport report;
    // Both rows and the ratio of the two.
    EXPECT_EQ(report_sim(grid, results, &report), is_sure ? 3 : 0);
  }
}

TEST(SimVerdict, AWaveThatNeverRanWholeFallsShort) {
  SimWave none = wave(1500, 0);
  none.full_seconds = 0;
  none.num_full_rounds = 0;
  EXPECT_EQ(judge(none).sweep(kVerdict), "falls short");
  SimOptions options;
  options.requests = {64};
  RunConfig config;
  SimGrid grid = make_sim_grid(options, config);
  SimResults results;
  results.sweep.resize(1);
  results.sweep[0].take_in(none, wave(1500, 1500));  // nothing to compare with
  ManyVerdicts verdicts;
  report_sim(grid, results, &verdicts.report);
  EXPECT_EQ(verdicts.sweep("while all run"), "-");
  EXPECT_EQ(verdicts.sweep(kVerdict), "falls short");
}

}  // namespace
}  // namespace outrider
