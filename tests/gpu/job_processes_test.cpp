// Whole jobs whose ranks are processes on one GPU: the text is that of one rank to the bit, with
// the exchange and with NCCL, with and without a draft; and when a target rank's process is killed,
// the job ends and says which.
#include <gtest/gtest.h>

#include "tests/comm/processes.h"
#include "tests/gpu/job_case.h"
#include "tests/gpu/nccl_ways.h"
#include "tests/gpu/process_member.h"

namespace outrider::test {
namespace {

constexpr double kMostS = 250;
constexpr int kExitAborted = 70;

struct Job {
  std::string device_sums;
  NcclWay way = NcclWay::kHostIds;
  bool has_draft = false;

  RunConfig config() const {
    RunConfig config = gpu_job_config(2, device_sums);
    if (has_draft) {
      config.speculative.model = "embedded";
      config.speculative.num_speculative_tokens = 3;
    }
    // The fake sums as it is called: nothing can be recorded.
    config.enforce_eager = gpu::is_emulated() && device_sums == "nccl";
    return config;
  }
  int num_ranks() const { return has_draft ? 3 : 2; }
  // What this machine cannot have.
  const char* why_not() const {
#ifndef FAKE_NCCL
    if (gpu::is_emulated() && device_sums == "nccl") return "no nccl.h when this was built";
#endif
    if (gpu::is_emulated() && way == NcclWay::kSharedGpu) return "the fake NCCL has but one way";
    return nullptr;
  }
};

std::string name_of(const Job& job) {
  const char* const way = job.device_sums != "nccl"        ? ""
                          : job.way == NcclWay::kSharedGpu ? "SharedGpu"
                                                           : "HostIds";
  return job.device_sums + way + (job.has_draft ? "WithDraft" : "");
}

// One rank's part of the job.
void take_part(SocketWorld& world,
               const Job& job,
               const std::function<void(const FrontEndContext&)>& front_end) {
  set_gpu_provider(gpu::test_backend);
  if (job.device_sums == "nccl") {
    set_nccl_way(job.way, world.rank());
  } else {
    gpu::do_work_on_threads();
  }
  const int code = run_job_in(world, job.config(), [&](const FrontEndContext& context) {
    front_end(context);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

bool is_refused_by_nccl(const std::vector<EndedRank>& ended) {
  return !gpu::is_emulated() && ended[0].error.find("NCCL cannot be used") != std::string::npos;
}

class JobProcesses : public ::testing::TestWithParam<Job> {};

TEST_P(JobProcesses, HaveTheBitsOfOneRank) {
  const Job job = GetParam();
  if (job.why_not() != nullptr) GTEST_SKIP() << job.why_not();
  const auto ended = run_in_processes(job.num_ranks(), kMostS, [&](SocketWorld& world) {
    std::string record;
    take_part(world, job, [&](const FrontEndContext& context) {
      record = record_of(ask_all(context, gpu_job_asks()));
    });
    return record;
  });
  if (is_refused_by_nccl(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  expect_fine(ended);
  set_gpu_provider(gpu::test_backend);
  const std::vector<Outcome> one = run_asks(gpu_job_config(1, "auto"), gpu_job_asks());
  set_gpu_provider(gpu::cuda_backend);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0].tokens.size(), static_cast<size_t>(gpu_job_asks()[0].params.max_tokens));
  EXPECT_EQ(ended[0].answer, record_of(one));
}

// One request after the other, for ever.
void ask_without_end(SocketWorld& world, const FrontEndContext& context) {
  while (true) {
    const auto stream = submit(context.engine, {1, 2, 3}, greedy(100));
    if (stream == nullptr) return;
    for (bool is_over = false; !is_over;) {
      const auto event = stream->wait_next(std::chrono::seconds(static_cast<int>(kMostS)));
      if (!event) return;
      world.board().count += static_cast<uint32_t>(event->tokens.size());
      is_over = event->finish_reason != FinishReason::kNone;
    }
  }
}

TEST_P(JobProcesses, EndWithTheNameOfAKilledTarget) {
  const Job job = GetParam();
  if (job.why_not() != nullptr) GTEST_SKIP() << job.why_not();
  const auto ended =
      run_in_processes(job.num_ranks(), kMostS, [&](SocketWorld& world) -> std::string {
        if (world.rank() == 1) die_at_count(world, 4);
        take_part(
            world, job, [&](const FrontEndContext& context) { ask_without_end(world, context); });
        return "the job went on to its end";
      });
  if (is_refused_by_nccl(ended)) GTEST_SKIP() << ended[0].error << "\n" << ended[0].output;
  expect_killed(ended);
  EXPECT_EQ(ended[0].exit_code, kExitAborted) << ended[0].answer << ended[0].error;
  EXPECT_NE(ended[0].output.find("rank 1 (process "), std::string::npos) << ended[0].output;
  EXPECT_NE(ended[0].output.find(") is gone"), std::string::npos) << ended[0].output;
  if (job.has_draft) {
    EXPECT_FALSE(ended[2].is_late) << ended[2].output;
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         JobProcesses,
                         ::testing::Values(Job{"exchange"},
                                           Job{"nccl"},
                                           Job{"nccl", NcclWay::kHostIds, true},
                                           Job{"nccl", NcclWay::kSharedGpu}),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace outrider::test
