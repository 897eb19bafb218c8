// Promise P3 over MPI: run under mpirun, every rank a target. The strict logits of the whole group
// must have the bits that rank 0 computes alone.
#include "runtime/comm/world/world.h"
#include "tests/models/strict_checks.h"

namespace outrider::test {
namespace {

World* world = nullptr;

TEST(StrictMpi, LogitsHaveTheBitsOfOneRank) {
  const auto group = world->make_target_group(world->size());
  int num_compared = 0;
  for (const StrictModel& model : awkward_models()) {
    if (!fits(model, world->size())) continue;
    ++num_compared;
    const std::vector<float> together = run_script(model, *group, Numerics::kStrict);
    if (world->rank() != 0) continue;
    const std::vector<float> alone = run_script(model, *make_solo_group(), Numerics::kStrict);
    expect_real_logits(alone);
    EXPECT_TRUE(same_logit_bits(together, alone)) << model.name;
  }
  EXPECT_GE(num_compared, 5);
}

TEST(StrictMpi, WeightsInIntegers) {
  const auto group = world->make_target_group(world->size());
  for (const StrictModel& model : integer_models()) {
    ASSERT_TRUE(fits(model, world->size())) << model.name;
    const std::vector<float> together = run_script(model, *group, Numerics::kStrict);
    if (world->rank() != 0) continue;
    const std::vector<float> alone = run_script(model, *make_solo_group(), Numerics::kStrict);
    expect_real_logits(alone);
    EXPECT_TRUE(same_logit_bits(together, alone)) << model.name;
  }
}

TEST(StrictMpi, FastHasOtherBitsThanOneRank) {
  if (world->size() == 1) GTEST_SKIP() << "needs two ranks";
  const auto group = world->make_target_group(world->size());
  int num_different = 0;
  for (const StrictModel& model : awkward_models()) {
    if (!fits(model, world->size())) continue;
    const std::vector<float> together = run_script(model, *group, Numerics::kFast);
    if (world->rank() != 0) continue;
    const std::vector<float> alone = run_script(model, *make_solo_group(), Numerics::kFast);
    num_different += same_logit_bits(together, alone) ? 0 : 1;
  }
  if (world->rank() == 0) {
    EXPECT_GT(num_different, 0);
  }
}

}  // namespace
}  // namespace outrider::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto mpi_world = outrider::make_mpi_world(&argc, &argv);
  outrider::test::world = mpi_world.get();
  const int code = RUN_ALL_TESTS();
  mpi_world->finish(code);
  return code;
}
