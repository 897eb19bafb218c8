// How long requests take and what the server does meanwhile, in its metrics and in its log.
#include <fmt/format.h>

#include "http/api/log_stats.h"
#include "runtime/base/log.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using std::chrono::milliseconds;

class RequestTimes : public HttpFixture {
 protected:
  double metric(const std::string& name, const std::string& labels = "") const {
    const std::string text = metrics.render({"vllm"});
    const std::string start =
        fmt::format("\nvllm:{}{{model_name=\"test-model\",engine=\"0\"{}}} ", name, labels);
    const size_t at = text.find(start);
    EXPECT_NE(at, std::string::npos) << start;
    return at == std::string::npos ? -1 : std::stod(text.substr(at + start.size()));
  }

  // Four events of three tokens, each after `pause`.
  void play_slowly(milliseconds pause) {
    Script script;
    script.tokens = ids_of("abcdefghijkl");
    script.end = FinishReason::kLength;
    script.pause = pause;
    play(script);
  }

  static std::string logged(const std::function<void()>& action) {
    set_log_level(LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
    action();
    return ::testing::internal::GetCapturedStderr();
  }
};

constexpr const char* kTwelve = R"({"prompt":"abc","max_tokens":12})";

TEST_F(RequestTimes, PhasesAddUp) {
  play_slowly(milliseconds(20));
  post_json("/v1/completions", kTwelve);
  for (const char* name : {"queue", "prefill", "decode", "inference"})
    EXPECT_EQ(metric(fmt::format("request_{}_time_seconds_count", name)), 1) << name;
  const auto sum_of = [&](const char* name) {
    return metric(fmt::format("request_{}_time_seconds_sum", name));
  };
  EXPECT_GE(sum_of("queue"), 0);
  EXPECT_GE(sum_of("prefill"), 0.02);
  EXPECT_GE(sum_of("decode"), 0.06);
  EXPECT_NEAR(sum_of("inference"), sum_of("prefill") + sum_of("decode"), 1e-6);
  EXPECT_LE(sum_of("queue") + sum_of("inference"), metric("e2e_request_latency_seconds_sum"));
  EXPECT_EQ(metric("request_num_preemptions_count"), 1);
}

// Whoever stops reading makes the answer late, not the engine slow.
TEST_F(RequestTimes, ASlowReaderDoesNotLengthenDecode) {
  play_slowly(milliseconds(1));
  engine.most_tokens = 3;  // however late this thread is, it has not read the end before it waits
  const auto begin = JobClock::now();
  ServerResponse reply =
      post("/v1/completions", R"({"prompt":"abc","max_tokens":12,"stream":true})");
  ASSERT_TRUE(reply.stream);
  std::string text;
  reply.stream->next(&text);
  engine.most_tokens = INT32_MAX;
  while (engine.num_running() > 0) std::this_thread::sleep_for(milliseconds(1));
  const std::chrono::duration<double> engine_time = JobClock::now() - begin;
  std::this_thread::sleep_for(milliseconds(300));
  while (reply.stream->next(&text)) {
  }
  EXPECT_LE(metric("request_inference_time_seconds_sum"), engine_time.count());
  EXPECT_GT(metric("e2e_request_latency_seconds_sum"), 0.3);
}

// A rate over time needs them as they come, not all at the end.
TEST_F(RequestTimes, TokensAreCountedAsTheyCome) {
  play(Script{.tokens = ids_of("abcdef"), .pause = milliseconds(1), .endless = true});
  engine.most_tokens = 6;
  ServerResponse reply =
      post("/v1/completions", R"({"prompt":"abc","max_tokens":400,"stream":true})");
  ASSERT_TRUE(reply.stream);
  std::string text;
  while (metric("generation_tokens_total") < 6) reply.stream->next(&text);
  EXPECT_EQ(metric("prompt_tokens_total"), 3);
  EXPECT_EQ(metric("request_generation_tokens_count"), 0);
  engine.most_tokens = INT32_MAX;
  while (reply.stream->next(&text)) {
  }
  EXPECT_EQ(metric("generation_tokens_total"), 400);
  EXPECT_EQ(metric("request_generation_tokens_sum"), 400);
}

// What was generated behind a stop string does not count, as in usage.
TEST_F(RequestTimes, TokensBehindAStopStringAreNotCounted) {
  play(Script{.tokens = bytes_of("abcdef"), .tokens_per_event = 6});
  const nlohmann::json out = post_json("/v1/completions", R"({"prompt":"abc","stop":"c"})");
  EXPECT_EQ(metric("generation_tokens_total"), out["usage"]["completion_tokens"].get<int>());
}

TEST_F(RequestTimes, TheLineOfARequestSaysHowLongItTook) {
  play_slowly(milliseconds(20));
  const std::string log = logged([&] { post_json("/v1/completions", kTwelve); });
  int first_ms = 0;
  int total_ms = 0;
  float rate = 0;
  const size_t at = log.find(", first token after ");
  ASSERT_NE(at, std::string::npos) << log;
  ASSERT_EQ(std::sscanf(log.c_str() + at,
                        ", first token after %d ms, %f tokens/s, %d ms in all",
                        &first_ms,
                        &rate,
                        &total_ms),
            3)
      << log;
  EXPECT_GE(first_ms, 20);
  EXPECT_GE(total_ms, first_ms + 60);
  EXPECT_NEAR(rate, 12e3 / total_ms, 0.02 * rate);
}

TEST_F(RequestTimes, TheLineOfARequestNamesNoDraftTokensWhereNoneWere) {
  const auto line_for = [&](int max_tokens) {
    const std::string body = fmt::format(R"({{"prompt":"abc","max_tokens":{}}})", max_tokens);
    return logged([&] { post_json("/v1/completions", body); });
  };
  EXPECT_EQ(line_for(1).find("draft"), std::string::npos);  // over before the fake counts any
  EXPECT_NE(line_for(6).find(", 2 of 4 draft tokens accepted, "), std::string::npos);
}

TEST_F(RequestTimes, ALineOfTheLoadWhenDueAndSomethingRan) {
  const LogStats::Clock::time_point start;
  const auto after_s = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  LogStats stats(metrics, 10, start);
  EXPECT_EQ(stats.line_at(after_s(10)), "");  // nothing ran
  metrics.rounds.add(5);
  metrics.prompt_tokens.add(300);
  metrics.generation_tokens.add(125);
  metrics.num_requests_running.set(3);
  metrics.num_requests_waiting.set(1);
  metrics.kv_cache_usage_perc.set(0.125);
  EXPECT_EQ(stats.line_at(after_s(19)), "");  // not yet
  EXPECT_EQ(stats.line_at(after_s(20)),
            "Avg prompt throughput: 30.0 tokens/s, Avg generation throughput: 12.5 tokens/s, "
            "Running: 3 reqs, Waiting: 1 reqs, KV cache usage: 12.5%");
  EXPECT_EQ(stats.line_at(after_s(30)), "");
  metrics.rounds.add(4);
  metrics.prefix_cache_queries.add(200);
  metrics.prefix_cache_hits.add(50);
  metrics.spec_decode_num_drafts.add(4);
  metrics.spec_decode_num_draft_tokens.add(16);
  metrics.spec_decode_num_accepted_tokens.add(10);
  EXPECT_EQ(stats.line_at(after_s(50)),
            "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
            "Running: 3 reqs, Waiting: 1 reqs, KV cache usage: 12.5%, "
            "Prefix cache hit rate: 25.0%, Mean acceptance length: 3.50, "
            "Avg Draft acceptance rate: 62.5%");
}

TEST_F(RequestTimes, NoLineOfTheLoadWithAnIntervalOfZero) {
  LogStats stats(metrics, 0, {});
  metrics.rounds.add();
  EXPECT_EQ(stats.line_at(LogStats::Clock::time_point() + std::chrono::hours(1)), "");
}

}  // namespace
}  // namespace outrider::testing
