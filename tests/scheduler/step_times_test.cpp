// What a step takes by its rows: also when some of it was measured in worse times.
#include "scheduler/pacing/step_times.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "scheduler/pacing/constants.h"

namespace outrider {
namespace {

double at(const StepTimes& times, int32_t rows) { return times.at({.num_rows = rows}); }

void add(StepTimes& times, int32_t rows, double seconds, int repeats = 2) {
  for (int i = 0; i < repeats; ++i) times.add({.num_rows = rows}, seconds);
}

TEST(StepTimes, NothingIsKnownAtFirstAndLittleOfMoreRows) {
  StepTimes times;
  EXPECT_EQ(at(times, 8), 0);
  add(times, 8, 0.002);
  EXPECT_EQ(at(times, 8), 0.002);
  EXPECT_EQ(at(times, 64), 0.002);  // the least that it can be: so it is tried
  EXPECT_EQ(at(times, 1), 0.002 / 8);
}

TEST(StepTimes, NeverFallWithTheRows) {
  StepTimes times;
  add(times, 4, 0.003);
  add(times, 16, 0.001);
  add(times, 64, 0.005);
  double before = 0;
  for (int32_t rows = 1; rows <= 64; ++rows) {
    EXPECT_GE(at(times, rows), before) << rows;
    before = at(times, rows);
  }
  EXPECT_EQ(before, 0.005);
}

TEST(StepTimes, DisturbedStepsOfManyRowsDoNotKeepThemFromBeingTriedAgain) {
  StepTimes times;
  add(times, 32, 0.001);
  add(times, 64, 0.050);
  int num_steps = 0;
  while (at(times, 64) > 0.002 &&
         num_steps < 10000) {  // whoever chooses takes fewer rows meanwhile
    add(times, 32, 0.001, 1);
    ++num_steps;
  }
  EXPECT_GT(num_steps, 100);
  EXPECT_LT(num_steps, 3000);
  add(times, 64, 0.0012);
  EXPECT_GT(at(times, 64), 0.001);
  EXPECT_LT(at(times, 64), 0.002);
}

// Where probes at the start said what rows take, a number of rows that was last seen in worse times
// is soon no longer thought to be that slow.
TEST(StepTimes, ProbesTellWhatRowsTakeInBetterTimes) {
  StepTimes times;
  for (int32_t rows : {1, 32}) times.add_probe({.num_rows = rows}, 0.001);
  add(times, 1, 0.004, 20);
  EXPECT_GT(at(times, 1), 0.002);
  add(times, 32, 0.001, 100);
  EXPECT_LT(at(times, 1), 0.0012);
}

TEST(PacingConstants, AreSetByName) {
  const PacingConstants before = pacing;
  set_pacing_constant("outlier", "2.5");
  EXPECT_EQ(pacing.outlier, 2.5);
  pacing = before;
  EXPECT_THROW(set_pacing_constant("outlier", "much"), Error);
  EXPECT_THROW(set_pacing_constant("outlier", "0"), Error);
  try {
    set_pacing_constant("outliers", "2");
    FAIL() << "an unknown name";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no pacing constant 'outliers'; the nearest is 'outlier'");
  }
}

}  // namespace
}  // namespace outrider
