// What sampling on a sharded vocabulary needs from the other shards: three small collectives over
// integers and bytes, so that every rank sees identical bits. runtime/ranks connects it to the
// target group; tests use threads or one shard. Every rank must make the same calls with the same
// sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace outrider {

// The half-open range of token ids whose logits this rank holds.
struct VocabShard {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t vocab_size = 0;
  int32_t size() const { return end - begin; }
  bool contains(int32_t token) const { return token >= begin && token < end; }
};

// What a shard has handed over: collectives it took part in, and its own bytes in them.
struct ExchangeTraffic {
  uint64_t num_collectives = 0;
  uint64_t num_bytes = 0;
};

class ShardExchange {
 public:
  virtual ~ShardExchange() = default;
  virtual int num_shards() const = 0;
  virtual void max(std::span<uint64_t> values) = 0;  // element-wise over the shards, in place
  virtual void sum(std::span<uint64_t> values) = 0;
  // all: [num_shards(), mine.size()], in rank order.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
};

// One shard that holds the whole vocabulary (the draft, and a target of one rank).
class SoloExchange final : public ShardExchange {
 public:
  int num_shards() const override { return 1; }
  void max(std::span<uint64_t>) override {}
  void sum(std::span<uint64_t>) override {}
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (size_t i = 0; i < mine.size(); ++i) all[i] = mine[i];
  }
};

}  // namespace outrider
