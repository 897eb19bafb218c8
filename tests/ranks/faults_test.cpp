// Promise P4 with whole jobs as threads: a decision flipped on one rank stops the job in that round
// with one sentence; NaN in one sequence ends that request and changes nothing else.
#include "runtime/ranks/target/faults.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/base/log.h"
#include "tests/base/error_sentence.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

std::string refusal(const std::string& text) {
  return error_of([&] { Faults::parse(text, 0, 2); });
}

TEST(FaultText, WhatIsWrongIsSaid) {
  EXPECT_EQ(refusal("flip:rank=1"),
            "OUTRIDER_FAULT: 'flip' is none of flip_decision, nan_logits, nan_kv");
  EXPECT_EQ(refusal("flip_decision:rank=1"), "OUTRIDER_FAULT: 'flip_decision:rank=1' lacks round=");
  EXPECT_EQ(refusal("flip_decision:rank=2,round=1"),
            "OUTRIDER_FAULT: 'flip_decision:rank=2,round=1' names rank 2 of 2 target ranks");
  EXPECT_EQ(refusal("flip_decision:rank=1,round=0"),
            "OUTRIDER_FAULT: round=0 in 'flip_decision:rank=1,round=0' is not a number from 1 on");
  EXPECT_EQ(
      refusal("flip_decision:rank=1,round=9x"),
      "OUTRIDER_FAULT: round=9x in 'flip_decision:rank=1,round=9x' is not a number from 1 on");
  EXPECT_EQ(refusal("flip_decision:rank=1,round=2,field=digest"),
            "OUTRIDER_FAULT: field=digest is neither next_token nor accepted");
  EXPECT_EQ(refusal("flip_decision:rank=1,rank=1,round=2"),
            "OUTRIDER_FAULT: 'rank' stands twice in 'flip_decision:rank=1,rank=1,round=2'");
  EXPECT_EQ(refusal("nan_logits:sequence=1,output=2,prompt=3"),
            "OUTRIDER_FAULT: 'output' is no key of nan_logits");
  EXPECT_EQ(refusal("nan_logits:sequence=1"),
            "OUTRIDER_FAULT: 'nan_logits:sequence=1' lacks output=");
  EXPECT_EQ(refusal("nan_kv:sequence"),
            "OUTRIDER_FAULT: 'sequence' in 'nan_kv:sequence' is not key=value");
  EXPECT_EQ(refusal("nan_kv:sequence=1,position=0;"),
            "OUTRIDER_FAULT: '' is none of flip_decision, nan_logits, nan_kv");
}

TEST(FaultText, ArmsOnlyItsRankAndItsPlace) {
  const std::string text = "nan_logits:sequence=3,output=5,rank=1;nan_kv:sequence=4,position=2";
  const Faults first = Faults::parse(text, 0, 2);
  EXPECT_FALSE(first.spoils_logits(3, 12, 7));
  EXPECT_TRUE(first.spoils_kv(4, 2));
  EXPECT_FALSE(first.spoils_kv(4, 3));
  const Faults second = Faults::parse(text, 1, 2);
  EXPECT_TRUE(second.spoils_logits(3, 12, 7));
  EXPECT_FALSE(second.spoils_logits(3, 11, 7));
  EXPECT_FALSE(second.spoils_logits(4, 12, 7));
  EXPECT_FALSE(second.spoils_kv(4, 2));
  EXPECT_FALSE(Faults::parse("flip_decision:rank=1,round=2", 0, 2).any());
}

RoundPlan plan_with_drafts(uint64_t round) {
  RoundPlan plan;
  plan.round = round;
  plan.sequences.resize(2);
  plan.sequences[1].draft = {{5, {}}, {6, {}}};
  return plan;
}

RoundDecision decision_for_two() {
  RoundDecision decision;
  decision.sequences.resize(2);
  decision.sequences[0].next_token = 40;
  decision.sequences[1].next_token = 50;
  decision.sequences[1].num_accepted = 2;
  return decision;
}

TEST(FaultText, FlipsOnceWhenItsTimeHasCome) {
  for (const bool accepted : {false, true}) {
    Faults faults = Faults::parse(
        fmt::format("flip_decision:rank=0,round=20{}", accepted ? ",field=accepted" : ""), 0, 1);
    for (uint64_t round = 18; round < 23; ++round) {
      RoundDecision decision = decision_for_two();
      faults.flip(plan_with_drafts(round), &decision);
      const bool flips = round == 20;
      EXPECT_EQ(decision.sequences[0].next_token, flips && !accepted ? 41 : 40);
      EXPECT_EQ(decision.sequences[1].next_token, 50);
      EXPECT_EQ(decision.sequences[1].num_accepted, flips && accepted ? 1 : 2);
    }
  }
  // A round that decides nothing is passed over.
  Faults faults = Faults::parse("flip_decision:rank=0,round=1", 0, 1);
  RoundDecision nothing;
  nothing.sequences.resize(2);
  faults.flip(plan_with_drafts(1), &nothing);
  EXPECT_EQ(nothing.sequences[0].next_token, -1);
  RoundDecision decision = decision_for_two();
  faults.flip(plan_with_drafts(2), &decision);
  EXPECT_EQ(decision.sequences[0].next_token, 41);
}

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door",
    "The old woman went into the forest to gather wood, and",
    "The soldiers had been marching since the morning.",
};

std::vector<Ask> asks_of(int32_t max_tokens) {
  std::vector<Ask> asks;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    asks.push_back({kPrompts[i], i % 2 == 0 ? greedy(max_tokens) : seeded(0.8f, i, max_tokens)});
  }
  return asks;
}

// ---- divergence: the job ends with code 70, so it runs in a child of the test
// --------------------------------------------------------------------------------

struct Flip {
  int num_targets;
  int draft_len;
  std::string fault;
  std::string sentence;
};

class Divergence : public ::testing::TestWithParam<Flip> {};

TEST_P(Divergence, StopsTheJobNamingRankAndRound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Flip& flip = GetParam();
  const SetVariable fault(Faults::kVariable, flip.fault);
  EXPECT_EXIT(
      {
        run_asks(patient(embedded_config(flip.num_targets, flip.draft_len)), asks_of(40));
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(70),
      flip.sentence);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Divergence,
    ::testing::Values(
        Flip{2,
             4,
             "flip_decision:rank=1,round=7",
             "round 7 was decided differently by the target ranks: rank 0 .*, rank 1 "},
        Flip{2, 0, "flip_decision:rank=0,round=7", "round 7 was decided differently by .*rank 0 "},
        Flip{4,
             4,
             "flip_decision:rank=0,round=9",
             "round 9 was decided differently by rank 0 .coordinator.target.0/4..\n"},
        Flip{4,
             0,
             "flip_decision:rank=3,round=1",
             "round 1 was decided differently by rank 3 .target.3/4..\n"},
        Flip{4,
             4,
             "flip_decision:rank=2,round=2,field=accepted",
             "round [0-9]+ was decided differently by rank 2 .target.2/4..\n"},
        // The last round before the job is idle: the 4 requests of 40 tokens start in the first
        // two rounds at the latest.
        Flip{2, 0, "flip_decision:rank=1,round=40", "round 4[0-9] was decided differently by "}));

// ---- NaN
// -------------------------------------------------------------------------------------------

struct NanCase {
  int num_targets;
  int draft_len;
  std::string fault;  // of request 2
  int32_t max_rows = 512;
  bool scores_prompts = false;
};

class NanLogits : public ::testing::TestWithParam<NanCase> {};

// The four asks at once, then once more each alone, so that others get the failed one's blocks.
std::vector<Outcome> run_twice(const RunConfig& config,
                               const std::vector<Ask>& asks,
                               double* kv_usage) {
  std::vector<Outcome> outcomes;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (const Ask& ask : asks) {
      streams.push_back(submit(context.engine, context.tokenizer->encode(ask.prompt), ask.params));
    }
    for (const auto& stream : streams) outcomes.push_back(collect(*stream));
    for (const Ask& ask : asks) {
      outcomes.push_back(
          collect(*submit(context.engine, context.tokenizer->encode(ask.prompt), ask.params)));
    }
    // The last status is published a moment after the last event.
    for (int i = 0; i < 12000 && context.metrics.kv_cache_usage_perc.value() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    *kv_usage = context.metrics.kv_cache_usage_perc.value();
  });
  return outcomes;
}

TEST_P(NanLogits, EndThatRequestAndNothingElse) {
  const NanCase& nan = GetParam();
  RunConfig config = embedded_config(nan.num_targets, nan.draft_len);
  config.max_num_batched_tokens = nan.max_rows;
  // Room for the four and little more: blocks go from one to the next.
  config.max_model_len = 80;
  limit_kv_blocks(config, 24);
  std::vector<Ask> asks = asks_of(40);
  if (nan.scores_prompts) {
    for (Ask& ask : asks) ask.params.prompt_logprobs = true;
  }
  double kv_usage = -1;
  const std::vector<Outcome> expected = run_twice(config, asks, &kv_usage);
  EXPECT_EQ(kv_usage, 0);
  std::vector<Outcome> outcomes;
  {
    const SetVariable fault(Faults::kVariable, nan.fault);
    outcomes = run_twice(config, asks, &kv_usage);
  }
  EXPECT_EQ(kv_usage, 0) << "blocks are missing";
  ASSERT_EQ(outcomes.size(), expected.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (i != 1) {
      EXPECT_EQ(outcomes[i].error, "") << i;
      EXPECT_EQ(outcomes[i].tokens, expected[i].tokens) << i;
      EXPECT_EQ(outcomes[i].prompt_logprobs.size(), expected[i].prompt_logprobs.size()) << i;
      continue;
    }
    EXPECT_EQ(outcomes[i].finish_reason, FinishReason::kError);
    EXPECT_EQ(outcomes[i].error, "the model produced NaN or infinite logits");
    // What came before the fault is right.
    ASSERT_LT(outcomes[i].tokens.size(), expected[i].tokens.size());
    EXPECT_TRUE(std::equal(
        outcomes[i].tokens.begin(), outcomes[i].tokens.end(), expected[i].tokens.begin()));
    const bool is_early = nan.fault.find("output") == std::string::npos;
    EXPECT_EQ(outcomes[i].tokens.empty(), is_early);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Places,
    NanLogits,
    ::testing::Values(NanCase{1, 0, "nan_logits:sequence=2,output=9"},
                      NanCase{1, 4, "nan_logits:sequence=2,output=9"},
                      NanCase{2, 4, "nan_logits:sequence=2,output=9,rank=1"},
                      NanCase{2, 4, "nan_logits:sequence=2,output=30,rank=0"},
                      NanCase{4, 4, "nan_logits:sequence=2,output=9,rank=3"},
                      // Scoring a prompt, whole and in chunks.
                      NanCase{2, 4, "nan_logits:sequence=2,prompt=3,rank=1", 512, true},
                      NanCase{2, 0, "nan_logits:sequence=2,prompt=12,rank=1", 8, true},
                      // A prompt chunk without logits: what it left in the KV spoils the next.
                      NanCase{1, 0, "nan_kv:sequence=2,position=3", 8},
                      NanCase{2, 4, "nan_kv:sequence=2,position=3,rank=1", 8}));

}  // namespace
}  // namespace outrider::test
