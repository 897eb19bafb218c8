// bench decode's tables: with the planner's lengths there is no K, so no formula of K.
#include "runtime/commands/bench/decode/decode_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

DecodeLength length(int32_t draft_len, bool is_auto) {
  DecodeLength one{.draft_len = draft_len, .is_auto = is_auto};
  one.tokens_per_s = {draft_len == 0 ? 10.0 : 20.0};
  one.step_ms = {100};
  one.draft_step_ms = {10};
  if (draft_len > 0) {
    one.drafted = {10, 10, 5};
    one.examined = {10, 8, 3};
    one.accepted = {8, 4, 2};
  }
  one.num_rounds = 10;
  one.num_tokens = 24;
  one.texts = {{1, 2}};
  return one;
}

BenchReport report_of(bool is_auto) {
  DecodeMeasurement pair;
  pair.model = "target";
  pair.draft = "draft";
  pair.lengths = {length(0, false), length(16, is_auto)};
  BenchReport report;
  report_decode({pair}, {}, &report);
  return report;
}

std::string cell(const BenchReport& report, const std::string& column) {
  const BenchTable& table = report.tables.front();
  const auto found = std::find(table.columns.begin(), table.columns.end(), column);
  return found == table.columns.end()
             ? "no such column"
             : table.rows.at(1).at(static_cast<size_t>(found - table.columns.begin()));
}

TEST(DecodeReport, AFixedLengthIsComparedWithTheFormulas) {
  const BenchReport report = report_of(false);
  EXPECT_EQ(cell(report, "draft length"), "16");
  EXPECT_EQ(cell(report, "speed-up predicted"),
            "1.15");  // (1 - a^17) / ((1 - a)(1 + 1.6)), a = 2/3
  EXPECT_EQ(nlohmann::json::parse(report.details)["num_speculative_tokens"], 16);
}

TEST(DecodeReport, TheProgramsOwnLengthsHaveNoPrediction) {
  const BenchReport report = report_of(true);
  EXPECT_EQ(cell(report, "draft length"), "auto, 2.5 on average");
  EXPECT_EQ(cell(report, "speed-up predicted"), "");
  EXPECT_EQ(cell(report, "by step times"), "");
  EXPECT_EQ(cell(report, "measured"), "2.00");
  const auto details = nlohmann::json::parse(report.details);
  EXPECT_EQ(details["num_speculative_tokens"], "auto");
  EXPECT_EQ(details["mean_draft_len"], 2.5);
  EXPECT_FALSE(details.contains("speedup_predicted"));
  for (const BenchFigure& figure : report.figures)
    EXPECT_EQ(figure.name.find("predicted"), std::string::npos) << figure.name;
}

}  // namespace
}  // namespace outrider
