// Promise P3 over threads: strict logits on 1, 2, 4 and 8 ranks have the same bits, those of fast
// do not.
#include "runtime/comm/world/world.h"
#include "tests/models/strict_checks.h"

namespace outrider::test {
namespace {

std::vector<float> run_on(const StrictModel& model,
                          int num_ranks,
                          Numerics numerics,
                          ops::KvType kv_type = ops::KvType::kF32) {
  std::vector<float> logits;
  run_in_process(num_ranks, [&](World& world) {
    const auto group = world.make_target_group(num_ranks);
    std::vector<float> own = run_script(model, *group, numerics, ops::Activations::kF32, kv_type);
    if (group->rank() == 0) logits = std::move(own);
  });
  return logits;
}

// How many numbers of ranks beside 1 were compared.
int expect_same_bits(const StrictModel& model, ops::KvType kv_type = ops::KvType::kF32) {
  const std::vector<float> expected = run_on(model, 1, Numerics::kStrict, kv_type);
  expect_real_logits(expected);
  int num_compared = 0;
  for (const int num_ranks : {2, 4, 8}) {
    if (!fits(model, num_ranks)) continue;
    ++num_compared;
    EXPECT_TRUE(same_logit_bits(run_on(model, num_ranks, Numerics::kStrict, kv_type), expected))
        << model.name << " on " << num_ranks << " ranks";
  }
  return num_compared;
}

TEST(Strict, LogitsHaveTheSameBitsOnAnyNumberOfRanks) {
  int num_on_eight = 0;
  for (const StrictModel& model : awkward_models()) {
    const int num_compared = expect_same_bits(model);
    EXPECT_GE(num_compared, 2) << model.name;
    num_on_eight += num_compared == 3 ? 1 : 0;
  }
  EXPECT_GE(num_on_eight, 5);
}

TEST(Strict, WeightsInIntegers) {
  for (const StrictModel& model : integer_models()) {
    EXPECT_GE(expect_same_bits(model), 2) << model.name;
    EXPECT_FALSE(
        same_logit_bits(run_on(model, 2, Numerics::kFast), run_on(model, 1, Numerics::kFast)))
        << model.name;
  }
}

// A head's scale is of that head alone, so no rank's share of the heads changes it.
TEST(Strict, NarrowKeysAndValues) {
  for (const StrictModel& model : awkward_models()) {
    for (const ops::KvType type : {ops::KvType::kBF16, ops::KvType::kInt8}) {
      EXPECT_GE(expect_same_bits(model, type), 2) << model.name;
      EXPECT_FALSE(same_logit_bits(run_on(model, 2, Numerics::kStrict, type),
                                   run_on(model, 2, Numerics::kStrict)))
          << model.name;
    }
  }
}

TEST(Strict, RandomShapes) {
  std::mt19937 generator(20);
  const auto pick = [&](std::initializer_list<int32_t> values) {
    return *(values.begin() + generator() % values.size());
  };
  int num_compared = 0;
  for (int i = 0; i < 20; ++i) {
    const int32_t n_kv_heads = pick({1, 2, 3, 4, 6, 8, 11});
    const int32_t group = pick({1, 2, 3, 5, 8});
    StrictModel model;
    model.config = strict_shape(n_kv_heads * group, n_kv_heads, pick({4, 6, 16, 24, 34}));
    model.config.hidden_dim = pick({32, 50, 65, 128, 300});
    model.config.ffn_dim = pick({8, 16, 33, 100, 255, 513, 1100});
    model.config.vocab_size = pick({70, 128, 333, 1000});
    model.config.attention_bias = pick({0, 1}) == 1;
    model.config.attention_out_bias = pick({0, 1}) == 1;
    model.config.mlp_bias = pick({0, 1}) == 1;
    model.config.qk_norm = pick({0, 1}) == 1;
    model.config.tied_head = pick({0, 1}) == 1;
    model.dtype = static_cast<ops::DType>(pick({0, 1, 2}));
    model.name = "random shape " + std::to_string(i);
    num_compared += expect_same_bits(model);
  }
  EXPECT_GE(num_compared, 30);
}

// The control: the test above can fail, for fast fails it, on every model.
TEST(Strict, FastDiffersBetweenNumbersOfRanks) {
  for (const StrictModel& model : awkward_models()) {
    const std::vector<float> one = run_on(model, 1, Numerics::kFast);
    bool differs = false;
    for (const int num_ranks : {2, 4, 8}) {
      if (!fits(model, num_ranks)) continue;
      differs = differs || !same_logit_bits(run_on(model, num_ranks, Numerics::kFast), one);
    }
    EXPECT_TRUE(differs) << model.name;
    // The two are close, of course.
    const std::vector<float> strict = run_on(model, 1, Numerics::kStrict);
    EXPECT_FALSE(same_logit_bits(one, strict)) << model.name;
    float most = 0;
    for (const float value : one) most = std::max(most, std::abs(value));
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(std::abs(one[i] - strict[i]) <= 1e-4f * most) << model.name << ' ' << i;
    }
  }
}

// Weights are packed alike, so one copy serves both kinds of sums.
TEST(Strict, WeightsCanBeShared) {
  const StrictModel model = awkward_models()[0];
  const ModelShard fast = shard_model(model.config, 0, 1);
  const std::shared_ptr<const Weights> weights = weights_of(model, fast);
  const auto group = make_solo_group();
  ops::Context ctx(1);
  std::vector<std::vector<float>> results;
  for (const Numerics numerics : {Numerics::kFast, Numerics::kStrict}) {
    const ModelShard shard = shard_model(model.config, 0, 1, numerics);
    Transformer transformer(model.config, weights, shard, kOptions, *group, ctx);
    Batch batch;
    const auto blocks = block_ids(0, 2);
    append_rows(batch, std::vector<int32_t>{1, 2, 3, 4}, 0, blocks);
    batch.logit_rows = {3};
    const auto logits = transformer.forward(batch);
    results.emplace_back(logits.begin(), logits.end());
  }
  EXPECT_FALSE(same_logit_bits(results[0], results[1]));
}

}  // namespace
}  // namespace outrider::test
