// The decoder: weights of one shard, its KV pages, and compute(), the page that says what the model
// computes. Draft and target are both this class, with another config, shard and group.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/forward/model.h"
#include "runtime/comm/group/target_group.h"
#include "runtime/ops/ops.h"

namespace outrider {

class ExpertMlp;        // models/forward/experts.h
class KvMemory;         // models/forward/kv_memory.h
class LatentAttention;  // models/forward/latent_attention.h
class PerLayerInputs;   // models/forward/per_layer_inputs.h
struct LayerWeights;    // models/weights/weights.h
struct NormWeights;
struct Weights;

using TransformerOptions = ModelOptions;

class Transformer final : public Model {
 public:
  // group and ctx must outlive this. Weights may have more layers than config: the first ones
  // count. Several may share weights of the same ranges, also when their shards' numerics differ.
  Transformer(ModelConfig config,
              std::shared_ptr<const Weights> weights,
              const ModelShard& shard,
              const TransformerOptions& options,
              TargetGroup& group,
              ops::Context& ctx);
  ~Transformer() override;

  size_t matrix_bytes() const override;
  size_t step_bytes() const override;
  void begin(const Batch& batch) override;
  std::optional<JobClock::time_point> advance() override;
  std::span<const float> finish() override;

  // Bytes of KV memory per block on this rank, for sizing before construction.
  static size_t kv_bytes_per_block(const ModelConfig& config,
                                   const ModelShard& shard,
                                   int32_t block_size,
                                   ops::KvType type = ops::KvType::kF32);

  void clear_blocks(std::span<const int32_t> blocks) override;
  void copy_block(int32_t from, int32_t to) override;

  std::span<const ops::KvPages> kv_pages() const override;
  ops::Context* context() const override { return &ctx_; }
  const ops::KvPages& kv_pages(int32_t layer) const;

 private:
  struct Buffers;
  std::span<const float> compute(const Batch& batch);
  size_t bytes_with(int64_t num_experts) const;
  void shape_layers();
  void sum_over_ranks(float* values, int64_t count);
  void embed(const Batch& batch, int64_t rows);
  void make_angles(std::span<const int32_t> positions);
  ops::AttentionRows keep_logit_rows(const Batch& batch, int32_t layer);
  const float* norm(const NormWeights& weights, int64_t rows);
  const float* add_and_norm(const NormWeights& of_part, const NormWeights& next, int64_t rows);
  void project(int32_t layer, const float* in, int64_t rows);
  void norm_queries_and_keys(int32_t layer, int64_t rows);
  void rotate(int32_t layer, std::span<const int32_t> positions);
  const float* attend(int32_t layer, const ops::AttentionRows& where);
  void mlp(int32_t layer, const float* in, int64_t rows);
  void add_experts(const LayerWeights& w, int64_t rows);
  const NormWeights* end_layer(const LayerWeights& w, int32_t layer, int64_t rows);
  ops::HeadRows queries(int32_t layer, int64_t rows) const;  // in qkv
  ops::HeadRows keys(int32_t layer, int64_t rows) const;     // none: the layer reads another's
  ops::HeadRows values(int32_t layer, int64_t rows) const;
  std::shared_ptr<const Weights> weights_;
  TargetGroup& group_;
  ops::Context& ctx_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<KvMemory> kv_;
  std::unique_ptr<ExpertMlp> experts_;         // where layers have any
  std::unique_ptr<LatentAttention> latent_;    // where attention is
  std::unique_ptr<PerLayerInputs> per_layer_;  // where the model has any
  int64_t num_experts_before_ = 0;             // read before the last step
  const Batch* batch_ = nullptr;               // begun and not computed yet
  std::span<const float> logits_;
};

// Reads one rank's shard of a Hugging Face folder (model.safetensors, or sharded with an index).
// Throws Error naming the file and tensor. progress is called with bytes done and bytes in all,
// when given; 0 threads: the host's cores, at most 16.
std::unique_ptr<Weights> load_weights(const std::filesystem::path& model_dir,
                                      const ModelConfig& config,
                                      const ModelShard& shard,
                                      const std::function<void(size_t, size_t)>& progress = {},
                                      const ops::ThreadPlan& threads = 0);

// Seeded random weights in a given shape, the same for any sharding; for benchmarks and tests.
std::unique_ptr<Weights> random_weights(const ModelConfig& config,
                                        const ModelShard& shard,
                                        uint64_t seed,
                                        ops::DType dtype);

}  // namespace outrider
