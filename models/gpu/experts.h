// The mixture-of-experts MLP of a step on a GPU, in the place of the dense one: what
// models/forward/experts.h is on the CPU. All is decided on the device: rows, up to 512 at a time,
// choose their experts, whose products go by tiles of rows (runtime/ops/gpu/experts.h).
#pragma once

#include <cstddef>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/gpu/weights.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/experts.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider {

// Of a step, as its launches see it. x: the residual stream; normed: its norm, which products read.
struct GpuExpertStep {
  const float* x = nullptr;  // [rows, hidden]
  void* normed = nullptr;    // [rows, hidden]
  float* part = nullptr;     // [rows, hidden] of this rank, the result
  int32_t max_rows = 0;
  gpu::StepView view;
};

// All layers that have any are alike; n_layers when none has.
int32_t first_layer_with_experts(const ModelConfig& config);

class GpuExpertMlp {
 public:
  // activations: the widest type of what products read. config must outlive this.
  GpuExpertMlp(const ModelConfig& config,
               const ModelShard& shard,
               int32_t max_rows,
               gpu::Type activations);
  // What a step writes: so much device memory, zeros at first, must be given before compute().
  size_t num_bytes() const { return num_bytes_; }
  void use_memory(void* memory) { memory_ = static_cast<std::byte*>(memory); }

  void compute(gpu::Stream& stream,
               const gpu::OpTable& ops,
               const GpuLayerWeights& w,
               const GpuExpertStep& step) const;

 private:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  int32_t num_logits() const {
    return config_.experts.count + (config_.experts.shared_gate ? 1 : 0);
  }
  gpu::RoutedRows rows_from(int32_t first_row, int32_t max_rows) const;
  gpu::RouteArgs routing(const GpuLayerWeights& w,
                         const GpuExpertStep& step,
                         const gpu::RoutedRows& rows) const;

  gpu::SumExpertsArgs add_chosen(gpu::Stream& stream,
                                 const gpu::OpTable& ops,
                                 const GpuExpertWeights& w,
                                 const GpuExpertStep& step,
                                 const gpu::RoutedRows& rows) const;
  void add_shared(gpu::Stream& stream,
                  const gpu::OpTable& ops,
                  const GpuExpertWeights& w,
                  const GpuExpertStep& step,
                  gpu::SumExpertsArgs& sum) const;

  const ModelConfig& config_;
  int32_t most_rows_;   // that go through the experts together
  int32_t ffn_;         // of an expert
  int32_t shared_ffn_;  // 0: there is no shared one
  int32_t num_slices_;  // of products that stay by themselves until the experts are added up
  std::byte* memory_ = nullptr;
  size_t num_bytes_ = 0;
  // Byte offsets.
  size_t logits_ = 0;   // [rows, num_logits()]
  size_t ids_ = 0;      // [rows, per_row]
  size_t weights_ = 0;  // [rows, per_row]
  size_t pairs_ = 0;    // [slots]
  size_t tiles_ = 0;    // [tiles]
  size_t num_tiles_ = 0;
  size_t gated_ = 0;         // [slots, ffn]
  size_t products_ = 0;      // [rows * per_row, num_slices, hidden]
  size_t shared_gated_ = 0;  // [rows of the step, shared_ffn]
  size_t shared_ = 0;        // [rows, num_slices, hidden]
};

}  // namespace outrider
