// Who is chosen, and that sums of experts do not depend on a row's company.
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Chosen choose(std::vector<float> logits, const ExpertChoice& choice) {
  Context ctx(1);
  const auto per_row = static_cast<size_t>(choice.per_row);
  Chosen chosen{std::vector<int32_t>(per_row), std::vector<float>(per_row)};
  choose_experts(
      ctx, chosen.ids.data(), chosen.weights.data(), {logits.data(), 1, choice.count}, choice);
  return chosen;
}

TEST(Experts, TiesGoToTheLowerIdAndIdsAscend) {
  const Chosen chosen = choose({1, 2, 2, 0, 2, 3}, {.count = 6, .per_row = 3, .normalised = true});
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{1, 2, 5}));
  EXPECT_NEAR(chosen.weights[0] + chosen.weights[1] + chosen.weights[2], 1.0f, 1e-6f);
  EXPECT_EQ(chosen.weights[0], chosen.weights[1]);
}

TEST(Experts, CorrectionChoosesAndDoesNotWeigh) {
  const float correction[] = {0, 0, 0, 1};
  const Chosen chosen =
      choose({3, 2, 1, 0}, {.count = 4, .per_row = 1, .sigmoid = true, .correction = correction});
  EXPECT_EQ(chosen.ids, std::vector<int32_t>{3});
  EXPECT_NEAR(chosen.weights[0], 0.5f, 1e-6f);
}

// The best expert is in a group whose two best together are worse.
TEST(Experts, OnlyOfTheBestGroups) {
  const ExpertChoice choice{
      .count = 6, .per_row = 2, .sigmoid = true, .groups = 2, .chosen_groups = 1};
  EXPECT_EQ(choose({4, -9, -9, 2, 2, -9}, choice).ids, (std::vector<int32_t>{3, 4}));
}

TEST(Experts, LogitsThatAreNotNumbersStillNameExperts) {
  const Chosen chosen = choose({kPoison, 1, kPoison, 2}, {.count = 4, .per_row = 3});
  EXPECT_EQ(chosen.ids.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(chosen.ids[i] >= 0 && chosen.ids[i] < 4);
    EXPECT_TRUE(i == 0 || chosen.ids[i] > chosen.ids[i - 1]);
    EXPECT_FALSE(std::isfinite(chosen.weights[i]));
  }
}

// Two experts of 70 outputs, each from a panel of its own on, with biases and two slices.
TEST(Experts, ProductsAreThoseOfEachMatrixByItself) {
  constexpr int64_t kOut = 70, kIn = 48, kRows = 5;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    PackedMatrix both(128 + kOut, kIn, dtype);
    std::vector<PackedMatrix> alone;
    for (const uint32_t e : {0u, 1u}) {
      const Weights w = random_weights(kOut * kIn, dtype, 10 + e);
      both.fill_rows(128 * e, w.data(), kOut, kIn, dtype);
      alone.push_back(pack(w, kOut, kIn));
    }
    const std::vector<float> in = random_floats(kRows * kIn, 3);
    const std::vector<float> bias = random_floats(2 * kOut, 4);
    const ExpertRows groups[] = {{0, 0, 2}, {1, 2, kRows}};
    for (const int threads : {1, 2}) {
      Context ctx(threads);
      std::vector<float> got(kRows * kOut, kPoison);
      expert_linear(ctx, got.data(), in.data(), {&both, kOut, bias.data()}, groups);
      std::vector<float> sums(3 * kOut, 0.0f);
      const int32_t row_ids[] = {0, 2, 0, 1, 2};
      const float factors[] = {0.5f, 2.0f, 1.0f, 3.0f, 0.25f};
      add_expert_linear(
          ctx, {sums.data(), row_ids, factors}, in.data(), {&both, kOut, bias.data()}, groups);
      std::vector<float> expected(kRows * kOut);
      std::vector<float> expected_sums(3 * kOut, 0.0f);
      for (const ExpertRows& group : groups) {
        const auto e = static_cast<size_t>(group.expert);
        linear(ctx,
               expected.data() + group.begin * kOut,
               in.data() + group.begin * kIn,
               group.end - group.begin,
               alone[e],
               {bias.data() + group.expert * kOut});
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        expected_sums[static_cast<size_t>(row_ids[i / kOut]) * kOut + i % kOut] +=
            factors[i / kOut] * expected[i];
      }
      EXPECT_TRUE(same_bits(got, expected));
      EXPECT_TRUE(same_bits(sums, expected_sums));
    }
  }
}

}  // namespace
}  // namespace outrider::ops
