// What asynchronous drafting is worth, and that speculation never costs anyone time: whole jobs of
// simulated models in virtual time, against the formulas of speedup_formulas.h. Nothing here depends on
// the machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/commands/bench/speedup_formulas.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/rehearsal.h"
#include "tests/theory/paper_formulas.h"

namespace outrider::test {
namespace {

constexpr double kStepMs = 20;

struct Setting {
  std::string target = fmt::format("step_ms={}", kStepMs);
  std::string draft;  // keys; empty = no draft
  std::string async_drafting = "cache";
  int32_t draft_len = kAutoDraftLen;
  int num_targets = 1;
  int32_t num_requests = 1;
  int32_t max_tokens = 2000;
  double temperature = 1;
  int32_t num_short = 0;  // the last of the requests, which end after 100 tokens
};

std::string draft_keys(double alpha, double cost) {
  return fmt::format("step_ms={},alpha={}", cost * kStepMs, alpha);
}

Rehearsal rehearse(const Setting& setting) {
  RunConfig config = embedded_config(setting.num_targets, 0);
  config.model = "sim:" + setting.target;
  config.max_num_seqs = std::max(8, setting.num_requests);
  config.max_num_batched_tokens = std::max(512, 17 * setting.num_requests);
  config.max_num_queued_reqs = 1024;
  config.enable_prefix_caching = false;
  if (!setting.draft.empty()) config.speculative.model = "sim:" + setting.draft;
  config.speculative.async_drafting = setting.async_drafting;
  config.speculative.num_speculative_tokens = setting.draft_len;
  std::vector<TimedRequest> requests;
  for (int32_t i = 0; i < setting.num_requests; ++i) {
    const int32_t max_tokens =
        i < setting.num_requests - setting.num_short ? setting.max_tokens : 100;
    SamplingParams params = sampled(static_cast<float>(setting.temperature), max_tokens);
    params.noise_seed = static_cast<uint64_t>(1000 + i);
    requests.push_back({.prompt = {20 + i % 200, 270 + 7 * i}, .params = params});
  }
  return outrider::rehearse(config, requests);
}

// From the first token of all to the last.
double tokens_per_s(const Rehearsal& run) {
  double begin_s = run.seconds;
  double num_tokens = 0;
  for (const TimedAnswer& answer : run.answers) {
    begin_s = std::min(begin_s, answer.first_token_s);
    num_tokens += static_cast<double>(answer.tokens.size()) - answer.events.at(0).num_tokens;
  }
  return num_tokens / (run.seconds - begin_s);
}

double speed_up(const Setting& setting) {
  Setting without = setting;
  without.draft.clear();
  return tokens_per_s(rehearse(setting)) / tokens_per_s(rehearse(without));
}

// With lengths that suit each row of the design's table.
TEST(AheadSpeed, OneRequestGetsWhatTheDesignPromises) {
  constexpr int kPreparedLen[] = {8, 8, 12, 10, 5, 10};
  for (size_t i = 0; i < kDesignSpeedups.size(); ++i) {
    const DesignSpeedups& row = kDesignSpeedups[i];
    SCOPED_TRACE(fmt::format("alpha {} c {}", row.alpha, row.cost_ratio));
    Setting setting{.draft = draft_keys(row.alpha, row.cost_ratio), .max_tokens = 2500};
    setting.async_drafting = "off";
    setting.draft_len = row.draft_len;
    EXPECT_NEAR(speed_up(setting) / row.synchronous, 1, 0.07);
    setting.async_drafting = "cache";
    setting.draft_len = kPreparedLen[i];
    const double cache = speed_up(setting);
    EXPECT_GE(cache, row.chain);
    EXPECT_GE(cache, 0.9 * row.cache_80);
    EXPECT_LE(cache, 1.05 * row.ceiling);
  }
}

// So that nobody waits. Long drafts have many outcomes: with 48 blocks prepared for one request at
// most, alpha 0.9 at c 0.05 hit 0.87 and waited 5% of the time.
TEST(AheadSpeed, NearlyEveryOutcomeIsPrepared) {
  for (const auto& [alpha, cost] : {std::pair{0.9, 0.05}, {0.8, 0.05}, {0.8, 0.1}}) {
    SCOPED_TRACE(fmt::format("alpha {} c {}", alpha, cost));
    const Rehearsal run = rehearse({.draft = draft_keys(alpha, cost), .max_tokens = 1200});
    EXPECT_GE(run.metrics.at("speculation_cache_hit_rate"), 0.97);
    EXPECT_LE(run.metrics.at("target_bubble_ratio"), 0.02);
  }
}

// What the first rounds cost to find out is in it, over 300 tokens.
TEST(AheadSpeed, NeverSlower) {
  struct Case {
    const char* what;
    std::string target;
    std::string draft;
    int32_t num_requests;
  };
  const std::string step = fmt::format("step_ms={}", kStepMs);
  for (const Case& c : {
           Case{"nothing is accepted", step, draft_keys(0, 0.1), 1},
           {"nothing is accepted, 8 requests", step, draft_keys(0, 0.1), 8},
           {"a draft as slow as the target", step, draft_keys(0.8, 1), 1},
           {"a draft ten times too slow", step, draft_keys(0.8, 10), 1},
           {"a draft ten times too slow, 8 requests", step, draft_keys(0.8, 10), 8},
           {"saturation", step + ",row_ms=20", draft_keys(0.8, 0.1) + ",row_ms=2", 64},
       }) {
    const double ratio = speed_up(
        {.target = c.target, .draft = c.draft, .num_requests = c.num_requests, .max_tokens = 300});
    EXPECT_GE(ratio, 0.98) << c.what;
  }
}

TEST(AheadSpeed, ManyRequestsAreNotSlower) {
  for (const int32_t num_requests : {1, 4, 16, 64}) {
    const double ratio = speed_up({.target = fmt::format("step_ms={},row_ms=0.2", kStepMs),
                                   .draft = draft_keys(0.8, 0.1) + ",row_ms=0.02",
                                   .num_requests = num_requests,
                                   .max_tokens = 300});
    EXPECT_GE(ratio, 1) << num_requests;
  }
}

// Tokens per second from a time on.
double tokens_per_s_after(const Rehearsal& run, double begin_s) {
  double num_tokens = 0;
  for (const TimedAnswer& answer : run.answers) {
    for (const TimedEvent& event : answer.events)
      num_tokens += event.at_s > begin_s ? event.num_tokens : 0;
  }
  return num_tokens / (run.seconds - begin_s);
}

// With 68 requests a row costs more than it brings; with the 4 that are left in the end it does
// not.
TEST(AheadSpeed, ADraftRestsUnderLoadAndIsBackWhenItFalls) {
  Setting setting{.target = fmt::format("step_ms={},row_ms=0.5", kStepMs),
                  .draft = draft_keys(0.4, 0.1) + ",row_ms=0.05",
                  .num_targets = 2,
                  .num_requests = 68,
                  .max_tokens = 600,
                  .temperature = 0,
                  .num_short = 64};
  const Rehearsal run = rehearse(setting);
  EXPECT_GE(run.metrics.at("draft_rest_rounds_total"), 40);
  double fall_s = 0;
  for (size_t i = 4; i < 68; ++i) fall_s = std::max(fall_s, run.answers[i].done_s);
  Setting few = setting;
  few.num_requests = 4;
  few.num_short = 0;
  const Rehearsal never = rehearse(few);
  EXPECT_LE(never.metrics.at("draft_rest_rounds_total"), 20);
  const double as_ever = tokens_per_s_after(never, never.seconds / 6);
  EXPECT_GE(tokens_per_s_after(run, fall_s + 20 * 1e-3 * kStepMs), 0.97 * as_ever);

  setting.draft.clear();
  few.draft.clear();
  EXPECT_GE(as_ever, 1.1 * tokens_per_s(rehearse(few)));
  const Rehearsal plain = rehearse(setting);
  for (size_t i = 0; i < run.answers.size(); ++i)
    EXPECT_EQ(run.answers[i].tokens, plain.answers[i].tokens) << i;
}

}  // namespace
}  // namespace outrider::test
