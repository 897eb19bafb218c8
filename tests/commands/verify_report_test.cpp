// The verdict of `outrider verify`: one bad row of any kind, or no rows of a kind, and the exit
// code is 1. And the toy checks themselves: all fit, and with a rule broken they do not.
#include "runtime/commands/verify/verify_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/commands/verify/verify_toy.h"

namespace outrider {
namespace {

CheckRow law(CheckKind kind, double statistic) {
  ChiSquare test;
  test.statistic = statistic;
  test.degrees = 10;
  test.limit = 60.0;
  CheckRow row = law_row(kind, "toy: plain", "block", test);
  row.num_sequences = 1234567;
  return row;
}

CheckRow equality(int64_t num_equal, int64_t num_tokens) {
  CheckRow row;
  row.kind = CheckKind::kEquality;
  row.check = "text: alone = together";
  row.mode = "greedy";
  row.num_sequences = 3;
  row.num_tokens = num_tokens;
  row.num_equal_tokens = num_equal;
  return row;
}

VerifyReport good_report() {
  VerifyReport report;
  report.model = "m";
  report.draft = "d";
  report.rows = {law(CheckKind::kLaw, 12.5), equality(64, 64), law(CheckKind::kControl, 600.0)};
  return report;
}

std::string printed(const VerifyReport& report) {
  std::FILE* file = std::tmpfile();
  print_report(report, file);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(VerifyReport, AllGood) {
  const VerifyReport report = good_report();
  EXPECT_EQ(report.exit_code(), 0);
  const std::string text = printed(report);
  EXPECT_NE(text.find("verdict: EXACT. 2 checks passed, 1 controls were caught"), std::string::npos)
      << text;
  EXPECT_NE(text.find("1,234,567"), std::string::npos);
  EXPECT_EQ(text.find("FAIL"), std::string::npos);
}

TEST(VerifyReport, OneBadRowIsEnough) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  struct Bad {
    size_t index;
    CheckRow row;
    const char* verdict;
  };
  CheckRow troubled = law(CheckKind::kLaw, 12.5);
  troubled.problem = "No draft token was judged.";
  CheckRow empty = law(CheckKind::kLaw, 0.0);
  empty.test.degrees = 0;
  for (const Bad& bad : {Bad{0, law(CheckKind::kLaw, 60.1), "FAIL"},
                         Bad{0, law(CheckKind::kLaw, nan), "FAIL"},
                         Bad{0, law(CheckKind::kLaw, infinity), "FAIL"},
                         Bad{0, troubled, "FAIL"},
                         Bad{0, empty, "FAIL"},
                         Bad{1, equality(63, 64), "FAIL"},
                         Bad{1, equality(0, 0), "FAIL"},
                         Bad{2, law(CheckKind::kControl, 60.0), "MISSED"},
                         Bad{2, law(CheckKind::kControl, nan), "MISSED"}}) {
    VerifyReport report = good_report();
    report.rows[bad.index] = bad.row;
    EXPECT_EQ(report.exit_code(), 1);
    EXPECT_EQ(bad.row.verdict(), bad.verdict);
    const std::string text = printed(report);
    EXPECT_NE(text.find(bad.verdict), std::string::npos);
    EXPECT_NE(text.find("verdict: NOT PROVED. 1 of 3"), std::string::npos) << text;
    EXPECT_NE(text.find(bad.row.problem), std::string::npos);
  }
}

TEST(VerifyReport, NothingOfAKindProvesNothing) {
  EXPECT_EQ(VerifyReport().exit_code(), 1);
  for (int missing = 0; missing < 3; ++missing) {
    VerifyReport report = good_report();
    report.rows.erase(report.rows.begin() + missing);
    EXPECT_EQ(report.exit_code(), 1);
  }
}

TEST(VerifyReport, JsonHasTheRowsAndAnUnwritableFileIsAnError) {
  const std::string path = ::testing::TempDir() + "verify_report_test.json";
  write_report_json(good_report(), path);
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_TRUE(json["passed"].get<bool>());
  ASSERT_EQ(json["checks"].size(), 3u);
  EXPECT_EQ(json["checks"][0]["chi_square"], 12.5);
  EXPECT_EQ(json["checks"][1]["num_tokens"], 64);
  EXPECT_EQ(json["checks"][2]["verdict"], "caught");
  EXPECT_THROW(write_report_json(good_report(), "no/such/folder/x.json"), Error);
}

// That all pass with the right one is verify_e2e_test's.
TEST(VerifyToy, ABrokenRuleFailsWhereItIsUsed) {
  const std::vector<CheckRow> rows =
      run_toy_checks({.num_samples = 20000, .broken_rule = LawFault::kBonusFromWrongRow},
                     [](const std::string&) {});
  int num_failed = 0;
  for (const CheckRow& row : rows) {
    if (row.kind != CheckKind::kLaw) continue;
    // Without a draft there is no bonus token to get wrong.
    if (row.check == "toy: no draft") {
      EXPECT_TRUE(row.passed()) << row.mode;
    }
    num_failed += row.passed() ? 0 : 1;
  }
  EXPECT_GE(num_failed, 9);
}

}  // namespace
}  // namespace outrider
