// The scheduler's options as a whole job sees them.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

RunConfig small_memory(int32_t num_blocks) {
  RunConfig config = embedded_config(1, 2);
  config.max_model_len = 96;
  config.block_size = 4;
  config.enable_prefix_caching = false;
  limit_kv_blocks(config, num_blocks);
  return config;
}

struct JobRun {
  std::vector<Outcome> outcomes;
  double num_preemptions = 0;
  double num_faults = 0;
};

JobRun run_eight(const RunConfig& config) {
  JobRun run;
  run_engine(config, [&](const FrontEndContext& context) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    for (int i = 0; i < 8; ++i) {
      const std::string prompt = "The " + std::string(static_cast<size_t>(i), 'a') + " king said";
      streams.push_back(submit(context.engine, context.tokenizer->encode(prompt), greedy(60 + i)));
    }
    for (const auto& stream : streams) run.outcomes.push_back(collect(*stream));
    run.num_preemptions = context.metrics.num_preemptions.value();
    run.num_faults = context.metrics.kv_accounting_faults.value();
  });
  return run;
}

TEST(CapacitySchedulerPolicy, GuaranteedNoEvictCostsNoTokenAndPreemptsNobody) {
  RunConfig config = small_memory(60);
  const JobRun used = run_eight(config);
  config.capacity_scheduler_policy = "guaranteed_no_evict";
  const JobRun reserved = run_eight(config);
  EXPECT_GT(used.num_preemptions, 0);
  EXPECT_EQ(reserved.num_preemptions, 0);
  EXPECT_EQ(used.num_faults + reserved.num_faults, 0);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(reserved.outcomes[i].error, "");
    EXPECT_EQ(reserved.outcomes[i].tokens.size(), 60 + i);
    EXPECT_EQ(reserved.outcomes[i].tokens, used.outcomes[i].tokens);
  }
}

// Requests behind one that runs for long; how many the queue takes.
int num_taken(const FrontEndContext& context, int num_requests, bool is_further) {
  int num_taken = 0;
  for (int i = 0; i < num_requests; ++i) {
    Request request;
    request.id = context.engine.next_request_id();
    request.prompt = context.tokenizer->encode("A");
    request.params = greedy(4);
    request.is_further = is_further;
    const AdmissionResult result = context.engine.submit(std::move(request));
    num_taken += result.admission == Admission::kAccepted ? 1 : 0;
  }
  return num_taken;
}

TEST(MaxNumQueuedReqs, IsExactWhoeverAsksAndHalfOfItForFurtherOnesOfACall) {
  RunConfig config = embedded_config(1, 0);
  // Half a minute of steps: the first request still runs when all have asked, on any machine.
  config.model = "sim:step_ms=0.5,max_len=65536";
  config.max_num_seqs = 1;
  config.max_num_queued_reqs = 32;
  run_engine(config, [&](const FrontEndContext& context) {
    const auto running = submit(context.engine, context.tokenizer->encode("The"), greedy(60000));
    ASSERT_TRUE(running->wait_next(std::chrono::seconds(60)));
    EXPECT_EQ(num_taken(context, 100, true), 16);
    // Rounds take requests out of the inbox meanwhile, and each is counted once.
    std::atomic<int> num_first{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i)
      callers.emplace_back([&] { num_first += num_taken(context, 100, false); });
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(num_first, 16);
    EXPECT_EQ(num_taken(context, 100, true), 0);
    context.engine.request_stop(Coordinator::Stop::kNow);
  });
}

AdmissionResult submit_with_priority(Engine& engine, int32_t priority) {
  Request request;
  request.id = engine.next_request_id();
  request.prompt = {300, 301};
  request.params = greedy(1);
  request.priority = priority;
  request.stream = std::make_shared<ResultStream>();
  return engine.submit(std::move(request));
}

TEST(SchedulingPolicy, OnlyFcfsRefusesPriorities) {
  for (const char* policy : {"fcfs", "priority"}) {
    RunConfig config = embedded_config(1, 0);
    config.scheduling_policy = policy;
    run_engine(config, [&](const FrontEndContext& context) {
      EXPECT_EQ(submit_with_priority(context.engine, 0).admission, Admission::kAccepted);
      const AdmissionResult result = submit_with_priority(context.engine, 3);
      const bool refuses = std::string(policy) == "fcfs";
      EXPECT_EQ(result.admission, refuses ? Admission::kRefused : Admission::kAccepted);
      EXPECT_EQ(result.reason.find("priority is 3") != std::string::npos, refuses);
    });
  }
}

}  // namespace
}  // namespace outrider::test
