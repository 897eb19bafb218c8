// The draft of the synthetic pair writes the tokens that an independent float32 program wrote with
// the same weights.
#include <gtest/gtest.h>

#include "models/synthetic/synthetic.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;

TEST(SyntheticPair, TheDraftWritesTheKnownTokens) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b@2");
  auto weights = random_weights(config, shard_model(config, 0, 1), 42, ops::DType::kBF16);
  LoneModel lone(config, std::move(weights), ops::best_isa(), 2);
  std::vector<int32_t> prompt = {1};
  for (int32_t token = 1000; token <= 15'000; token += 1000) prompt.push_back(token);
  EXPECT_EQ(lone.greedy(prompt, 8, block_ids(0, 2)),
            (std::vector<int32_t>{28470, 20526, 17770, 31474, 13695, 26158, 25167, 11312}));
}

}  // namespace
}  // namespace outrider
