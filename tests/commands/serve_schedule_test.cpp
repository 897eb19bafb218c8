// bench serve, what is planned: arrivals against the moments of their law, traces, prompts, bodies,
// options.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_requests.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

std::vector<double> gaps_of(const std::vector<double>& times) {
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  return gaps;
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double third = 0;  // skewness
};

Moments moments_of(const std::vector<double>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) m.mean += v / n;
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (const double v : values) m.third += std::pow((v - m.mean) / std::sqrt(m.variance), 3) / n;
  return m;
}

TEST(ServeArrivals, GapsHaveTheMomentsOfTheGammaLaw) {
  constexpr int32_t kCount = 200000;
  constexpr double kRate = 8;
  for (const double shape : {0.25, 0.5, 1.0, 3.0, 20.0}) {
    const std::vector<double> times = arrival_times(kRate, shape, 7, kCount);
    ASSERT_EQ(times.size(), static_cast<size_t>(kCount));
    EXPECT_NEAR(times.back(), kCount / kRate, 1e-6);
    const std::vector<double> gaps = gaps_of(times);
    for (const double gap : gaps) ASSERT_GE(gap, 0);
    const Moments m = moments_of(gaps);
    // Gamma of shape k: variance mean^2 / k, skewness 2 / sqrt(k). Standard errors of the figures
    // over 200,000 gaps lie below a fifth of the limits.
    EXPECT_NEAR(m.mean, 1 / kRate, 1e-3 / kRate) << shape;
    EXPECT_NEAR(m.variance * kRate * kRate * shape, 1, 0.06) << shape;
    EXPECT_NEAR(m.third * std::sqrt(shape) / 2, 1, shape > 10 ? 0.12 : 0.1) << shape;
  }
}

// Share of Poisson gaps below t is 1 - exp(-rate t): more than moments.
TEST(ServeArrivals, PoissonGapsHaveTheExponentialLaw) {
  const std::vector<double> gaps = gaps_of(arrival_times(2, 1, 11, 100000));
  for (const double t : {0.01, 0.1, 0.5, 1.0, 2.0}) {
    double below = 0;
    for (const double gap : gaps) below += gap < t ? 1 : 0;
    EXPECT_NEAR(below / static_cast<double>(gaps.size()), 1 - std::exp(-2 * t), 0.007) << t;
  }
}

TEST(ServeArrivals, TheSameSeedGivesTheSameTimesAndAnotherGivesOthers) {
  const std::vector<double> times = arrival_times(4, 1, 3, 50);
  EXPECT_EQ(times, arrival_times(4, 1, 3, 50));
  EXPECT_NE(times, arrival_times(4, 1, 4, 50));
  EXPECT_NE(gaps_of(times), gaps_of(arrival_times(4, 2, 3, 50)));
}

TEST(ServeArrivals, InfiniteRateIsAllAtOnceAndInfiniteBurstinessIsEven) {
  for (const double time : arrival_times(INFINITY, 1, 0, 20)) EXPECT_EQ(time, 0);
  const std::vector<double> times = arrival_times(5, INFINITY, 0, 20);
  for (size_t i = 0; i < times.size(); ++i)
    EXPECT_NEAR(times[i], static_cast<double>(i + 1) / 5, 1e-12);
  EXPECT_TRUE(arrival_times(5, 1, 0, 0).empty());
}

TEST(ServeDataset, TimedTraceAndWhatIsWrongWithIt) {
  const std::string good =
      R"({"timestamp": 1000, "input_length": 513, "output_length": 7, "hash_ids": [4, 9]})"
      "\n";
  const auto rows = parse_timed_trace(
      good + R"({"timestamp": 1500.5, "input_length": 3, "output_length": 0})" + "\n", "m");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].input_len, 513);
  EXPECT_EQ(rows[0].output_len, 7);
  EXPECT_EQ(rows[1].arrival_s, 0.5005);
  EXPECT_EQ(rows[1].output_len, 1);
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::string>>{
           {"[1]", "not a JSON object"},
           {"{", "not a JSON object"},
           {R"({"timestamp": )" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}",
            "nested deeper than 64"},
           {R"({"input_length": 5, "output_length": 5})", "timestamp"},
           {R"({"timestamp": 2000, "output_length": 5})", "input_length must be 1"},
           {R"({"timestamp": 2000, "input_length": 5.5, "output_length": 5})", "input_length must"},
           {R"({"timestamp": 2000, "input_length": 0, "output_length": 5})", "input_length must"},
           {R"({"timestamp": 2000, "input_length": 18446744073709551615, "output_length": 5})",
            "input_length must"},
           {R"({"timestamp": 1, "input_length": 5, "output_length": 5})", "earlier"},
           {R"({"timestamp": 1e18, "input_length": 5, "output_length": 5})", "out of range"}}) {
    const std::string sentence =
        error_of([&, &line = line] { parse_timed_trace(good + line, "m"); });
    EXPECT_NE(sentence.find("m line 2"), std::string::npos) << line << ": " << sentence;
    EXPECT_NE(sentence.find(words), std::string::npos) << line << ": " << sentence;
  }
  EXPECT_TRUE(fails_with([] { parse_timed_trace("", "m"); }, "no requests"));
}

std::string data_folder() {
  const char* given = std::getenv("OUTRIDER_DATA");
  return given != nullptr ? given : std::string(OUTRIDER_SOURCE_DIR) + "/../shared/data";
}

std::shared_ptr<const Tokenizer> embedded_tokenizer() {
  return Tokenizer::load(std::string(OUTRIDER_SOURCE_DIR) + "/models/embedded/target");
}

TEST(ServePrompts, TextHasTheTokensAskedFor) {
  const auto tokenizer = embedded_tokenizer();
  const PromptMaker maker(tokenizer);
  std::set<std::string> texts;
  for (const int32_t length : {2, 17, 300}) {
    for (uint64_t key = 0; key < 5; ++key) {
      const ServePrompt prompt = maker.make({1, length / 2}, {100 + key, length - length / 2});
      EXPECT_EQ(prompt.num_tokens, length);
      EXPECT_EQ(tokenizer->encode(prompt.text).size(), static_cast<size_t>(length));
      EXPECT_TRUE(texts.insert(prompt.text).second);
      EXPECT_EQ(prompt.text, maker.make({1, length / 2}, {100 + key, length - length / 2}).text);
    }
  }
}

TEST(ServePrompts, TextFitsForTokenizersOfOthers) {
  const std::string folder = data_folder() + "/tokenizers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no data folder at " << folder;
  for (const char* name : {"smollm2", "llama2-spm"}) {
    const auto tokenizer = Tokenizer::load(folder + "/" + name);
    const PromptMaker maker(tokenizer);
    for (const int32_t length : {8, 129, 1000}) {
      const ServePrompt prompt = maker.make({1, length / 4}, {2, length - length / 4});
      EXPECT_EQ(prompt.num_tokens, length) << name;
      EXPECT_EQ(tokenizer->encode(prompt.text).size(), static_cast<size_t>(length)) << name;
    }
  }
}

TEST(ServePrompts, EqualKeysAreEqualBeginnings) {
  const PromptMaker words(nullptr);
  const std::string text = words.make({7, 16}, {8, 16}).text;
  EXPECT_EQ(text.find(words.make({7, 16}, {}).text + " "), 0u);
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 31);
  EXPECT_EQ(words.make({7, 16}, {8, 9}).num_tokens, 25);
}

TEST(ServePrompts, FilesOfLinesAndJson) {
  const auto prompts = parse_prompt_lines(
      "A plain line.\n\n{\"prompt\": \"one\", \"output_tokens\": 9}\r\n"
      "{\"turns\": [\"two\", \"more\"]}\n",
      "p");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].text, "A plain line.");
  EXPECT_EQ(prompts[1].text, "one");
  EXPECT_EQ(prompts[1].output_len, 9);
  EXPECT_EQ(prompts[2].text, "two");
  for (const char* bad : {"{\"prompt\": 5}",
                          "{",
                          "{\"turns\": []}",
                          "{\"turns\": [5]}",
                          "{\"prompt\": \"\"}",
                          "{\"prompt\": \"a\", \"max_tokens\": -3}"}) {
    EXPECT_TRUE(fails_with([&] { parse_prompt_lines(std::string("x\n") + bad, "p"); }, "p line 2"));
  }
  EXPECT_TRUE(fails_with([] { parse_prompt_lines("\n", "p"); }, "no prompts"));
}

// A small model's context holds prompt and answer; a length that was given stays.
TEST(ServePlan, LengthsThatWereNotGivenFitTheModel) {
  ServeBenchOptions options;
  options.num_prompts = 1;
  const auto lengths = [&](int32_t max_model_len) {
    const RequestShape row = load_shapes(options, max_model_len).front();
    return std::pair(row.input_len, row.output_len);
  };
  EXPECT_EQ(lengths(0), std::pair(1024, 128));
  EXPECT_EQ(lengths(4096), std::pair(1024, 128));
  EXPECT_EQ(lengths(1024), std::pair(512, 128));
  EXPECT_EQ(lengths(256), std::pair(128, 64));
  options.random_input_len = 700;
  EXPECT_EQ(lengths(256), std::pair(700, 64));
}

TEST(ServePlan, TheSameSeedGivesTheSameBodiesAndTimes) {
  ServeBenchOptions options;
  options.num_prompts = 20;
  options.random_input_len = 40;
  options.random_range_ratio = 0.5;
  options.random_prefix_len = 8;
  const auto shapes = load_shapes(options, 0);
  std::set<int32_t> lengths;
  for (const RequestShape& shape : shapes) {
    EXPECT_TRUE(shape.input_len >= 28 && shape.input_len <= 68) << shape.input_len;
    lengths.insert(shape.input_len);
  }
  EXPECT_GT(lengths.size(), 5u);
  const PromptMaker maker(nullptr);
  RunSpec run{.options = options, .model = "m", .rate_per_s = 10, .salt = 4};
  const auto requests = plan_run(shapes, run, maker);
  const auto again = plan_run(load_shapes(options, 0), run, maker);
  run.salt = 5;
  const auto salted = plan_run(shapes, run, maker);
  std::set<std::string> bodies;
  const auto first_words = [](const std::string& body) {
    const auto text = Json::parse(body)["prompt"].get<std::string>();
    std::istringstream words(text);
    std::string begin, word;
    for (int i = 0; i < 8 && words >> word; ++i) begin += word + " ";
    return begin;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].body, again[i].body);
    EXPECT_EQ(requests[i].scheduled_s, again[i].scheduled_s);
    EXPECT_NE(requests[i].body, salted[i].body);
    EXPECT_EQ(requests[i].scheduled_s, salted[i].scheduled_s);
    EXPECT_EQ(first_words(requests[i].body), first_words(requests[0].body));
    bodies.insert(requests[i].body);
  }
  EXPECT_EQ(bodies.size(), 20u);
}

TEST(ServePlan, BodiesCarryWhatWasAskedFor) {
  ServeBenchOptions options{.ignore_eos = true, .temperature = 0.5};
  options.extra_body = R"({"top_k": 4, "stream_options": {"x": 1}, "temperature": null})";
  ServePrompt prompt{"one two", 2};
  Json body = Json::parse(request_body({.options = options, .model = "m"}, prompt, 9));
  EXPECT_EQ(body["prompt"], "one two");
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["top_k"], 4);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"],
            (Json{{"include_usage", true}, {"continuous_usage_stats", true}, {"x", 1}}));
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_FALSE(body.contains("temperature"));
  prompt.text = "hello \xff";
  options = {.continuous_usage = false};
  body = Json::parse(request_body({.options = options, .model = "m", .chat = true}, prompt, 9));
  EXPECT_EQ(body["messages"][0]["role"], "user");
  EXPECT_EQ(body["max_completion_tokens"], 9);
  EXPECT_FALSE(body["stream_options"].contains("continuous_usage_stats"));
}

TEST(ServeOptions, LoadLimitsAndWhatIsRefused) {
  ServeBenchOptions options;
  options.request_rate = 2.5;
  options.goodput = {"ttft:500 tpot:50"};
  ServeSetup setup = understand_serve_options(options, false, {"e2el:5000"});
  EXPECT_EQ(setup.rate_per_s, 2.5);
  EXPECT_EQ(setup.goodput.ttft_ms, 500);
  EXPECT_EQ(setup.goodput.e2el_ms, 5000);
  options = {};
  options.backend = "openai-chat";
  setup = understand_serve_options(options, false, {});
  EXPECT_TRUE(std::isinf(setup.rate_per_s));
  EXPECT_EQ(setup.target.endpoint, "/v1/chat/completions");
  options = {};
  options.dataset = "timed_trace";
  options.dataset_path = "x";
  EXPECT_EQ(understand_serve_options(options, false, {}).rate_per_s, 0);
  options.request_rate = 3;
  EXPECT_EQ(understand_serve_options(options, true, {}).rate_per_s, 3);
}

TEST(ServeOptions, WrongValuesAreNamed) {
  using Change = void (*)(ServeBenchOptions&);
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](ServeBenchOptions& o) { o.goodput = {"itl:5"}; }, "goodput: 'itl:5'"},
      {[](ServeBenchOptions& o) { o.goodput = {"ttft:-1"}; }, "goodput: 'ttft:-1'"},
      {[](ServeBenchOptions& o) { o.goodput = {"ttft"}; }, "goodput: 'ttft'"},
      {[](ServeBenchOptions& o) { o.headers = {"x"}; }, "header"},
      {[](ServeBenchOptions& o) { o.extra_body = "[1]"; }, "extra_body"},
      {[](ServeBenchOptions& o) { o.headers = {"a=b\r\nc"}; }, "header"},
      {[](ServeBenchOptions& o) { o.endpoint = "/v1/embeddings"; }, "endpoint"},
      {[](ServeBenchOptions& o) {
         o.backend = "openai-chat";
         o.endpoint = "/v1/completions";
       },
       "endpoint"},
      {[](ServeBenchOptions& o) { o.dataset = "timed_trace"; }, "dataset_path"}};
  for (const auto& [change, words] : cases) {
    ServeBenchOptions options;
    change(options);
    EXPECT_TRUE(fails_with([&] { understand_serve_options(options, false, {}); }, words));
  }
  EXPECT_TRUE(fails_with([] { understand_serve_options({}, false, {"word"}); }, "word"));
  for (const char* percents : {"101", "", "50,x"}) {
    ServeBenchOptions options;
    const std::vector<Option> rows = serve_bench_options(&options);
    const GivenValue given{"metric_percentiles", percents, "command line"};
    EXPECT_TRUE(
        fails_with([&] { apply_value(given, option_rows(rows)); }, "metric_percentiles: '"));
  }
}

}  // namespace
}  // namespace outrider
