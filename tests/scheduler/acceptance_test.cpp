// How likely the next draft tokens are accepted: what is known of others, and hope that comes back.
#include "scheduler/pacing/acceptance.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(AcceptanceModel, NewSequencesBeginWithWhatOthersShowed) {
  AcceptanceModel acceptance;
  const double hope = acceptance.curve(1)[0];
  EXPECT_GT(hope, 0.4);
  EXPECT_LT(hope, 0.8);
  for (int i = 0; i < 200; ++i) acceptance.record_result(1, 4, 0);
  EXPECT_LT(acceptance.curve(1)[0], 0.05);
  EXPECT_LT(acceptance.curve(2)[0], 0.1);
  for (int i = 0; i < 30; ++i) acceptance.record_result(2, 4, 4);
  EXPECT_GT(acceptance.curve(2)[0], 0.8);
  EXPECT_LT(acceptance.curve(1)[0], 0.3);
  const SurvivalCurve curve = acceptance.curve(2);
  for (size_t i = 1; i < curve.size(); ++i) EXPECT_LE(curve[i], curve[i - 1]);
}

TEST(AcceptanceModel, DriftsBackToHopeLessAndLessOften) {
  AcceptanceModel acceptance;
  int64_t rounds[3] = {};
  for (int64_t& waited : rounds) {
    for (int i = 0; i < 100; ++i) acceptance.record_result(1, 1, 0);
    ASSERT_LT(acceptance.curve(1)[0], 0.1);
    while (acceptance.curve(1)[0] < 0.2) {
      acceptance.record_nothing();
      ASSERT_LT(++waited, 10000);
    }
  }
  EXPECT_GT(rounds[0], 100);
  EXPECT_GE(rounds[1], 2 * rounds[0] - 1);
  EXPECT_GE(rounds[2], 2 * rounds[1] - 1);
}

TEST(AcceptanceModel, ADayWithoutDraftsIsNoDayOfFailures) {
  AcceptanceModel acceptance;
  for (int i = 0; i < 3'000'000; ++i) acceptance.record_nothing();
  for (int i = 0; i < 100; ++i) acceptance.record_result(1, 1, 0);
  int64_t num_rounds = 0;
  while (acceptance.curve(1)[0] < 0.2) {
    acceptance.record_nothing();
    ASSERT_LT(++num_rounds, 10'000);
  }
}

}  // namespace
}  // namespace outrider
