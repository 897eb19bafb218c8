// The mixture-of-experts MLP of a step (Shazeer et al. 2017; Fedus et al. 2021), which stands in
// the place of the dense one: rows are grouped by the experts they chose, so that each expert's
// weights are read once for all of its rows. Used by the transformer, on its compute thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/forward/step_buffer.h"
#include "models/weights/weights.h"
#include "runtime/ops/ops.h"

namespace outrider {

class ExpertMlp {
 public:
  // config and shard must outlive this; max_rows of a step.
  ExpertMlp(const ModelConfig& config, const ModelShard& shard, int64_t max_rows);

  std::vector<StepBuffer> buffers();

  // part [rows, hidden], of this rank: the sum of the chosen experts' outputs, ascending by id, and
  // the shared one's after them. in: [rows, hidden]; where the router and the experts have norms of
  // their own, before these.
  void compute(
      ops::Context& ctx, const LayerWeights& w, const float* in, int64_t rows, float* part);

  // How many experts compute() has read, all calls together.
  int64_t num_read() const { return num_read_; }

 private:
  const float* normed(ops::Context& ctx,
                      const std::vector<float>& weight,
                      const float* x,
                      int64_t rows);
  void choose(ops::Context& ctx, const LayerWeights& w, const float* in, int64_t rows);
  void group_rows(int64_t rows);
  void activate(ops::Context& ctx, int64_t rows, int64_t ffn);
  void add_experts(ops::Context& ctx, const LayerWeights& w, const float* in);
  void add_shared(ops::Context& ctx, const LayerWeights& w, const float* in, int64_t rows);

  const ModelConfig& config_;
  const ModelShard& shard_;
  int64_t most_rows_;          // that go through the experts together
  int64_t num_slices_;         // of the inner dimension, each summed by itself
  float* logits_ = nullptr;    // [rows, experts and the shared gate]
  float* normed_ = nullptr;    // [rows, hidden]
  float* gathered_ = nullptr;  // [rows * per row, hidden]
  float* gate_up_ = nullptr;   // [rows * per row, 2 ffn]; of the shared expert [rows, 2 shared ffn]
  float* gated_ = nullptr;
  float* slices_ = nullptr;  // [rows, slices, hidden]
  std::vector<int64_t> expert_slice_ends_;
  std::vector<int64_t> shared_slice_ends_;
  // Of the last choice: by row, then by expert.
  std::vector<int32_t> ids_;    // [rows, per row]
  std::vector<float> weights_;  // the same
  std::vector<ops::ExpertRows> groups_;
  std::vector<int32_t> row_ids_;    // [rows * per row]
  std::vector<float> factors_;      // the same
  std::vector<int64_t> next_;       // [experts] where each expert's next row goes
  std::vector<int32_t> every_row_;  // 0, 1, ...
  int64_t num_read_ = 0;
};

}  // namespace outrider
