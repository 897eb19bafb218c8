// bench serve, what is read and counted: answers as recorded bytes and times, latencies of scripted
// timelines to the digit, sums.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/commands/bench/serve/serve_report.h"

namespace outrider {
namespace {

// Bytes that arrived at a time.
struct Packet {
  double time_s;
  std::string bytes;
};

RequestRecord read_answer(const std::vector<Packet>& packets, int status = 200) {
  RequestRecord record;
  CompletionStream stream(&record);
  stream.begin(status);
  for (const Packet& packet : packets) {
    if (!stream.receive(packet.time_s, packet.bytes)) break;
  }
  stream.finish(packets.empty() ? 0 : packets.back().time_s);
  return record;
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }
std::string text_event(const std::string& text, const std::string& more = "") {
  return event(R"({"choices":[{"index":0,"text":")" + text + R"("}])" + more + "}");
}
const std::string kStop =
    event(R"({"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null})");
const std::string kDone = "data: [DONE]\n\n";

TEST(ServeStream, EventsOverAnyCutsOfTheBytes) {
  const std::string bytes =
      ": comment\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\nevent: x\n" + text_event("b") +
      "\n\ndata:[DONE]\n\n" + text_event("after");
  for (size_t size = 1; size <= bytes.size(); ++size) {
    std::vector<Packet> packets;
    for (size_t begin = 0; begin < bytes.size(); begin += size)
      packets.push_back({1, bytes.substr(begin, size)});
    const RequestRecord record = read_answer(packets);
    EXPECT_EQ(record.failure, "") << size << record.error;
    EXPECT_EQ(record.chunks.size(), 2u) << size;
  }
}

TEST(ServeStream, AnEventWithoutEndIsBounded) {
  RequestRecord record;
  CompletionStream stream(&record);
  stream.begin(200);
  const std::string much(1 << 20, 'x');
  int num_taken = 0;
  while (stream.receive(1, much) && num_taken < 100) ++num_taken;
  EXPECT_LT(num_taken, 20);
  EXPECT_EQ(record.failure, "not a stream");
}

TEST(ServeStream, TokensOfAChunkAreCountedByRunningUsage) {
  const std::string usage = R"(,"usage":{"prompt_tokens":5,"completion_tokens":)";
  RequestRecord record = read_answer({{1, text_event("a", usage + "1}")},
                                      {2, text_event("bcd", usage + "4}")},
                                      {3, text_event("", usage + "4}")},
                                      {4, text_event("e", usage + "5}") + kStop + kDone}});
  ASSERT_EQ(record.chunks.size(), 3u);
  EXPECT_EQ(record.chunks[1].num_tokens, 3);
  EXPECT_EQ(record.chunks[2].time_s, 4);
  EXPECT_EQ(record.prompt_tokens, 5);
  EXPECT_EQ(record.usage_tokens, 5);
  EXPECT_EQ(record.finish_reason, "length");

  // Usage that comes only at the end says nothing of single chunks, wherever it stands.
  record = read_answer(
      {{1, text_event("a")},
       {2, text_event("b")},
       {3,
        event(
            R"({"choices":[{"text":"","finish_reason":"stop"}],"usage":{"completion_tokens":6}})")}});
  EXPECT_EQ(record.failure, "") << "a missing [DONE] is tolerated";
  ASSERT_EQ(record.chunks.size(), 2u);
  EXPECT_EQ(record.chunks[0].num_tokens, 1);
  EXPECT_EQ(record.usage_tokens, 6);
}

TEST(ServeStream, ChatBeginsWithTheFirstText) {
  const RequestRecord record =
      read_answer({{1, event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")},
                   {2, ": ping\n\n"},
                   {3, event(R"({"choices":[{"delta":{"content":"Hi"}}]})")},
                   {4, event(R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})")},
                   {5, event(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})") + kDone}});
  EXPECT_EQ(record.failure, "");
  ASSERT_EQ(record.chunks.size(), 2u);
  EXPECT_EQ(record.chunks[0].time_s, 3);
  EXPECT_EQ(record.last_choice_s, 5);
}

TEST(ServeStream, FailuresAreNamed) {
  const auto check =
      [](const RequestRecord& record, const std::string& name, const std::string& words) {
        EXPECT_EQ(record.failure, name);
        EXPECT_NE(record.error.find(words), std::string::npos) << record.error;
      };
  check(read_answer({{1, R"({"error":{"message":"too many)"}, {2, R"( requests"}})"}}, 429),
        "http 429",
        "too many requests");
  check(read_answer({{1, R"({"object":"error","message":"flat"})"}}, 400), "http 400", "flat");
  check(read_answer({{1, R"({"detail":"not there"})"}}, 404), "http 404", "not there");
  check(read_answer({{1, "<html>\x01 bad\n gateway"}}, 502), "http 502", "<html>  bad  gateway");
  check(read_answer({}, 500), "http 500", "");
  check(read_answer({{1, text_event("a")},
                     {2, event(R"({"error":{"message":"NaN"}})")},
                     {3, text_event("b")}}),
        "error event",
        "NaN");
  check(read_answer({{1, text_event("a")}}), "broken stream", "before the answer was complete");
  check(read_answer({{1, text_event("a")}, {2, "data: {\"choi"}}), "broken stream", "");
  check(
      read_answer({{1, R"({"id":"x","choices":[{"text":"all"}]})"}}), "not a stream", "no events");
  check(read_answer({{1, event("{oops")}}), "not a stream", "not JSON");
  check(read_answer({{1, kDone}}), "broken stream", "no choice");
  const RequestRecord long_error = read_answer({{1, std::string(100000, 'e')}}, 500);
  EXPECT_LT(long_error.error.size(), 400u);
}

TEST(ServeServer, SpeculationCountersAreSummedOverEngines) {
  const SpeculationCounters counters = parse_speculation_metrics(
      "# HELP vllm:spec_decode_num_drafts_total x\n"
      "vllm:spec_decode_num_drafts_total{engine=\"0\"} 10.0\n"
      "vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"a b\"} 40\n"
      "vllm:spec_decode_num_draft_tokens_total{engine=\"1\"} 2\n"
      "vllm:spec_decode_num_accepted_tokens_total 25\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 9\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",position=\"1\"} 4\n");
  EXPECT_EQ(counters,
            (SpeculationCounters{{"drafts", 10},
                                 {"draft_tokens", 42},
                                 {"accepted_tokens", 25},
                                 {"accepted_tokens_per_pos 0", 9},
                                 {"accepted_tokens_per_pos 1", 4}}));
  EXPECT_TRUE(parse_speculation_metrics("other 5\n").empty());
}

// What acceptance follows from the counters' growth, under vLLM's names.
TEST(ServeReport, AcceptanceByPosition) {
  BenchReport report;
  const ServeFindings findings{.server = "s",
                               .model = "m",
                               .records = {},
                               .speculation = {{"drafts", 10},
                                               {"draft_tokens", 40},
                                               {"accepted_tokens", 12},
                                               {"accepted_tokens_per_pos 0", 9},
                                               {"accepted_tokens_per_pos 1", 3}}};
  fill_serve_report({.percents = {99}}, {}, findings, &report);
  const auto json = nlohmann::json::parse(report.details);
  EXPECT_EQ(json["spec_decode_acceptance_rate"], 30.0);
  EXPECT_EQ(json["spec_decode_acceptance_length"], 2.2);
  EXPECT_EQ(json["spec_decode_per_position_acceptance_rates"], (std::vector<double>{0.9, 0.3}));
}

// Percentiles are numpy's, the deviation is the population's; nothing is zeros.
TEST(ServeReport, StatisticsOfLatencies) {
  BenchReport report;
  ServeFindings findings{.server = "s", .model = "m", .records = {}, .speculation = {}};
  for (const double seconds : {4.0, 1.0, 3.0, 2.0}) {
    findings.records.emplace_back();
    findings.records.back().last_choice_s = seconds;
  }
  fill_serve_report({.percents = {95}}, {}, findings, &report);
  const auto json = nlohmann::json::parse(report.details);
  EXPECT_EQ(json["mean_e2el_ms"], 2500);
  EXPECT_EQ(json["median_e2el_ms"], 2500);
  EXPECT_NEAR(json["std_e2el_ms"].get<double>(), 1e3 * std::sqrt(1.25), 1e-9);
  EXPECT_NEAR(json["p95_e2el_ms"].get<double>(), 3850, 1e-9);
  EXPECT_EQ(json["mean_ttft_ms"], 0);
  EXPECT_EQ(json["p95_ttft_ms"], 0);
}

// Sent at 10; chunks of 2, 1 and 4 tokens at 10.5, 10.75 and 11.75; the reason to stop at 12.
RequestRecord scripted() {
  RequestRecord record;
  record.http_status = 200;
  record.scheduled_s = 9;
  record.sent_s = 10;
  record.chunks = {{10.5, 2}, {10.75, 1}, {11.75, 4}};
  record.last_choice_s = 12;
  record.end_s = 12.5;
  record.prompt_tokens = 20;
  record.usage_tokens = 7;
  record.finish_reason = "length";
  return record;
}

TEST(ServeStatistics, LatenciesOfAScriptedTimeline) {
  const RequestLatency latency = latency_of(scripted());
  EXPECT_EQ(latency.output_tokens, 7);
  EXPECT_EQ(latency.ttft, 500);
  EXPECT_EQ(latency.e2el, 2000);
  EXPECT_EQ(latency.tpot, 250);  // (2000 - 500) / 6
  EXPECT_EQ(latency.itl, (std::vector<double>{250, 250, 250, 250, 250}));
}

TEST(ServeStatistics, AnswersOfOneTokenAndOfNone) {
  RequestRecord record = scripted();
  record.chunks = {{10.5, 1}};
  record.usage_tokens = 1;
  RequestLatency latency = latency_of(record);
  EXPECT_EQ(latency.ttft, 500);
  EXPECT_FALSE(latency.tpot.has_value());
  EXPECT_TRUE(latency.itl.empty());
  EXPECT_TRUE(is_good(latency, {.ttft_ms = 500, .tpot_ms = 0}));
  record.chunks.clear();
  record.usage_tokens = 0;
  latency = latency_of(record);
  EXPECT_FALSE(latency.ttft.has_value());
  EXPECT_FALSE(is_good(latency, {.ttft_ms = 1e9}));
  record.usage_tokens = -1;
  EXPECT_EQ(latency_of(record).output_tokens, 0);
}

TEST(ServeStatistics, GoodputNeedsEveryLimit) {
  const RequestLatency latency = latency_of(scripted());  // 500, 250, 2000 ms
  EXPECT_TRUE(is_good(latency, {500, 250, 2000}));
  EXPECT_FALSE(is_good(latency, {499, 250, 2000}));
  EXPECT_FALSE(is_good(latency, {500, 249, 2000}));
  EXPECT_FALSE(is_good(latency, {500, 250, 1999}));
  EXPECT_TRUE(is_good(latency, {}));
}

TEST(ServeStatistics, PeakConcurrencyCountsHalfOpenIntervals) {
  const auto request = [](double begin, double end) {
    RequestRecord record;
    record.sent_s = begin;
    record.end_s = end;
    return record;
  };
  EXPECT_EQ(peak_concurrency({request(0, 2), request(1, 3), request(2, 4), request(2.5, 2.75)}), 3);
  EXPECT_EQ(peak_concurrency({request(0, 1), request(1, 2), request(2, 3)}), 1);
  EXPECT_EQ(peak_concurrency({}), 0);
}

// Of runs shorter than a second, and with a rest behind their last whole one.
TEST(ServeStatistics, ThePeakIsNoLessThanTheMean) {
  for (const double duration_s : {0.25, 1.5, 2.25}) {
    RequestRecord record;
    record.end_s = duration_s;
    record.chunks = {{0.0, 10}, {duration_s, 10}};
    const std::vector<RequestRecord> records = {record};
    const ServeSummary summary = summarize(records, {});
    EXPECT_GE(summary.max_output_tokens_per_s, summary.output_throughput) << duration_s;
    EXPECT_LE(summary.max_output_tokens_per_s, 20 / duration_s) << duration_s;
  }
}

TEST(ServeStatistics, SumsOfARun) {
  std::vector<RequestRecord> records(3, scripted());
  records[1].sent_s = 9.75;
  records[1].usage_tokens = -1;
  records[1].chunks[2].num_tokens = 3;
  records[2].failure = "http 429";
  records[2].http_status = 429;
  records[2].error = "busy";
  records[2].end_s = 19;
  const ServeSummary summary = summarize(records, {.ttft_ms = 600});
  EXPECT_EQ(summary.duration_s, 10);  // 9 to 19
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.failures.at("http 429"), 1);
  EXPECT_EQ(summary.errors.at("http 429"), "busy");
  EXPECT_EQ(summary.total_input, 40);
  EXPECT_EQ(summary.total_output, 7 + 6);
  EXPECT_EQ(summary.request_throughput, 0.2);
  EXPECT_EQ(summary.request_goodput, 0.1);  // the second one's first token took 750 ms
  EXPECT_EQ(summary.output_throughput, 1.3);
  EXPECT_EQ(summary.total_token_throughput, 5.3);
  EXPECT_EQ(summary.max_concurrent_requests, 3);
  EXPECT_EQ(summary.max_output_tokens_per_s, 7);  // second 11: 4 + 3
  EXPECT_EQ(summary.ttft, (std::vector<double>{500, 750}));
  EXPECT_EQ(summary.lateness, (std::vector<double>{1000, 750, 1000}));
  EXPECT_EQ(summarize({}, {}).output_throughput, 0);
}

}  // namespace
}  // namespace outrider
