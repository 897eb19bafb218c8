// What the ranks need of a model: rows of any number of sequences in, logits of the wanted rows
// out. Transformer computes them; SimulatedModel (models/simulated/simulated.h) makes them up and
// sleeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "runtime/base/clock.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/ops/ops.h"

namespace outrider {

// A ragged step: rows of any number of sequences. There is no prefill flag; a prompt chunk is many
// rows of one sequence. Rows of a sequence are consecutive and in ascending position.
struct Batch {
  std::vector<int32_t> tokens;                         // [rows]
  std::vector<int32_t> positions;                      // [rows]
  std::vector<int32_t> sequence_of_row;                // [rows], index into block_tables
  std::vector<std::span<const int32_t>> block_tables;  // [sequences], physical block ids
  std::vector<int32_t> logit_rows;                     // ascending; rows whose logits are wanted

  void clear() {
    for (auto* list : {&tokens, &positions, &sequence_of_row, &logit_rows}) list->clear();
    block_tables.clear();
  }
};

// How a row's token is chosen where its logits are: the likeliest, or a draw from the softmax.
struct TokenChoice {
  bool draws = false;
  NoiseKey noise;  // of the first step; its position rises by one a step
  float inverse_temperature = 1.0f;
  int32_t num_likeliest = 0;  // that are also wanted, at most kMostLikeliest
};
inline constexpr int32_t kMostLikeliest = 32;

struct ChosenToken {
  bool is_bad = false;              // NaN or infinity in the row: what follows means nothing
  uint64_t key = 0;                 // pack_key of its scaled value, with the noise if it was drawn
  std::vector<uint64_t> likeliest;  // pack_key of scaled values, best first, where wanted
};

// Steps that follow each other without a look from outside: behind `first` each sequence goes on by
// the token chosen for it, one row a step.
struct ChainedSteps {
  const Batch* first = nullptr;          // a logit row for each sequence, its last
  std::span<const TokenChoice> choices;  // [logit rows]
  int32_t num_steps = 1;
  int32_t num_tokens = 0;  // ids from here on are never chosen
};

struct ModelOptions {
  int32_t block_size = 16;  // positions per KV block
  int32_t num_blocks = 0;
  int32_t max_rows = 512;  // of a step; buffers are allocated once for it
  int32_t max_logit_rows = 512;
  ops::KvType kv_type = ops::KvType::kF32;  // on a CPU
};

// What a rank's partial sums cost: the sums over the ranks that forward() makes. Nothing is counted
// on one rank.
struct SumTraffic {
  uint64_t num_sums = 0;
  uint64_t num_bytes = 0;  // what this rank handed over; one copy, however many peers read it
  double seconds = 0;      // from the call to the sum: waiting for later ranks is part of it
};

class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelShard& shard() const { return shard_; }
  const ModelOptions& options() const { return options_; }

  // One step, by begin(), any number of advance(), and finish(): computes the batch's rows and
  // stores their keys and values. Collective over the target group: every member begins the same
  // batches.
  // The device has its work when this returns; where the calling thread computes, nothing is done
  // yet. The batch must stay as it is until finish() returns.
  virtual void begin(const Batch& batch) = 0;
  // Does the part of this thread: on a CPU all of the step, on a device nothing. Returns until when
  // the thread may turn to other things before it looks again; null when the step is over, or its
  // end near or unknown.
  virtual std::optional<JobClock::time_point> advance() = 0;
  // Does what is left, or waits for it. Returns [logit_rows, shard().vocab.size()], valid until the
  // next begin(): in host memory, or where the model was told to leave them. There they may still
  // be under way: what is queued behind them may look at them, others after wait().
  virtual std::span<const float> finish() = 0;
  // Until all that was begun is done, as far as finish() has not waited for it.
  virtual void wait() {}
  // All of it, for who has nothing else to do.
  std::span<const float> forward(const Batch& batch) {
    begin(batch);
    const std::span<const float> logits = finish();
    if (!logits.empty()) wait();
    return logits;
  }

  // How many steps run_chain() takes, 1: it is not to be called. Of how many rows at most.
  virtual int32_t most_chained_steps() const { return 1; }
  virtual int32_t most_chained_rows() const { return 0; }
  // Computes them and gives the tokens chosen, [num_steps, choices.size()].
  virtual std::vector<ChosenToken> run_chain(const ChainedSteps& chain);

  // Zeroes a block's keys and values (a failed sequence's blocks must not carry NaN to the next
  // owner).
  virtual void clear_blocks(std::span<const int32_t> blocks) = 0;

  // Gives block `to` the keys and values of block `from`, in all layers of this rank.
  virtual void copy_block(int32_t from, int32_t to) = 0;

  // The KV memory of each layer where the CPU can reach it, for tests; else nothing.
  virtual std::span<const ops::KvPages> kv_pages() const { return {}; }

  // Keys and values of blocks, or of one position's slot, become NaN in every layer: for faults on
  // purpose and for tests.
  virtual void poison_blocks(std::span<const int32_t> blocks);
  virtual void poison_position(int32_t block, int32_t slot);

  // Bytes of weights that the products of a step of one row read on this rank.
  virtual size_t matrix_bytes() const { return 0; }
  // Of the last step: more rows choose more experts.
  virtual size_t step_bytes() const { return matrix_bytes(); }

  // What forward() computes with, for other work between its calls, from the same thread; null:
  // simulated, or on a device.
  virtual ops::Context* context() const { return nullptr; }

  // Since the start. Read on the thread that calls forward().
  const SumTraffic& sum_traffic() const { return sum_traffic_; }

  // Of this rank, in bytes. KV and buffers are taken from the system page by page as they are used.
  struct Memory {
    size_t weights = 0;
    size_t kv = 0;
    size_t buffers = 0;
  };
  const Memory& memory() const { return memory_; }

 protected:
  Model(ModelConfig config, const ModelShard& shard, const ModelOptions& options)
      : config_(std::move(config)), shard_(shard), options_(options) {}

  // A plan that names rows, blocks or tokens that do not exist is a fault of the planner, on every
  // rank at once.
  void check_batch(const Batch& batch) const;

  ModelConfig config_;
  ModelShard shard_;
  ModelOptions options_;
  SumTraffic sum_traffic_;
  Memory memory_;
};

}  // namespace outrider
