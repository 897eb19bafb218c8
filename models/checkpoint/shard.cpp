// The arithmetic of tensor parallelism; see shard.h.
#include "models/checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {

Range shard_range(int64_t n, int rank, int num_ranks) {
  OUTRIDER_CHECK(n >= 0 && num_ranks > 0 && rank >= 0 && rank < num_ranks);
  const int64_t size = n / num_ranks;
  const int64_t larger = n % num_ranks;  // the first `larger` ranks take one more
  const int64_t begin = rank * size + (rank < larger ? rank : larger);
  return {begin, begin + size + (rank < larger ? 1 : 0)};
}

Numerics numerics_from_name(const std::string& name) {
  if (name == "fast") return Numerics::kFast;
  if (name == "strict") return Numerics::kStrict;
  throw Error(fmt::format("numerics must be fast or strict, not '{}'", name.substr(0, 100)));
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

// Strict parts are made by halving, the first half the larger: the parts for 4 ranks are then
// unions of the parts for 8, and so on, whatever the sizes. Part `index` of num_parts, a power of
// two; halve(part, second) cuts.
template <typename Part, typename Halve>
Part halved(Part part, int index, int num_parts, const Halve& halve) {
  for (int bit = num_parts / 2; bit > 0; bit /= 2) part = halve(part, (index & bit) != 0);
  return part;
}

Range half_of(Range range, bool second) {
  const int64_t middle = range.begin + (range.size() + 1) / 2;
  return second ? Range{middle, range.end} : Range{range.begin, middle};
}

// Matrices of integers are cut at whole blocks of inputs.
int64_t inputs_per_block(const ModelConfig& config) {
  return config.is_quantized() ? ops::kQuantBlock : 1;
}

// Feed-forward units of a dense layer, of an expert and of the shared expert, each cut by itself.
struct Ffn {
  int64_t dim;
  Range ModelShard::*part;
  std::vector<Range> ModelShard::*slices;
};
std::vector<Ffn> ffns_of(const ModelConfig& config) {
  std::vector<Ffn> ffns = {{config.ffn_dim, &ModelShard::ffn, &ModelShard::ffn_slices}};
  const ExpertsConfig& experts = config.experts;
  if (experts.count == 0) return ffns;
  ffns.push_back({experts.ffn_dim, &ModelShard::expert_ffn, &ModelShard::expert_slices});
  if (experts.shared_ffn_dim == 0) return ffns;
  ffns.push_back({experts.shared_ffn_dim, &ModelShard::shared_ffn, &ModelShard::shared_slices});
  return ffns;
}

int64_t ffn_parts(int64_t ffn_dim, int64_t size) { return (ffn_dim + size - 1) / size; }

Range scaled_ffn(int64_t ffn_dim, Range parts, int64_t size) {
  return {size * parts.begin, std::min<int64_t>(size * parts.end, ffn_dim)};
}

// Feed-forward units are cut in pairs at least, because bf16 weights are packed in pairs.
Range strict_ffn(const ModelConfig& config, int64_t ffn_dim, int index, int num_parts) {
  const int64_t size = std::max<int64_t>(2, inputs_per_block(config));
  const Range parts = halved(Range{0, ffn_parts(ffn_dim, size)}, index, num_parts, half_of);
  return scaled_ffn(ffn_dim, parts, size);
}

struct HeadPart {
  Range heads;
  Range kv_heads;
};

// KV heads are halved down to one, then its query heads: a part never has whole KV heads beside a
// piece of another, which attention could not address.
HeadPart strict_heads(const ModelConfig& config, int index, int num_parts) {
  const int64_t group = config.n_heads / config.n_kv_heads;
  const HeadPart whole = {{0, config.n_heads}, {0, config.n_kv_heads}};
  return halved(whole, index, num_parts, [group](const HeadPart& part, bool second) {
    if (part.kv_heads.size() == 1) return HeadPart{half_of(part.heads, second), part.kv_heads};
    const Range kv_heads = half_of(part.kv_heads, second);
    return HeadPart{{kv_heads.begin * group, kv_heads.end * group}, kv_heads};
  });
}

void check_strict(const ModelConfig& config, int num_ranks) {
  if (num_ranks > kStrictSlices || kStrictSlices % num_ranks != 0) {
    throw Error(
        fmt::format("numerics strict is for 1, 2, 4 or 8 target ranks, not for {}", num_ranks));
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const Ffn& ffn : ffns_of(config)) {
      if (strict_heads(config, rank, num_ranks).heads.size() > 0 &&
          strict_ffn(config, ffn.dim, rank, num_ranks).size() > 0) {
        continue;
      }
      throw Error(
          fmt::format("numerics strict leaves rank {} of {} without a part of {} query heads in {} "
                      "groups or of {} feed-forward units; use fewer target ranks",
                      rank,
                      num_ranks,
                      config.n_heads,
                      config.n_kv_heads,
                      ffn.dim));
    }
  }
}

void cut_strict(const ModelConfig& config, ModelShard& shard) {
  const HeadPart part = strict_heads(config, shard.rank, shard.num_ranks);
  shard.heads = part.heads;
  shard.kv_heads = part.kv_heads;
  const int num_slices = kStrictSlices / shard.num_ranks;
  for (int slice = shard.rank * num_slices; slice < (shard.rank + 1) * num_slices; ++slice) {
    shard.head_slices.push_back(strict_heads(config, slice, kStrictSlices).heads);
  }
  for (const Ffn& ffn : ffns_of(config)) {
    shard.*ffn.part = strict_ffn(config, ffn.dim, shard.rank, shard.num_ranks);
    for (int slice = shard.rank * num_slices; slice < (shard.rank + 1) * num_slices; ++slice) {
      (shard.*ffn.slices).push_back(strict_ffn(config, ffn.dim, slice, kStrictSlices));
    }
  }
}

void check_counts(const ModelConfig& config, int num_ranks) {
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
  for (const Ffn& ffn : ffns_of(config)) {
    const int64_t parts = ffn_parts(ffn.dim, inputs_per_block(config));
    if (num_ranks <= parts && num_ranks <= config.vocab_size) continue;
    throw Error(
        fmt::format("a model with {} feed-forward units and {} tokens cannot be cut over {} ranks",
                    ffn.dim,
                    config.vocab_size,
                    num_ranks));
  }
}

void cut_fast(const ModelConfig& config, ModelShard& shard) {
  const int64_t group = config.n_heads / config.n_kv_heads;
  const int64_t size = inputs_per_block(config);
  for (const Ffn& ffn : ffns_of(config)) {
    const Range parts = shard_range(ffn_parts(ffn.dim, size), shard.rank, shard.num_ranks);
    shard.*ffn.part = scaled_ffn(ffn.dim, parts, size);
  }
  if (config.n_kv_heads < shard.num_ranks) {
    shard_replicated_heads(config, shard);
  } else {
    shard.kv_heads = shard_range(config.n_kv_heads, shard.rank, shard.num_ranks);
    shard.heads = {shard.kv_heads.begin * group, shard.kv_heads.end * group};
  }
}

void check_shape(const ModelConfig& config, int num_ranks, Numerics numerics) {
  const bool cuts_heads = num_ranks > 1 || numerics == Numerics::kStrict;
  if (cuts_heads && config.value_dim() % inputs_per_block(config) != 0) {
    throw Error(fmt::format(
        "quantised weights of heads of {} numbers cannot be cut over ranks, nor summed by numerics "
        "strict: only heads of a multiple of {} can",
        config.value_dim(),
        ops::kQuantBlock));
  }
  if (numerics == Numerics::kStrict) check_strict(config, num_ranks);
  check_counts(config, num_ranks);
}

}  // namespace

ModelShard shard_model(const ModelConfig& config, int rank, int num_ranks, Numerics numerics) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    throw Error(fmt::format("rank {} of {} ranks does not exist", rank, num_ranks));
  }
  const int32_t num_shapes = config.layers_differ() ? config.n_layers : 1;
  for (int32_t layer = 0; layer < num_shapes; ++layer) {
    check_shape(config.of_layer(layer), num_ranks, numerics);
  }
  ModelShard shard;
  shard.rank = rank;
  shard.num_ranks = num_ranks;
  shard.numerics = numerics;
  shard.vocab = shard_range(config.vocab_size, rank, num_ranks);
  if (numerics == Numerics::kStrict) {
    cut_strict(config, shard);
  } else {
    cut_fast(config, shard);
  }
  return shard;
}

ModelShard shard_of_layer(const ModelConfig& config, const ModelShard& shard, int32_t layer) {
  if (!config.layers_differ()) return shard;
  return shard_model(config.of_layer(layer), shard.rank, shard.num_ranks, shard.numerics);
}

std::vector<int64_t> slice_ends(const std::vector<Range>& slices, int64_t size) {
  std::vector<int64_t> ends;
  for (const Range& slice : slices) ends.push_back((slice.end - slices.front().begin) * size);
  return ends;
}

}  // namespace outrider
