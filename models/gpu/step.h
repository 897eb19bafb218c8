// What a step tells the device: rows, positions, block tables, attention's work. Written into one
// piece of pinned memory and uploaded by one copy; the launches find it at the same addresses in
// every step.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "models/forward/model.h"
#include "runtime/ops/gpu/attention_plan.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider {

// Sizes up to which a step's launches are made. Steps with the same ones are the same launches, so
// one recorded graph serves them all.
struct LaunchSizes {
  int32_t rows = 0;
  int32_t logit_rows = 0;  // 0: no logits, the last layer ends with its keys and values
  int32_t items = 0;       // of attention
  int32_t splits = 0;
  auto operator<=>(const LaunchSizes&) const = default;
};
// Steps of more rows are launched one by one: their launches take no time beside their work.
inline constexpr int32_t kMostRecordedRows = 32;

class GpuStep {
 public:
  // max_positions: no row stands at or beyond it.
  GpuStep(gpu::Device& device,
          const ModelConfig& config,
          const ModelShard& shard,
          const ModelOptions& options,
          int32_t max_positions);

  // Writes the batch into the pinned memory, where nothing may be on its way up any more, and gives
  // the sizes its launches need: exact ones, or for few rows those of a graph.
  LaunchSizes fill(const Batch& batch);
  void upload(gpu::Stream& stream) const;

  const gpu::StepView& view() const { return view_; }
  // For who knows tokens only there, behind upload().
  int32_t* tokens_on_device() const {
    return reinterpret_cast<int32_t*>(device_.as<std::byte>() + tokens_);
  }
  // The sizes of all decoding and verifying steps that are recorded.
  std::vector<LaunchSizes> recorded_sizes() const;
  size_t num_bytes() const { return device_.num_bytes(); }

 private:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(pinned_.as<std::byte>() + offset);
  }
  gpu::AttentionPlan plan_attention(const Batch& batch);
  void fill_tables(const Batch& batch);
  LaunchSizes launch_sizes(int32_t rows, int32_t logit_rows, const gpu::AttentionPlan& plan) const;

  ModelOptions options_;
  int32_t max_positions_;
  int32_t table_stride_;
  int32_t group_ = 1;  // query heads of a KV head
  int32_t kv_heads_ = 1;
  int32_t rows_per_item_;
  int32_t num_processors_;
  // Byte offsets, the same in pinned and device memory.
  size_t tokens_ = 0;
  size_t positions_ = 0;
  size_t sequences_ = 0;
  size_t logit_rows_ = 0;
  size_t items_ = 0;
  size_t tables_ = 0;
  gpu::PinnedBuffer pinned_;
  gpu::Buffer device_;
  gpu::StepView view_;
  size_t num_used_bytes_ = 0;
};

}  // namespace outrider
