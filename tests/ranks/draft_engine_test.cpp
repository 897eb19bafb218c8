// The draft's other process: what it knows of its host before MPI does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/ranks/draft/engine.h"

namespace outrider {
namespace {

constexpr int kNumTargets = 8;

// Ranks of the draft's host among the targets, and among all.
std::string counted_on_a_host_of(int num_local_ranks) {
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(num_local_ranks).c_str(), 1);
  const auto engine = DraftEngine::start(kNumTargets, [](World& parent) {
    report_ready(
        parent,
        {.problem = fmt::format(
             "{} {}", parent.num_ranks_here(kNumTargets), parent.num_ranks_here(kNumTargets + 1))});
  });
  return engine->wait_report().problem;
}

// A draft on a GPU shares out memory among the job's ranks there, of which it is one.
TEST(DraftEngine, CountsItselfAmongTheRanksOfItsHost) {
  EXPECT_EQ(counted_on_a_host_of(1), "0 1");
  EXPECT_EQ(counted_on_a_host_of(4), "3 4");
  EXPECT_EQ(counted_on_a_host_of(9), "8 9");
}

}  // namespace
}  // namespace outrider
