// Sampling's questions about a model's logits are answered on all threads that the model has.
#include "runtime/ranks/target/logit_scanner.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

TEST(LogitScanner, AModelsThreadsShareTheRows) {
  test::LoneModel lone(test::golden_dir() / "llama-tied-f32", ops::best_isa(), 3);
  const std::unique_ptr<RowScanner> scanner = make_logit_scanner(*lone.model, false);
  constexpr int32_t kSize = 9000;
  const std::vector<float> logits(4 * kSize, 1.0f);
  std::vector<RowView> rows;
  RowQuestions questions;
  for (int32_t r = 0; r < 4; ++r) {
    rows.push_back({.logits = logits.data() + r * kSize, .size = kSize, .first_token = 7 * r});
    questions.scans.push_back({.row = r});
  }
  scanner->hold(rows);
  const uint32_t before = lone.ctx.num_hand_overs();
  scanner->answer(questions);
  EXPECT_EQ(lone.ctx.num_hand_overs(), before + 1);
  for (int32_t r = 0; r < 4; ++r) {
    EXPECT_EQ(questions.scans[static_cast<size_t>(r)].key, pack_key(1.0f, 7 * r));
  }
}

}  // namespace
}  // namespace outrider
