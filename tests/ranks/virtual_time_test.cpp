// Whole jobs in virtual time: the same history every time, and speed-ups as the formulas say, to
// the nanosecond where they are exact.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/base/virtual_clock.h"
#include "runtime/comm/waiting.h"
#include "tests/base/error_sentence.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/rehearsal.h"

namespace outrider::test {
namespace {

RunConfig simulated(int num_targets,
                    const std::string& target,
                    int draft_len,
                    const std::string& draft) {
  RunConfig config = embedded_config(num_targets, 0);
  config.model = "sim:" + target;
  config.max_model_len = 4096;
  config.enable_prefix_caching = false;
  if (draft_len > 0) {
    config.speculative.model = "sim:" + draft;
    config.speculative.num_speculative_tokens = draft_len;
  }
  return config;
}

TimedRequest asked(double at_s, int32_t index, const SamplingParams& params) {
  return {.prompt = {5 + index, 270 + 3 * index}, .params = params, .at_s = at_s};
}

TEST(VirtualTime, WithoutADraftATokenTakesAStep) {
  for (const int num_targets : {1, 2}) {
    const RunConfig config = simulated(num_targets, "step_ms=40", 0, "");
    const Rehearsal run = rehearse(config, {asked(0.5, 0, greedy(50))});
    const TimedAnswer& answer = run.answers[0];
    ASSERT_EQ(answer.tokens.size(), 50u);
    EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
    EXPECT_NEAR(answer.at_s, 0.5, 1e-9);
    // Two ranks meet a few times a round, and look again every 5 us.
    const double slack_s = num_targets == 1 ? 1e-9 : 50 * 50e-6;
    EXPECT_NEAR(answer.done_s, 0.5 + 50 * 0.040, slack_s);
    EXPECT_NEAR(answer.first_token_s, 0.540, slack_s);
    EXPECT_EQ(run.metrics.at("rounds_total"), 50);
  }
}

TEST(VirtualTime, TwoRunsHaveTheSameHistory) {
  const auto run = [](const std::string& draft) {
    const RunConfig config = simulated(3, "step_ms=20,row_ms=0.2,jitter=0.1", 4, draft);
    std::vector<TimedRequest> requests;
    for (int32_t i = 0; i < 12; ++i)
      requests.push_back(asked(0.03 * i, i, i % 3 == 0 ? greedy(40) : sampled(0.9f, 30 + i)));
    return rehearse(config, requests);
  };
  const Rehearsal first = run("step_ms=2,alpha=.8");
  const Rehearsal second = run("step_ms=2,alpha=.8");
  EXPECT_EQ(first.history, second.history);
  ASSERT_EQ(first.answers.size(), second.answers.size());
  for (size_t i = 0; i < first.answers.size(); ++i) {
    EXPECT_EQ(first.answers[i].tokens, second.answers[i].tokens);
    EXPECT_EQ(first.answers[i].events, second.answers[i].events);
    EXPECT_GT(first.answers[i].stats.num_accepted_tokens, 0);
  }
  EXPECT_NE(first.history, run("step_ms=2.1,alpha=.8").history);
}

// Tokens per second after the first token.
double decode_rate(const TimedAnswer& answer) {
  return static_cast<double>(answer.tokens.size() -
                             static_cast<size_t>(answer.events[0].num_tokens)) /
         (answer.done_s - answer.first_token_s);
}

// Beside a draft that misses half of its blocks: texts that repeat themselves gain by what stands
// in for them, texts that do not lose nothing.
TEST(VirtualTime, WhatStandsInForMissedBlocksPaysWhereTextsRepeatThemselves) {
  const auto rate = [](double repeat, const char* backup, bool seeded) {
    const std::string language = fmt::format(",repeat={},jitter=0.1", repeat);
    RunConfig config = simulated(1, "step_ms=20,row_ms=0.1" + language, 0, "");
    config.speculative.model = "sim:step_ms=12,alpha=0.8" + language;
    config.speculative.async_drafting = "cache";
    config.speculative.backup = backup;
    const Rehearsal run = rehearse(config, {asked(0, 1, seeded ? greedy(2000) : sampled(1, 2000))});
    EXPECT_EQ(run.metrics.at("spec_decode_num_draft_tokens_by_source_total"),
              run.metrics.at("spec_decode_num_draft_tokens_total"));
    EXPECT_EQ(run.metrics.at("spec_decode_num_accepted_tokens_by_source_total"),
              run.metrics.at("spec_decode_num_accepted_tokens_total"));
    return std::pair(decode_rate(run.answers[0]), run.answers[0].tokens);
  };
  const auto [without, text] = rate(0.9, "none", true);
  const auto [with, same_text] = rate(0.9, "ngram", true);
  EXPECT_EQ(text, same_text);
  fmt::print("repeating: {:.1f} tokens/s, {:.1f} with n-gram drafts\n", without, with);
  EXPECT_GT(with, 1.2 * without);
  for (const bool seeded : {true, false}) {
    const double plain = rate(0, "none", seeded).first;
    EXPECT_GT(rate(0, "ngram", seeded).first, 0.97 * plain);
  }
}

// A draft that reads long prompts answers the other stream late, round after round. That stream is
// held up by one wait of 40 ms and a step at a time, also where a short wait was expected.
TEST(VirtualTime, AStreamIsNeverHeldUpByTwoWaits) {
  RunConfig config = simulated(1, "step_ms=20,jitter=0.02", 0, "");
  config.max_num_batched_tokens = 4096;
  config.speculative.model = "sim:step_ms=2,row_ms=0.05,alpha=0.8,jitter=0.02";
  config.speculative.async_drafting = "off";
  std::vector<TimedRequest> requests = {asked(0, 1, sampled(1, 1500))};
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(asked(1.0 + 0.7 * i, 2 + i, sampled(1, 20)));
    requests.back().prompt.resize(1000, 7 + i);
  }
  const Rehearsal run = rehearse(config, requests);
  const std::vector<TimedEvent>& events = run.answers[0].events;
  double longest_s = 0;
  for (size_t i = 1; i < events.size(); ++i)
    longest_s = std::max(longest_s, events[i].at_s - events[i - 1].at_s);
  EXPECT_GT(longest_s, 0.040) << "the draft was never late";
  EXPECT_LE(longest_s, 0.040 + 0.0204 + 0.0005);
}

TEST(VirtualTime, ASynchronousDraftIsWorthWhatTheFormulaSays) {
  struct Case {
    double alpha;
    double cost;
    int draft_len;
  };
  for (const Case& c : {Case{0.6, 0.05, 2}, {0.8, 0.1, 4}, {0.9, 0.2, 5}}) {
    constexpr double kStepMs = 20;
    RunConfig config = simulated(1,
                                 fmt::format("step_ms={}", kStepMs),
                                 c.draft_len,
                                 fmt::format("step_ms={},alpha={}", c.cost * kStepMs, c.alpha));
    config.speculative.async_drafting = "off";
    const Rehearsal run = rehearse(config, {asked(0, 1, sampled(1, 3000))});
    const TimedAnswer& answer = run.answers[0];
    ASSERT_EQ(answer.tokens.size(), 3000u);
    // Exact for the tokens that really came of each round; the law's tokens per round within four
    // standard errors.
    const double speed_up = decode_rate(answer) * kStepMs / 1e3;
    const double num_rounds = static_cast<double>(answer.events.size()) - 1;
    const double per_round = std::accumulate(answer.events.begin() + 1,
                                             answer.events.end(),
                                             0.0,
                                             [](double sum, const TimedEvent& event) {
                                               return sum + event.num_tokens;
                                             }) /
                             num_rounds;
    const double cost = 1 + c.draft_len * c.cost;
    EXPECT_NEAR(speed_up / (per_round / cost), 1, 0.01) << c.alpha;
    const double expected = (1 - std::pow(c.alpha, c.draft_len + 1)) / (1 - c.alpha);
    const double error = 4 * c.draft_len / 2.0 / std::sqrt(num_rounds);
    EXPECT_NEAR(per_round, expected, error) << c.alpha;
    EXPECT_NEAR(speed_up / (expected / cost), 1, 0.06) << c.alpha;
  }
}

TEST(VirtualTime, ALinkAddsItsLatency) {
  const auto seconds = [](const InProcessLink& link) {
    RunConfig config = simulated(2, "step_ms=10", 3, "step_ms=1,alpha=1");
    config.speculative.async_drafting = "off";
    return rehearse(config, {asked(0, 0, greedy(100))}, link).seconds;
  };
  const double none = seconds({});
  // Four tokens a round; to the draft and back, and to rank 1 and back.
  const double to_draft = seconds({.latency = std::chrono::microseconds(400), .only_rank = 2});
  const double to_all = seconds({.latency = std::chrono::microseconds(400)});
  EXPECT_NEAR(to_draft - none, 25 * 0.0008, 3 * 0.0008);
  EXPECT_NEAR(to_all - to_draft, 25 * 0.0008, 3 * 0.0008);
}

// One step of the draft takes 2 s whenever a request of the second class is there, so that it hangs
// again and again, while each token it brings would save the target 20 ms.
TEST(VirtualTime, ADraftThatHangsHoldsAStreamUpNoLongerThan50MsAndAStep) {
  RunConfig config = simulated(2, "step_ms=20,workload_classes=2", 0, "");
  config.speculative.model = "sim:step_ms=2/2000,alpha=0.9,workload_classes=2";
  std::vector<TimedRequest> requests{asked(0, 0, greedy(4000))};
  for (int i = 0; i < 30; ++i) {
    requests.push_back(asked(0.7 + 1.5 * i, 0, greedy(8)));
    requests.back().prompt.back() += 1;  // the other class
  }
  const Rehearsal run = rehearse(config, requests);
  EXPECT_GT(run.metrics.at("draft_deadline_misses_total"), 10);
  const std::vector<TimedEvent>& events = run.answers[0].events;
  double longest_s = 0;
  for (size_t i = 1; i < events.size(); ++i)
    longest_s = std::max(longest_s, events[i].at_s - events[i - 1].at_s);
  EXPECT_LT(longest_s, 0.050 + 0.020 + 0.002);
}

TEST(VirtualTime, WaitsPassVirtualTimeAndEndByThemselves) {
  VirtualClock clock;
  const auto begin = JobClock::now();
  run_in_process(2, [&](World& world) {
    if (world.rank() == 1) return;
    EXPECT_TRUE(fails_with([&] { receive(world, 1, 2, 30); }, "did not answer in time"));
    EXPECT_GE(JobClock::now(), begin + std::chrono::seconds(30));
    EXPECT_LE(JobClock::now(), begin + std::chrono::milliseconds(30010));
  });
}

}  // namespace
}  // namespace outrider::test
