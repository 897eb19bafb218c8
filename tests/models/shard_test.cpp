// The arithmetic of sharding: parts are disjoint, complete and even, and every query head stands
// beside its KV head.
#include "models/checkpoint/shard.h"

#include <gtest/gtest.h>

#include "models/synthetic/synthetic.h"
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

// Slices and parts of every number of ranks lie on each other: a rank holds a run of the 8 slices.
void expect_strict_parts(const ModelConfig& config, int num_ranks) {
  const int64_t group = config.n_heads / config.n_kv_heads;
  const std::vector<Range> all_heads = shard_model(config, 0, 1, Numerics::kStrict).head_slices;
  const std::vector<Range> all_ffn = shard_model(config, 0, 1, Numerics::kStrict).ffn_slices;
  ASSERT_EQ(all_heads.size(), 8u);
  size_t next = 0;
  int64_t heads_end = 0;
  int64_t ffn_end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const ModelShard shard = shard_model(config, rank, num_ranks, Numerics::kStrict);
    ASSERT_EQ(shard.head_slices.size(), 8u / static_cast<size_t>(num_ranks));
    ASSERT_EQ(shard.ffn_slices.size(), shard.head_slices.size());
    EXPECT_EQ(shard.heads.begin, heads_end);
    EXPECT_EQ(shard.ffn.begin, ffn_end);
    EXPECT_GT(shard.heads.size(), 0);
    EXPECT_GT(shard.ffn.size(), 0);
    for (size_t i = 0; i < shard.head_slices.size(); ++i, ++next) {
      EXPECT_EQ(shard.head_slices[i].begin, heads_end);
      EXPECT_EQ(shard.ffn_slices[i].begin, ffn_end);
      heads_end = shard.head_slices[i].end;
      ffn_end = shard.ffn_slices[i].end;
      EXPECT_EQ(heads_end, all_heads[next].end);
      EXPECT_EQ(ffn_end, all_ffn[next].end);
      EXPECT_TRUE(ffn_end % 2 == 0 || ffn_end == config.ffn_dim);
    }
    EXPECT_EQ(shard.heads.end, heads_end);
    EXPECT_EQ(shard.ffn.end, ffn_end);
    ASSERT_EQ(shard.heads.size() % shard.kv_heads.size(), 0);
    const int64_t local_group = shard.heads.size() / shard.kv_heads.size();
    for (int64_t head = 0; head < shard.heads.size(); ++head) {
      EXPECT_EQ(shard.kv_heads.begin + head / local_group, (shard.heads.begin + head) / group);
    }
  }
  EXPECT_EQ(heads_end, config.n_heads);
  EXPECT_EQ(ffn_end, config.ffn_dim);
}

// Each layer is cut by its own number of KV heads and of units.
TEST(ShardModel, LayersThatDifferAreCutEachByItself) {
  ModelConfig config = with_heads(6, 3);
  config.n_layers = 3;
  config.sliding_window = 12;
  config.full_layers = {false, true, false};
  config.full_kv_heads = 1;
  config.kv_shared_layers = 1;
  config.double_wide_mlp = true;
  const ModelShard shard = shard_model(config, 1, 2);
  EXPECT_EQ(shard_of_layer(config, shard, 0).heads.begin, 4);
  EXPECT_EQ(shard_of_layer(config, shard, 1).heads.begin, 3);
  EXPECT_EQ(shard_of_layer(config, shard, 1).kv_heads.size(), 1);
  EXPECT_EQ(shard_of_layer(config, shard, 2).ffn.begin, 2 * shard.ffn.begin);
  config.full_kv_heads = 4;  // does not matter where no layer is full
  config.full_layers = {false, false, false};
  EXPECT_EQ(shard_of_layer(config, shard, 1).heads.begin, 4);
}

TEST(ShardModelStrict, PartsAreUnionsOfTheEightSlices) {
  int num_accepted = 0;
  for (const int n_kv_heads : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 32, 40}) {
    for (const int group : {1, 2, 3, 4, 6, 7, 8, 16}) {
      for (const int ffn_dim : {15, 16, 131, 259, 5632}) {
        ModelConfig config = with_heads(n_kv_heads * group, n_kv_heads);
        config.ffn_dim = ffn_dim;
        for (const int num_ranks : {1, 2, 4, 8}) {
          try {
            shard_model(config, 0, num_ranks, Numerics::kStrict);
          } catch (const Error&) {
            EXPECT_GT(num_ranks, 1);
            continue;
          }
          ++num_accepted;
          expect_strict_parts(config, num_ranks);
        }
      }
    }
  }
  EXPECT_GT(num_accepted, 1500);
}

TEST(ShardModelStrict, EvenShapesAreCutAsUnderFast) {
  for (const char* name : {"tinyllama-1.1b", "llama-3.1-8b", "qwen3-4b"}) {
    const ModelConfig config = synthetic_shape(name);
    for (const int num_ranks : {1, 2, 4, 8}) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        const ModelShard fast = shard_model(config, rank, num_ranks);
        const ModelShard strict = shard_model(config, rank, num_ranks, Numerics::kStrict);
        EXPECT_TRUE(fast.head_slices.empty() && fast.ffn_slices.empty());
        EXPECT_EQ(fast.heads.begin, strict.heads.begin);
        EXPECT_EQ(fast.heads.end, strict.heads.end);
        EXPECT_EQ(fast.kv_heads.begin, strict.kv_heads.begin);
        EXPECT_EQ(fast.kv_heads.end, strict.kv_heads.end);
        EXPECT_EQ(fast.ffn.begin, strict.ffn.begin);
        EXPECT_EQ(fast.ffn.end, strict.ffn.end);
        EXPECT_EQ(fast.vocab.begin, strict.vocab.begin);
      }
    }
  }
}

// Rank 0's memory stands for all when KV blocks are counted.
TEST(ShardModelStrict, NoRankHasMoreKvHeadsThanTheFirst) {
  for (const int n_kv_heads : {1, 2, 3, 5, 6, 7, 9, 11, 13}) {
    const ModelConfig config = with_heads(8 * n_kv_heads, n_kv_heads);
    for (const int num_ranks : {2, 4, 8}) {
      const int64_t most = shard_model(config, 0, num_ranks, Numerics::kStrict).kv_heads.size();
      for (int rank = 1; rank < num_ranks; ++rank) {
        EXPECT_LE(shard_model(config, rank, num_ranks, Numerics::kStrict).kv_heads.size(), most);
      }
    }
  }
}

std::string refusal(const ModelConfig& config, int rank, int num_ranks) {
  try {
    shard_model(config, rank, num_ranks, Numerics::kStrict);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ShardModelStrict, RefusesWhatItCannotPromise) {
  const ModelConfig config = with_heads(32, 8);
  for (const int num_ranks : {3, 5, 6, 7, 16}) {
    const std::string text = refusal(config, 0, num_ranks);
    EXPECT_NE(text.find("1, 2, 4 or 8"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(num_ranks)), std::string::npos) << text;
  }
  // Nine heads over three KV heads: rank 7 of 8 would get none, and every rank says so.
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_NE(refusal(with_heads(9, 3), rank, 8).find("leaves rank 7 of 8"), std::string::npos)
        << refusal(with_heads(9, 3), rank, 8);
  }
  EXPECT_EQ(refusal(with_heads(9, 3), 0, 4), "");
  ModelConfig narrow = config;
  narrow.ffn_dim = 14;
  EXPECT_NE(refusal(narrow, 0, 8).find("14 feed-forward units"), std::string::npos);
  EXPECT_EQ(refusal(narrow, 0, 4), "");
}

TEST(ShardModelStrict, NumericsHaveNames) {
  EXPECT_EQ(numerics_from_name("fast"), Numerics::kFast);
  EXPECT_EQ(numerics_from_name("strict"), Numerics::kStrict);
  for (const char* wrong : {"", "Strict", "exact"}) {
    EXPECT_THROW(numerics_from_name(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace outrider
