// Probes of a model's steps: batches that any model takes, and which sizes are measured.
#include "runtime/ranks/target/step_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"

namespace outrider {
namespace {

TEST(StepProbe, ABatchWritesEachSlotOnceAndFits) {
  for (const int32_t block_size : {1, 4, 8, 16, 32}) {
    for (const int32_t num_rows : {1, 2, 7, 8, 9, 33, 100}) {
      std::vector<int32_t> blocks;
      const Batch batch = probe_batch(num_rows, block_size, 50, &blocks);
      ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(num_rows));
      ASSERT_EQ(batch.logit_rows.size(), batch.tokens.size());
      std::set<int32_t> slots;
      for (size_t row = 0; row < batch.tokens.size(); ++row) {
        const auto& table = batch.block_tables.at(static_cast<size_t>(batch.sequence_of_row[row]));
        const int32_t position = batch.positions[row];
        ASSERT_LT(position / block_size, static_cast<int32_t>(table.size()));
        slots.insert(table[static_cast<size_t>(position / block_size)] * block_size +
                     position % block_size);
      }
      EXPECT_EQ(slots.size(), batch.tokens.size());
      // Rows of different tokens choose different experts.
      const std::set<int32_t> tokens(batch.tokens.begin(), batch.tokens.end());
      EXPECT_EQ(tokens.size(), static_cast<size_t>(std::min(num_rows, 50)));
      EXPECT_LT(*tokens.rbegin(), 50);
    }
  }
}

// What a probe of several rows is to show of a model with experts: how many they read.
TEST(StepProbe, DifferentTokensReadMoreExperts) {
  ModelConfig config = first_layers(synthetic_shape("qwen3-30b-a3b"), 3);
  config.hidden_dim = 64;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = config.rope.rotary_dim = 16;
  config.ffn_dim = config.experts.ffn_dim = 32;
  config.vocab_size = 600;
  const ModelShard shard = shard_model(config, 0, 1);
  const auto group = make_solo_group();
  ops::Context ctx(1);
  Transformer model(config,
                    synthetic_weights(config, shard, {}),
                    shard,
                    {.block_size = 16, .num_blocks = 8, .max_rows = 64, .max_logit_rows = 64},
                    *group,
                    ctx);
  const auto bytes_of = [&](int32_t num_rows, int32_t num_tokens) {
    std::vector<int32_t> blocks;
    model.forward(probe_batch(num_rows, 16, num_tokens, &blocks));
    return model.step_bytes();
  };
  EXPECT_EQ(bytes_of(1, 600), model.matrix_bytes());
  EXPECT_GT(bytes_of(8, 600), 2 * model.matrix_bytes());
  EXPECT_LT(bytes_of(8, 1), bytes_of(8, 600));
}

TEST(StepProbe, TheLimitIsWhatTheModelHasRoomFor) {
  ModelOptions options;
  options.num_blocks = 10;
  options.block_size = 4;  // two blocks for eight rows
  options.max_rows = 512;
  options.max_logit_rows = 512;
  EXPECT_EQ(most_probe_rows(options), 40);
  options.max_logit_rows = 17;
  EXPECT_EQ(most_probe_rows(options), 17);
  options.num_blocks = 1;
  EXPECT_EQ(most_probe_rows(options), 0);
}

TEST(StepProbe, TheShortestOfAFewCountsAndTimeIsBounded) {
  int num_calls = 0;
  const auto probes = probe_steps(64, [&](int32_t num_rows) {
    ++num_calls;
    return 1e-4 * num_rows * (num_calls % 2 == 0 ? 1 : 5);
  });
  std::set<int32_t> rows;
  for (const StepProbe& probe : probes) {
    rows.insert(probe.load.num_rows);
    EXPECT_NEAR(probe.seconds, 1e-4 * probe.load.num_rows, 1e-12);
  }
  EXPECT_EQ(rows, (std::set<int32_t>{1, 2, 3, 5, 9, 17, 32, 64}));

  num_calls = 0;
  const auto few = probe_steps(4096, [&](int32_t) { return ++num_calls, 0.4; });
  EXPECT_EQ(num_calls, 3);  // the first, and two of one row: then the second is over
  ASSERT_EQ(few.size(), 1u);
}

TEST(StepProbe, LoadsCountWhatRowsAttendTo) {
  const StepLoad load = probe_load(11);  // 8 rows and 3 rows
  EXPECT_EQ(load.num_rows, 11);
  EXPECT_EQ(load.kv_positions, 8 + 3);
  EXPECT_EQ(load.row_positions, 36 + 6);
}

}  // namespace
}  // namespace outrider
