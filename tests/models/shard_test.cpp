// The arithmetic of sharding: parts are disjoint, complete and even, and every query head stands
// beside its KV head.
#include "models/shard.h"

#include <gtest/gtest.h>

#include "models/synthetic.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

TEST(ShardRange, PartsAreCompleteAndEven) {
  for (const int64_t n : {0, 1, 5, 16, 100, 259, 128'256}) {
    for (const int num_ranks : {1, 2, 3, 4, 7, 8}) {
      int64_t end = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const Range part = shard_range(n, rank, num_ranks);
        EXPECT_EQ(part.begin, end);
        EXPECT_GE(part.size(), n / num_ranks);
        EXPECT_LE(part.size(), n / num_ranks + 1);
        end = part.end;
      }
      EXPECT_EQ(end, n);
    }
  }
}

ModelConfig with_heads(int32_t n_heads, int32_t n_kv_heads) {
  ModelConfig config = synthetic_shape("tinyllama-1.1b");
  config.n_heads = n_heads;
  config.n_kv_heads = n_kv_heads;
  return config;
}

TEST(ShardModel, EveryQueryHeadStandsBesideItsKvHead) {
  const int shapes[][2] = {{32, 4}, {32, 8}, {8, 8}, {6, 3}, {12, 2}, {7, 1}, {40, 10}};
  for (const auto& [n_heads, n_kv_heads] : shapes) {
    const ModelConfig config = with_heads(n_heads, n_kv_heads);
    const int64_t group = n_heads / n_kv_heads;
    for (const int num_ranks : {1, 2, 3, 4, 5, 6, 7}) {
      if (num_ranks > n_kv_heads && (num_ranks + n_kv_heads - 1) / n_kv_heads > group) continue;
      int64_t end = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const ModelShard shard = shard_model(config, rank, num_ranks);
        EXPECT_EQ(shard.heads.begin, end);
        EXPECT_GT(shard.heads.size(), 0);
        EXPECT_EQ(shard.heads.size() % shard.kv_heads.size(), 0);
        const int64_t local_group = shard.heads.size() / shard.kv_heads.size();
        for (int64_t head = 0; head < shard.heads.size(); ++head) {
          EXPECT_EQ(shard.kv_heads.begin + head / local_group, (shard.heads.begin + head) / group);
        }
        end = shard.heads.end;
      }
      EXPECT_EQ(end, n_heads) << n_heads << "/" << n_kv_heads << " over " << num_ranks;
    }
  }
}

TEST(ShardModel, KvHeadsAreReplicatedWhenFewerThanRanks) {
  const ModelConfig config = with_heads(32, 4);
  for (int rank = 0; rank < 8; ++rank) {
    const ModelShard shard = shard_model(config, rank, 8);
    EXPECT_EQ(shard.kv_heads.begin, rank / 2);
    EXPECT_EQ(shard.kv_heads.size(), 1);
    EXPECT_EQ(shard.heads.begin, 4 * rank);
    EXPECT_EQ(shard.heads.size(), 4);
  }
}

TEST(ShardModel, RefusesMoreRanksThanThereAreParts) {
  EXPECT_NO_THROW(shard_model(with_heads(8, 8), 7, 8));
  EXPECT_THROW(shard_model(with_heads(8, 8), 0, 9), Error);
  EXPECT_THROW(shard_model(with_heads(8, 2), 0, 9), Error);
  EXPECT_THROW(shard_model(with_heads(8, 2), 2, 2), Error);
  EXPECT_THROW(shard_model(with_heads(8, 2), -1, 2), Error);
  EXPECT_THROW(shard_model(with_heads(8, 2), 0, 0), Error);
  ModelConfig narrow = with_heads(8, 8);
  narrow.ffn_dim = 3;
  EXPECT_THROW(shard_model(narrow, 0, 4), Error);
  narrow.ffn_dim = 100;
  narrow.vocab_size = 3;
  EXPECT_THROW(shard_model(narrow, 0, 4), Error);
}

}  // namespace
}  // namespace outrider
