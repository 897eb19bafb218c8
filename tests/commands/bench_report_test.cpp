// The form all benchmarks report in: statistics against known laws, JSON, CSV and plot as readers
// expect them.
#include "runtime/commands/bench/report/bench_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/bench/report/bench_lists.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "runtime/commands/build_info.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

// Standard normal, by Box and Muller from two of our uniforms.
double normal(uint32_t list, uint32_t place) {
  const PhiloxBlock noise = philox4x32_10({{place, list, 7, 7}}, 11, 13);
  const double radius = std::sqrt(-2 * std::log(uniform_from_bits(noise.lane[0])));
  return radius * std::cos(2 * std::numbers::pi * uniform_from_bits(noise.lane[1]));
}

std::vector<double> normals(uint32_t list, int count, double mean, double deviation) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i)
    values.push_back(mean + deviation * normal(list, static_cast<uint32_t>(i)));
  return values;
}

TEST(Quantile, LiesLinearlyBetweenOrderStatistics) {
  const std::vector<double> values = {40, 10, 30, 20};
  EXPECT_EQ(quantile(values, 0), 10);
  EXPECT_EQ(quantile(values, 0.5), 25);
  EXPECT_EQ(quantile(values, 1), 40);
  EXPECT_DOUBLE_EQ(quantile(values, 0.95), 38.5);  // numpy.percentile(values, 95)
  EXPECT_DOUBLE_EQ(quantile({7}, 0.99), 7);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
}

TEST(Bootstrap, CoversTheMedianOfNormalsAsOftenAsItSays) {
  int num_covered = 0;
  double width = 0;
  for (uint32_t list = 0; list < 400; ++list) {
    const Interval found = bootstrap_median(normals(list, 31, 5, 2));
    num_covered += found.low <= 5 && 5 <= found.high ? 1 : 0;
    width += (found.high - found.low) / 400;
  }
  EXPECT_GE(num_covered, 360);
  EXPECT_LE(num_covered, 396);
  // 2 * 1.96 standard errors of a median of normals, sqrt(pi / 2) * deviation / sqrt(n).
  const double expected = 2 * 1.96 * std::sqrt(std::numbers::pi / 2) * 2 / std::sqrt(31);
  EXPECT_LE(std::abs(width - expected), 0.15 * expected);
}

TEST(Bootstrap, RatioOfPairsForgetsWhatDisturbsBoth) {
  std::vector<double> slow, fast;
  for (uint32_t i = 0; i < 25; ++i) {
    const double disturbance = 1 + std::abs(normal(1000, i));  // up to several times as long
    fast.push_back(10 * disturbance);
    slow.push_back(11 * disturbance * (1 + 0.001 * normal(1001, i)));
  }
  EXPECT_GE(quantile(fast, 1) / quantile(fast, 0), 2);  // the disturbance is real
  const Interval ratio = bootstrap_ratio(slow, fast);
  EXPECT_LE(std::abs(ratio.value - 1.1), 0.002);
  EXPECT_LE(ratio.high - ratio.low, 0.004);
  EXPECT_LE(ratio.low, 1.1);
  EXPECT_LE(1.1, ratio.high);
}

TEST(Bootstrap, SaysTheSameEachTimeAndNothingOfOneSample) {
  const std::vector<double> values = normals(5, 20, 0, 1);
  EXPECT_EQ(bootstrap_median(values).low, bootstrap_median(values).low);
  EXPECT_LE(bootstrap_median(values).low, bootstrap_median(values).high - 0.1);
  const std::vector<double> one = {3};
  EXPECT_EQ(bootstrap_median(one).value, 3);
  EXPECT_TRUE(std::isnan(bootstrap_median(one).low));
  EXPECT_TRUE(std::isnan(bootstrap_median({}).value));
}

TEST(Turns, WhoIsFirstMovesOn) {
  std::string order;
  run_in_turns(4, {[&] { order += 'a'; }, [&] { order += 'b'; }});
  EXPECT_EQ(order, "abbaabba");
  order.clear();
  run_in_turns(3, {[&] { order += 'a'; }, [&] { order += 'b'; }, [&] { order += 'c'; }});
  EXPECT_EQ(order, "abcbcacab");
}

TEST(Turns, ProgressIsSilentOnShortWork) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("a test", 3, file);
    run_in_turns(3, {[] {}}, &progress);
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

BenchReport example() {
  BenchReport report;
  report.kind = "example";
  report.title = "model \"a, b\"";
  report.command = "outrider bench example";
  report.options = {{"model", "\"a, b\""}, {"rows", "[1, 5]"}, {"isa", "auto"}};
  Topology topology;
  topology.ranks = {{0, "coordinator+target[0/2]", "north", 2, "cpu"},
                    {1, "target[1/2]", "south", 2, "Some GPU"},
                    {2, "draft", "north", 1, "cpu"}};
  topology.library = "Some MPI 4.1";
  report.environment = look_around("scalar", topology);
  report.add_series("step, plain", "ms", {1.5, 2.5, 3.5}, {"rows", 5});
  report.add_series("read", "GB/s", {30});
  report.add_figure(
      "ratio", "", bootstrap_ratio(report.series[0].samples, report.series[0].samples));
  report.add_figure("peak", "GFLOP/s", std::numeric_limits<double>::infinity());
  report.details = R"({"num_answers": 3})";
  report.plot = {.title = "a < b & c",
                 .panels = {{.title = "p", .series = {{.name = "s", .points = {{1, 2}, {2, 3}}}}}}};
  report.tables = {{"", {"name", "value"}, {{"one", "1.0"}, {"a longer one", "22.5"}}}};
  report.notes = {"a note"};
  return report;
}

TEST(BenchReport, JsonHoldsEnvironmentOptionsFiguresAndEverySample) {
  const Json json = Json::parse(report_json(example()));
  EXPECT_EQ(json["kind"], "example");
  EXPECT_EQ(json["command"], "outrider bench example");
  EXPECT_EQ(json["options"]["model"], "a, b");
  EXPECT_EQ(json["options"]["rows"], Json({1, 5}));
  EXPECT_EQ(json["options"]["isa"], "auto");
  EXPECT_EQ(json["num_answers"], 3);
  const Json& around = json["environment"];
  for (const char* key : {"date", "version", "commit", "compiler", "mpi", "cuda", "host", "isa"})
    EXPECT_FALSE(around[key].get<std::string>().empty()) << key;
  EXPECT_EQ(around["isa"], "scalar");
  EXPECT_GE(around["num_cores"], 1);
  EXPECT_GE(around["memory_bytes"], 1 << 20);
  EXPECT_GE(around["num_numa_nodes"], 1);
  EXPECT_EQ(around["load_average_at_start"].size(), 3);
  EXPECT_EQ(around["load_average_at_end"].size(), 3);
  EXPECT_EQ(around["topology"]["library"], "Some MPI 4.1");
  EXPECT_EQ(around["topology"]["hosts"], Json({"north", "south"}));
  EXPECT_EQ(around["topology"]["ranks"][1]["host"], "south");
  EXPECT_EQ(around["topology"]["ranks"][1]["device"], "Some GPU");
  EXPECT_EQ(around["topology"]["ranks"][2]["threads"], 1);
  ASSERT_EQ(json["series"].size(), 2);
  EXPECT_EQ(json["series"][0]["samples"], Json({1.5, 2.5, 3.5}));
  EXPECT_EQ(json["series"][0]["x_name"], "rows");
  EXPECT_EQ(json["series"][0]["x"], 5);
  EXPECT_EQ(json["series"][0]["median"], 2.5);
  EXPECT_FALSE(json["series"][1].contains("x"));
  EXPECT_TRUE(json["series"][1]["median_low"].is_null());  // one sample has no interval
  EXPECT_EQ(json["figures"][0]["value"], 1);
  EXPECT_TRUE(json["figures"][1]["value"].is_null());
}

TEST(BenchReport, TheCommitIsAHashOrUnknown) {
  std::string commit = kBuildCommit;
  if (commit == "unknown") return;
  if (commit.ends_with("+dirty")) commit.resize(commit.size() - 6);
  EXPECT_EQ(commit.size(), 40);
  EXPECT_EQ(commit.find_first_not_of("0123456789abcdef"), std::string::npos) << commit;
}

TEST(BenchReport, CsvHasOneRowASampleAndQuotesWhatNeedsIt) {
  EXPECT_EQ(report_csv(example()),
            "kind,series,x_name,x,sample,value,unit\r\n"
            "example,\"step, plain\",rows,5,0,1.5,ms\r\n"
            "example,\"step, plain\",rows,5,1,2.5,ms\r\n"
            "example,\"step, plain\",rows,5,2,3.5,ms\r\n"
            "example,read,,,0,30,GB/s\r\n");
  EXPECT_EQ(csv_field("plain"), "plain");
  EXPECT_EQ(csv_field("say \"a\""), "\"say \"\"a\"\"\"");
  EXPECT_EQ(csv_field("two\nlines"), "\"two\nlines\"");
}

TEST(BenchReport, TableIsAligned) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  print_tables(example(), file);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_EQ(text,
            "model \"a, b\"\n\n"
            "name          value\n"
            "one             1.0\n"
            "a longer one   22.5\n\n"
            "a note\n");
}

TEST(BenchReport, JsonSaysWhatToDraw) {
  const auto plot = nlohmann::json::parse(report_json(example())).at("plot");
  EXPECT_EQ(plot.at("title"), "a < b & c");
  const auto& series = plot.at("panels").at(0).at("series").at(0);
  EXPECT_EQ(series.at("mark"), "line");
  EXPECT_EQ(series.at("points"), nlohmann::json::parse("[[1.0, 2.0, 0.0], [2.0, 3.0, 0.0]]"));
}

TEST(BenchReport, FilesAreCheckedBeforeAndWrittenAfter) {
  EXPECT_THROW(check_outputs({.json_file = "no/such/folder/a.json"}), Error);
  EXPECT_THROW(check_outputs({.csv_file = "no/such/folder/a.csv"}), Error);
  EXPECT_NO_THROW(check_outputs({.json_file = "here.json"}));
  EXPECT_THROW(write_report(example(), {.csv_file = "no/such/folder/a.csv"}), Error);
}

TEST(BenchReport, ASingleSampleIsDrawnWithoutAnErrorBar) {
  const PlotPoint measured = plot_point(4, {2.0, 1.5, 2.7});
  EXPECT_EQ(measured.x, 4);
  EXPECT_EQ(measured.y, 2.0);
  EXPECT_NEAR(measured.error, 0.6, 1e-12);
  const PlotPoint single = plot_point(4, bootstrap_median(std::vector<double>{3.0}));
  EXPECT_EQ(single.y, 3.0);
  EXPECT_EQ(single.error, 0);
}

TEST(BenchReport, IntervalsAsText) {
  EXPECT_EQ(interval_text({1.054, 1.03, 1.081}, 2), "1.05 [1.03, 1.08]");
  const double none = std::nan("");
  EXPECT_EQ(interval_text({1.054, none, none}, 1), "1.1");
  EXPECT_EQ(interval_text({none, none, none}, 1), "-");
}

TEST(Lists, NumbersBetweenCommasAndNothingElse) {
  std::vector<int32_t> rows;
  const Option option = integer_list_option("rows", &rows, 1, 32, "");
  option.set("5,1,32");
  EXPECT_EQ(rows, (std::vector<int32_t>{5, 1, 32}));
  EXPECT_EQ(option.get(), "[5, 1, 32]");
  for (const char* wrong : {"", ",", "1,", "0", "33", "1 2", "1,x", "1.5", "99999999999"})
    EXPECT_THROW(option.set(wrong), Error) << wrong;
  EXPECT_EQ(rows.size(), 3);  // a refused list changes nothing
  std::vector<double> shares;
  const Option numbers = number_list_option("shares", &shares, 0, 1, "");
  numbers.set("0.25,1");
  EXPECT_EQ(shares, (std::vector<double>{0.25, 1}));
  for (const char* wrong : {"nan", "inf", "-0.1", "1.1"})
    EXPECT_THROW(numbers.set(wrong), Error) << wrong;
}

TEST(Lists, Words) {
  std::vector<std::string> words;
  const Option option = word_list_option("drafts", &words, "");
  option.set("a,b/c");
  EXPECT_EQ(words, (std::vector<std::string>{"a", "b/c"}));
  EXPECT_EQ(option.get(), "\"a,b/c\"");
  option.set("");
  EXPECT_TRUE(words.empty());
}

TEST(PredictedSpeedup, ByStepTimesIsTheTheoremWhenAVerifyCostsAStep) {
  for (const double alpha : {0.0, 0.5, 0.8, 1.0}) {
    for (const int draft_len : {1, 4, 8}) {
      EXPECT_DOUBLE_EQ(predicted_speedup(alpha, draft_len, {20, 20, 2}),
                       predicted_speedup(alpha, 0.1, draft_len));
    }
  }
  // 1 + 0.5 + 0.25 tokens for a verification of 30 and two draft steps of 5, against 20 each.
  EXPECT_DOUBLE_EQ(predicted_speedup(0.5, 2, {20, 30, 5}), 1.75 * 20 / 40);
}

}  // namespace
}  // namespace outrider
