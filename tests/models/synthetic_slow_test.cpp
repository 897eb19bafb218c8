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
  const ModelShard shard = shard_model(config, 0, 1);
  const auto group = make_solo_group();
  ops::Context ctx(2);
  Transformer model(
      config, random_weights(config, shard, 42, ops::DType::kBF16), shard, kOptions, *group, ctx);
  std::vector<int32_t> text = {1};
  for (int32_t token = 1000; token <= 15'000; token += 1000) text.push_back(token);
  const size_t prompt_size = text.size();
  const auto blocks = block_ids(0, 2);
  while (text.size() < prompt_size + 8) {
    Batch batch;
    append_rows(batch, text, 0, blocks);
    batch.logit_rows = {static_cast<int32_t>(text.size()) - 1};
    text.push_back(lowest_argmax(model.forward(batch)));
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  EXPECT_EQ(text, (std::vector<int32_t>{28470, 20526, 17770, 31474, 13695, 26158, 25167, 11312}));
}

}  // namespace
}  // namespace outrider
