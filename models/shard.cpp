// The arithmetic of tensor parallelism; see shard.h.
#include "models/shard.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace outrider {

Range shard_range(int64_t n, int rank, int num_ranks) {
  OUTRIDER_CHECK(n >= 0 && num_ranks > 0 && rank >= 0 && rank < num_ranks);
  const int64_t size = n / num_ranks;
  const int64_t larger = n % num_ranks;  // the first `larger` ranks take one more
  const int64_t begin = rank * size + (rank < larger ? rank : larger);
  return {begin, begin + size + (rank < larger ? 1 : 0)};
}

namespace {

// Fewer KV heads than ranks: each KV head has a run of ranks, which cut its group of query heads
// among them and all keep a copy of the one KV head.
void shard_replicated_heads(const ModelConfig& config, ModelShard& shard) {
  int kv_head = 0;
  Range ranks = shard_range(shard.num_ranks, kv_head, config.n_kv_heads);
  while (shard.rank >= ranks.end) {
    ranks = shard_range(shard.num_ranks, ++kv_head, config.n_kv_heads);
  }
  const int64_t group = config.n_heads / config.n_kv_heads;
  const Range part = shard_range(
      group, static_cast<int>(shard.rank - ranks.begin), static_cast<int>(ranks.size()));
  shard.heads = {kv_head * group + part.begin, kv_head * group + part.end};
  shard.kv_heads = {kv_head, kv_head + 1};
}

}  // namespace

ModelShard shard_model(const ModelConfig& config, int rank, int num_ranks) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    throw Error(fmt::format("rank {} of {} ranks does not exist", rank, num_ranks));
  }
  const int64_t group = config.n_heads / config.n_kv_heads;
  // With more ranks than KV heads the busiest KV head is cut over ceil(ranks / n_kv_heads) ranks.
  const int64_t cuts = (num_ranks + config.n_kv_heads - 1) / config.n_kv_heads;
  if (cuts > group) {
    throw Error(
        fmt::format("{} query heads in {} groups cannot be cut over {} ranks; use at most {}",
                    config.n_heads,
                    config.n_kv_heads,
                    num_ranks,
                    config.n_heads));
  }
  if (num_ranks > config.ffn_dim || num_ranks > config.vocab_size) {
    throw Error(
        fmt::format("a model with {} feed-forward units and {} tokens cannot be cut over {} ranks",
                    config.ffn_dim,
                    config.vocab_size,
                    num_ranks));
  }
  ModelShard shard;
  shard.rank = rank;
  shard.num_ranks = num_ranks;
  shard.ffn = shard_range(config.ffn_dim, rank, num_ranks);
  shard.vocab = shard_range(config.vocab_size, rank, num_ranks);
  if (config.n_kv_heads < num_ranks) {
    shard_replicated_heads(config, shard);
  } else {
    shard.kv_heads = shard_range(config.n_kv_heads, rank, num_ranks);
    shard.heads = {shard.kv_heads.begin * group, shard.kv_heads.end * group};
  }
  return shard;
}

}  // namespace outrider
