// Whole jobs of simulated models: the acceptance that is measured is the one that was dialled,
// under every rule and on 1 and 2 target ranks, and drafts change no text.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/ops/cpu/threads/topology.h"
#include "runtime/ranks/loading/model_loader.h"
#include "tests/base/error_sentence.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

RunConfig simulated(int num_targets, int draft_len, const std::string& draft) {
  RunConfig config = embedded_config(num_targets, 0);
  config.model = "sim:step_ms=0.2,workload_classes=3";
  config.max_model_len = 1024;
  if (draft_len > 0) {
    config.speculative.model = "sim:step_ms=0.1,workload_classes=3," + draft;
    config.speculative.num_speculative_tokens = draft_len;
    config.speculative.draft_patience_s = 2;
  }
  return config;
}

struct Count {
  int64_t examined = 0;
  int64_t accepted = 0;
};

Count count_of(const std::vector<Outcome>& outcomes) {
  Count count;
  for (const Outcome& outcome : outcomes) {
    const SpeculationStats& stats = outcome.stats;
    for (size_t i = 0; i < stats.drafted_per_position.size(); ++i) {
      const int32_t reached = i == 0 ? stats.num_spec_rounds : stats.accepted_per_position[i - 1];
      count.examined += std::min(reached, stats.drafted_per_position[i]);
      count.accepted += stats.accepted_per_position[i];
    }
  }
  return count;
}

std::vector<Outcome> run_prompts(const RunConfig& config,
                                 const std::vector<std::vector<int32_t>>& prompts,
                                 const SamplingParams& params) {
  std::vector<Outcome> outcomes;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (const auto& prompt : prompts) streams.push_back(submit(context.engine, prompt, params));
    for (const auto& stream : streams) {
      ASSERT_NE(stream, nullptr);
      outcomes.push_back(collect(*stream));
    }
  });
  return outcomes;
}

// Four requests of a workload_class.
std::vector<std::vector<int32_t>> prompts_of(int32_t workload_class) {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 4; ++i) prompts.push_back({5, 270 + workload_class + 3 * i});
  return prompts;
}

TEST(SimulatedEngine, MeasuredAcceptanceIsTheDialled) {
  const double alphas[] = {0.6, 0.8, 0.9};
  for (const int num_targets : {1, 2}) {
    for (const char* rule : {"standard", "block", "coupled", "greedy"}) {
      const bool is_greedy = std::string(rule) == "greedy";
      for (int32_t workload_class = 0; workload_class < 3; ++workload_class) {
        RunConfig config = simulated(num_targets, 4, "alpha=.6/.8/.9");
        if (!is_greedy) config.speculative.rejection_sample_method = rule;
        const SamplingParams params = is_greedy ? greedy(300) : sampled(1.0f, 300);
        const Count count = count_of(run_prompts(config, prompts_of(workload_class), params));
        ASSERT_GT(count.examined, 400);
        const double alpha = alphas[workload_class];
        const auto examined = static_cast<double>(count.examined);
        const double share = static_cast<double>(count.accepted) / examined;
        EXPECT_LE(std::abs(share - alpha), 5 * std::sqrt(alpha * (1 - alpha) / examined))
            << rule << " " << num_targets << " targets, alpha " << alpha << ": " << share;
      }
    }
  }
}

TEST(SimulatedEngine, NothingOrAllIsAccepted) {
  for (const float temperature : {0.0f, 1.0f}) {
    const Count none =
        count_of(run_prompts(simulated(1, 3, "alpha=0"), prompts_of(1), sampled(temperature, 60)));
    EXPECT_GT(none.examined, 100);
    EXPECT_EQ(none.accepted, 0);
    const Count all =
        count_of(run_prompts(simulated(1, 3, "alpha=1"), prompts_of(1), sampled(temperature, 60)));
    EXPECT_GT(all.examined, 100);
    EXPECT_EQ(all.accepted, all.examined);
  }
}

TEST(SimulatedEngine, SameTextWithEveryDraftLengthAndNumberOfRanks) {
  std::vector<std::vector<int32_t>> prompts = prompts_of(0);
  prompts.push_back(prompts_of(2)[0]);
  for (const SamplingParams& params : {greedy(80), seeded(0.9f, 11, 80)}) {
    std::vector<std::vector<int32_t>> plain;
    for (const Outcome& outcome : run_prompts(simulated(1, 0, ""), prompts, params))
      plain.push_back(outcome.tokens);
    EXPECT_EQ(std::set(plain.begin(), plain.end()).size(), prompts.size());
    for (const auto& [num_targets, draft_len] : {std::pair(1, 1), {1, 5}, {2, 4}, {3, 8}}) {
      const auto outcomes =
          run_prompts(simulated(num_targets, draft_len, "alpha=.7"), prompts, params);
      for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].tokens, plain[i]);
      EXPECT_GT(count_of(outcomes).accepted, 50);
    }
  }
}

// It has no context, which would hold the thread.
TEST(SimulatedEngine, ATargetHoldsItsThreadWhereThePlanSays) {
  const std::vector<int> before = ops::cpu::current_cpus();
  if (ops::cpu::given_cpus().size() < 2) GTEST_SKIP() << "one CPU: no choice";
  for (const int cpu : {before.front(), before.back()}) {
    ops::ThreadPlan plan(1);
    plan.cpus = {cpu};
    const LoadedModel loaded =
        load_target(simulated(1, 0, ""), {1, false}, 0, plan, make_solo_group());
    EXPECT_EQ(ops::cpu::current_cpus(), std::vector{cpu});
  }
  EXPECT_EQ(ops::cpu::current_cpus(), before);
}

// Two ranks that fill the CPUs, so that rank 0 is held (topology_test) and starts the front end.
TEST(SimulatedEngine, TheFrontEndIsNotHeldWithItsRank) {
  RunConfig config = simulated(2, 0, "");
  config.threads = static_cast<int>(ops::cpu::given_cpus().size() / 2);
  if (config.threads == 0) GTEST_SKIP() << "one CPU: no choice";
  std::vector<int> seen;
  run_engine(config, [&](const FrontEndContext&) { seen = ops::cpu::current_cpus(); });
  EXPECT_EQ(seen, ops::cpu::given_cpus());
}

TEST(SimulatedEngine, PairsThatCannotBeAreRefused) {
  const auto run = [](const std::string& target, const std::string& draft) {
    RunConfig config = simulated(1, 2, "");
    config.model = target;
    config.speculative.model = draft;
    run_job(config, {}, [](const FrontEndContext&) { return 0; });
  };
  EXPECT_TRUE(
      fails_with([&] { run("sim:step_ms=1,alpha=.5", "sim:step_ms=1"); }, "alpha is the draft's"));
  EXPECT_TRUE(fails_with([&] { run("sim:step_ms=1,seed=2", "sim:step_ms=1"); },
                         "seed is 1 where the target's is 2"));
  EXPECT_TRUE(fails_with([&] { run("sim:step_ms=1", "sim:step_ms=1,workload_classes=2"); },
                         "workload_classes is 2 where the target's is 1"));
  EXPECT_TRUE(fails_with([&] { run("sim:step_ms=1", "embedded"); }, "needs a simulated target"));
  EXPECT_TRUE(fails_with([&] { run("embedded", "sim:step_ms=1"); }, "needs a simulated target"));
}

}  // namespace
}  // namespace outrider::test
