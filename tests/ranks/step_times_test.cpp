// What a draft step takes by its rows: also when some of it was measured in worse times.
#include "runtime/ranks/draft/step_times.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(StepTimes, NothingIsKnownAtFirstAndLittleOfMoreRows) {
  StepTimes times;
  EXPECT_EQ(times.at(8), 0);
  times.add(8, 0.002);
  EXPECT_EQ(times.at(1), 0);
  EXPECT_EQ(times.at(8), 0.002);
  EXPECT_EQ(times.at(64), 0.002);  // the least that it can be: so it is tried
}

TEST(StepTimes, NeverFallWithTheRows) {
  StepTimes times;
  times.add(4, 0.003);
  times.add(16, 0.001);
  times.add(64, 0.005);
  double before = 0;
  for (int32_t rows = 1; rows <= 80; ++rows) {
    EXPECT_GE(times.at(rows), before) << rows;
    before = times.at(rows);
  }
  EXPECT_EQ(before, 0.005);
}

TEST(StepTimes, ADisturbedStepOfManyRowsDoesNotKeepThemFromBeingTriedAgain) {
  StepTimes times;
  times.add(64, 0.050);
  int num_steps = 0;
  while (times.at(64) > 0.002 && num_steps < 10000) {  // whoever chooses takes fewer rows meanwhile
    times.add(32, 0.001);
    ++num_steps;
  }
  EXPECT_GT(num_steps, 100);
  EXPECT_LT(num_steps, 1000);
  times.add(64, 0.0012);
  EXPECT_GT(times.at(64), 0.001);
  EXPECT_LT(times.at(64), 0.050);
}

// All steps are shorter now, and only those of 32 rows have been seen since.
TEST(StepTimes, OldOnesAreNotLongerThanNewOnesOfMoreRows) {
  StepTimes times;
  times.add(1, 0.004);
  times.add(32, 0.005);
  for (int i = 0; i < 1000; ++i) times.add(32, 0.001);
  EXPECT_LE(times.at(1), times.at(32));
  EXPECT_GT(times.at(1), 0);
  EXPECT_NEAR(times.at(32), 0.001, 1e-5);
}

}  // namespace
}  // namespace outrider
