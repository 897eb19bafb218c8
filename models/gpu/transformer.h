// The decoder on a GPU: what Transformer is on the CPU, with the same batch in and the same logits
// out. A step is one upload, one chain of launches and one download, or none where sampling asks
// the GPU; steps of few rows replay the chain as a recorded graph. Everything is allocated at
// construction, but for what logits in host memory take.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "models/forward/model.h"
#include "models/gpu/buffers.h"
#include "models/gpu/chain.h"
#include "models/gpu/experts.h"
#include "models/gpu/step.h"
#include "models/gpu/step_wait.h"
#include "models/gpu/weights.h"
#include "runtime/comm/device/device_group.h"
#include "runtime/ops/gpu/device.h"

namespace outrider {

class GpuTransformer final : public Model {
 public:
  // device and ops must outlive this. Throws Error with the sum when device memory does not
  // suffice.
  GpuTransformer(ModelConfig config,
                 std::shared_ptr<const GpuWeights> weights,
                 const ModelShard& shard,
                 const ModelOptions& options,
                 const GpuOptions& gpu_options,
                 gpu::Device& device,
                 const gpu::OpTable& ops);
  ~GpuTransformer() override;

  void begin(const Batch& batch) override;
  std::optional<JobClock::time_point> advance() override {
    if (num_logits_ == 0) return std::nullopt;
    return wait_.next_look(*stream_, *group_);
  }
  std::span<const float> finish() override;
  void wait() override { wait_.finish(*stream_, *group_); }
  // Of a model on one rank whose logits stay on the device.
  int32_t most_chained_steps() const override {
    return keeps_logits_ && shard_.num_ranks == 1 ? kMostChainedSteps : 1;
  }
  int32_t most_chained_rows() const override { return kMostChainedRows; }
  std::vector<ChosenToken> run_chain(const ChainedSteps& chain) override;
  void clear_blocks(std::span<const int32_t> blocks) override;
  void copy_block(int32_t from, int32_t to) override;
  void poison_blocks(std::span<const int32_t> blocks) override;
  void poison_position(int32_t block, int32_t slot) override;
  size_t matrix_bytes() const override;

  // From now on finish() leaves the logits in device memory and returns their address there at
  // once, for work that follows on stream().
  void keep_logits() { keeps_logits_ = true; }
  // The opposite, which is also the beginning. Takes pinned memory for as many logits as a step can
  // have (1 GB of 2,048 rows of 128,256), else taken by the first step: while other ranks' launches
  // wait for this one's, taking memory may wait for them.
  void read_logits_on_host();
  gpu::Device& device() const { return device_; }
  gpu::Stream& stream() const { return *stream_; }
  const gpu::OpTable& ops() const { return ops_; }

  // Before the first step; group is this rank's among the shard's ranks and must outlive this.
  void join(DeviceGroup& group);
  // Records the graphs of decoding and verifying, which would else be recorded on first use.
  void warm_up();
  size_t num_graphs() const { return graphs_.size(); }

 private:
  // A step as its launches see it.
  struct Pass {
    const gpu::StepView& step;
    const LaunchSizes& sizes;
    bool selected = false;  // only rows whose logits are wanted go on
  };
  void run(const gpu::StepView& step, const LaunchSizes& sizes);
  void embed(const Pass& pass);
  gpu::NormArgs norm_args(const Pass& pass, const GpuNorm& norm, const gpu::Matrix& next) const;
  void norm(const Pass& pass, const GpuNorm& norm, const gpu::Matrix& next);
  void add_and_norm(const Pass& pass,
                    const GpuNorm& of_part,
                    const GpuNorm& norm,
                    const gpu::Matrix& next);
  void norm_beside_attention(const Pass& pass, const GpuLayerWeights& w);
  void add_part(const Pass& pass, const GpuNorm& of_part, float scale);
  gpu::ProductArgs product(const Pass& pass,
                           void* in,
                           const gpu::Matrix& weights,
                           const float* bias) const;
  void project(const Pass& pass, int32_t layer);
  void sum_squares(const Pass& pass);
  void attend(const Pass& pass, int32_t layer);
  void mlp(const Pass& pass, const GpuLayerWeights& w);
  // latent_attention.cpp
  void project_latent(const Pass& pass, const GpuLayerWeights& w, const gpu::QkvArgs& to);
  void make_values(const Pass& pass, const GpuLayerWeights& w);
  // per_layer_inputs.cpp
  void embed_per_layer(const Pass& pass);
  void read_per_layer(const Pass& pass, int32_t layer);
  void add_experts(const Pass& pass, const GpuLayerWeights& w);
  const GpuNorm* end_layer(const Pass& pass, int32_t layer);
  void bend_logits(const Pass& pass);
  void sum_over_ranks(const Pass& pass, float* values, int32_t width);
  void queue_chain(const std::vector<LaunchSizes>& sizes);
  void launch(const LaunchSizes& sizes);
  void record(const LaunchSizes& sizes);
  void count_sums(const LaunchSizes& sizes);
  void fill_blocks(std::span<const int32_t> blocks, bool poison);

  std::shared_ptr<const GpuWeights> weights_;
  const GpuOptions gpu_options_;
  gpu::Device& device_;
  const gpu::OpTable& ops_;
  DeviceGroup* group_ = nullptr;  // null until join()
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<GpuBuffers> buffers_;
  std::unique_ptr<GpuExpertMlp> experts_;  // null where no layer has any
  GpuStep step_;
  GpuStepWait wait_;
  size_t num_logits_ = 0;  // of the step that has begun
  bool keeps_logits_ = false;
  gpu::PinnedBuffer host_logits_;  // nothing where nobody reads them
  std::map<LaunchSizes, std::unique_ptr<gpu::Graph>> graphs_;
  std::unique_ptr<GpuChain> chain_;  // null until the first
  // By the number of rows that choose, how many tokens they choose from, whether the likeliest are
  // wanted, and each step's launches.
  std::map<std::tuple<size_t, int32_t, bool, std::vector<LaunchSizes>>, std::unique_ptr<gpu::Graph>>
      chain_graphs_;
};

}  // namespace outrider
