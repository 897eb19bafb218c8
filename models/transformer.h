// The decoder: weights of one shard, its KV pages, and forward(), the page that says what the model
// computes. Draft and target are both this class, with another config, shard and group.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/model_config.h"
#include "models/shard.h"
#include "runtime/comm/target_group.h"
#include "runtime/ops/ops.h"

namespace outrider {

struct Weights;  // models/weights.h

// A ragged step: rows of any number of sequences. There is no prefill flag; a prompt chunk is many
// rows of one sequence. Rows of a sequence are consecutive and in ascending position.
struct Batch {
  std::vector<int32_t> tokens;                         // [rows]
  std::vector<int32_t> positions;                      // [rows]
  std::vector<int32_t> sequence_of_row;                // [rows], index into block_tables
  std::vector<std::span<const int32_t>> block_tables;  // [sequences], physical block ids
  std::vector<int32_t> logit_rows;                     // ascending; rows whose logits are wanted
};

struct TransformerOptions {
  int32_t block_size = 16;  // positions per KV block
  int32_t num_blocks = 0;
  int32_t max_rows = 512;  // of a step; buffers are allocated once for it
  int32_t max_logit_rows = 512;
};

// What a rank's partial sums cost: the sums over the ranks that forward() makes. Nothing is counted
// on one rank.
struct SumTraffic {
  uint64_t num_sums = 0;
  uint64_t num_bytes = 0;  // what this rank handed over; one copy, however many peers read it
  double seconds = 0;      // from the call to the sum: waiting for later ranks is part of it
};

class Transformer {
 public:
  // group and ctx must outlive this. Weights may have more layers than config: the first ones count.
  // Several may share weights of the same ranges, also when their
  // shards' numerics differ.
  Transformer(ModelConfig config,
              std::shared_ptr<const Weights> weights,
              const ModelShard& shard,
              const TransformerOptions& options,
              TargetGroup& group,
              ops::Context& ctx);
  ~Transformer();

  const ModelConfig& config() const { return config_; }
  const ModelShard& shard() const { return shard_; }
  const TransformerOptions& options() const { return options_; }
  // Bytes of weights that the products of one step read on this rank.
  size_t matrix_bytes() const;

  // Computes the batch's rows, stores their keys and values, and returns [logit_rows,
  // shard().vocab.size()], valid until the next call. Collective over the group: every member calls
  // it with the same batch.
  std::span<const float> forward(const Batch& batch);

  // Bytes of KV memory per block on this rank, for sizing before construction.
  static size_t kv_bytes_per_block(const ModelConfig& config,
                                   const ModelShard& shard,
                                   int32_t block_size);

  // Since the start. Read on the thread that calls forward().
  const SumTraffic& sum_traffic() const { return sum_traffic_; }

  // Zeroes a block's keys and values (a failed sequence's blocks must not carry NaN to the next
  // owner).
  void clear_blocks(std::span<const int32_t> blocks);

  // Of this rank, in bytes. KV and buffers are taken from the system page by page as they are used.
  struct Memory {
    size_t weights = 0;
    size_t kv = 0;
    size_t buffers = 0;
  };
  const Memory& memory() const { return memory_; }

  // One layer's KV memory, for faults on purpose and for tests.
  const ops::KvPages& kv_pages(int32_t layer) const;

 private:
  struct Buffers;
  void allocate_kv();
  void check_batch(const Batch& batch) const;
  void sum_over_ranks(float* values, int64_t count);
  int64_t window_of(int32_t layer) const {
    return layer >= config_.first_windowed_layer ? config_.sliding_window : 0;
  }
  ModelConfig config_;
  std::shared_ptr<const Weights> weights_;
  ModelShard shard_;
  TransformerOptions options_;
  TargetGroup& group_;
  ops::Context& ctx_;
  SumTraffic sum_traffic_;
  Memory memory_;
  std::unique_ptr<Buffers> buffers_;
};

// Reads one rank's shard of a Hugging Face folder (model.safetensors, or sharded with an index).
// Throws Error naming the file and tensor. progress is called with bytes done and bytes in all,
// when given; num_threads 0: the host's cores, at most 16.
std::unique_ptr<Weights> load_weights(const std::filesystem::path& model_dir,
                                      const ModelConfig& config,
                                      const ModelShard& shard,
                                      const std::function<void(size_t, size_t)>& progress = {},
                                      int num_threads = 0);

// Seeded random weights in a given shape, the same for any sharding; for benchmarks and tests.
std::unique_ptr<Weights> random_weights(const ModelConfig& config,
                                        const ModelShard& shard,
                                        uint64_t seed,
                                        ops::DType dtype);

}  // namespace outrider
