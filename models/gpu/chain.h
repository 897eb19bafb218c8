// What chained steps (Model::run_chain) need beside the model's own buffers: each step's rows, and
// how the device chooses the tokens that the step behind it reads.
#pragma once

#include <vector>

#include "models/forward/model.h"
#include "models/gpu/step.h"
#include "runtime/ops/gpu/row_scan.h"

namespace outrider {

inline constexpr int32_t kMostChainedSteps = 8;
inline constexpr int32_t kMostChainedRows = kMostRecordedRows;

class GpuChain {
 public:
  GpuChain(gpu::Device& device,
           const ModelConfig& config,
           const ModelShard& shard,
           const ModelOptions& options,
           int32_t max_positions);

  // Writes what upload() brings to the device; nothing may be on its way. logits: [rows, stride],
  // where every step leaves them. The sizes of each step's launches.
  std::vector<LaunchSizes> fill(const ChainedSteps& chain, const float* logits, int64_t stride);
  void upload(gpu::Stream& stream);
  const gpu::StepView& step(int32_t index) const {
    return steps_[static_cast<size_t>(index)].view();
  }
  gpu::RowTasks choices(int32_t index) const;
  // Of what step `index` chose, for the one behind it.
  gpu::TakeTokensArgs next_tokens(int32_t index) const;
  void download(gpu::Stream& stream);
  // When the download is done: as run_chain() gives them.
  std::vector<ChosenToken> chosen() const;
  bool wants_likeliest() const { return wants_likeliest_; }

 private:
  // Pinned and device memory of one layout.
  struct Tasks {
    gpu::ScannedRow rows[kMostChainedRows];
    gpu::BestTask bests[kMostChainedSteps][kMostChainedRows];
    gpu::TopTask tops[kMostChainedSteps][kMostChainedRows];
  };
  struct TopAnswer {
    uint64_t keys[kMostLikeliest];
    uint64_t words[3];  // flipped_last, num_last, bad
  };
  struct Answers {
    uint64_t words[kMostChainedSteps][kMostChainedRows][2];  // key, bad
    TopAnswer tops[kMostChainedSteps][kMostChainedRows];     // travels where it is wanted
  };
  void fill_tasks(int32_t step, int32_t row, const TokenChoice& choice);
  size_t answer_bytes() const {
    return wants_likeliest_ ? sizeof(Answers) : sizeof(Answers::words);
  }

  std::vector<GpuStep> steps_;
  gpu::PinnedBuffer tasks_here_;
  gpu::Buffer tasks_there_;
  gpu::PinnedBuffer answers_here_;
  gpu::Buffer answers_there_;
  gpu::Buffer candidates_;              // scratch of the likeliest, one step's at a time
  std::vector<int32_t> num_likeliest_;  // by row
  bool wants_likeliest_ = false;
  int32_t num_steps_ = 0;
  int32_t num_rows_ = 0;
  int32_t num_tokens_ = 0;
};

}  // namespace outrider
