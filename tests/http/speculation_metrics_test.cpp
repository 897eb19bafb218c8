// metrics.speculative_decoding of responses: off, summed and by round; never of several choices.
#include "http/api/openai_response.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

using SpeculationMetrics = HttpFixture;

TEST_F(SpeculationMetrics, NoSpeculationFiguresUnlessAskedFor) {
  const json out = post_json("/v1/completions", R"({"prompt":"xy"})");
  EXPECT_FALSE(out.contains("metrics"));
}

TEST_F(SpeculationMetrics, DetailedSpeculationFigures) {
  options.per_request_spec_decode_metrics = SpecDecodeMetrics::kDetailed;
  Script script;
  script.tokens = ids_of("abcdefgh");
  script.tokens_per_event = 4;
  play(script);
  const json chat =
      post_json("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})");
  const json& figures = chat["metrics"]["speculative_decoding"];
  EXPECT_EQ(figures["per_step_accepted"], (json{3, 3}));
  EXPECT_EQ(figures["per_step_drafted"], (json{4, 4}));
  EXPECT_EQ(figures["acceptance_histogram_by_draft_length"], (json{{"4", {0, 0, 0, 2, 0}}}));
  EXPECT_EQ(chat["metrics"]["outrider"]["num_rounds"], 2);
  // Of several choices there are no figures of one stream.
  const json two = post_json("/v1/completions", R"({"prompt":"xy","n":2})");
  EXPECT_TRUE(two["metrics"].contains("speculative_decoding"));
  EXPECT_TRUE(two["metrics"]["speculative_decoding"].is_null());
  EXPECT_FALSE(two["metrics"].contains("outrider"));
}

// The figures of rounds with drafts of many lengths, and of none.
TEST(SpeculationReport, HistogramsByDraftLength) {
  SpeculationReport report;
  SpeculationStats stats;
  const auto round = [&](int32_t drafted, int32_t accepted) {
    ++stats.num_rounds;
    stats.num_spec_rounds += drafted > 0 ? 1 : 0;
    stats.num_draft_tokens += drafted;
    stats.num_accepted_tokens += accepted;
    report.note(stats, true);
  };
  for (const auto& [drafted, accepted] :
       std::vector<std::pair<int32_t, int32_t>>{{3, 1}, {0, 0}, {1, 1}, {3, 3}, {1, 0}, {3, 1}}) {
    round(drafted, accepted);
  }
  report.note(stats, true);  // a last event without a round
  EXPECT_EQ(report.histograms,
            (std::map<int32_t, std::vector<int32_t>>{{1, {1, 1}}, {3, {0, 2, 0, 1}}}));
  EXPECT_EQ(report.drafted_per_round, (std::vector<int32_t>{3, 1, 3, 1, 3}));
  EXPECT_EQ(report.accepted_per_round, (std::vector<int32_t>{1, 1, 3, 0, 1}));
  EXPECT_EQ(report.stats.num_rounds, 6);
}

TEST_F(SpeculationMetrics, SpeculationFigures) {
  options.per_request_spec_decode_metrics = SpecDecodeMetrics::kSummary;
  play("abcdef");
  const json out = post_json("/v1/completions", R"({"prompt":"xy"})");
  const json& figures = out["metrics"]["speculative_decoding"];
  EXPECT_FALSE(figures.contains("per_step_accepted"));
  EXPECT_EQ(figures["acceptance_histogram_by_draft_length"], (json{{"4", {0, 0, 2, 0, 0}}}));
  EXPECT_EQ(figures["num_spec_steps"], 2);
  EXPECT_EQ(figures["num_draft_tokens"], 8);
  EXPECT_EQ(figures["num_accepted_draft_tokens"], 4);
  EXPECT_EQ(figures["mean_acceptance_length"], 3.0);
  EXPECT_EQ(figures["draft_acceptance_rate"], 0.5);
  EXPECT_EQ(figures["acceptance_histogram"], (json{0, 0, 2, 0, 0}));
  EXPECT_EQ(figures["num_spec_tokens"], 4);
}

}  // namespace
}  // namespace outrider::testing
