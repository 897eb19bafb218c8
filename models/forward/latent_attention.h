// What latent attention (MLA, DeepSeek-V2 2405.04434; LatentConfig) has beside attention itself, in
// the absorbed form: queries and key over the latent before it, and each head's values made of the
// latents' sum after it. Used by the transformer, on its compute thread.
#pragma once

#include <cstdint>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/forward/step_buffer.h"
#include "models/weights/weights.h"
#include "runtime/ops/ops.h"

namespace outrider {

// Of the norms of q_a and kv_a: Hugging Face's code gives these no other.
inline constexpr float kLatentNormEps = 1e-6f;

class LatentAttention {
 public:
  // config and shard must outlive this; max_rows of a step.
  LatentAttention(const ModelConfig& config, const ModelShard& shard, int64_t max_rows);

  std::vector<StepBuffer> buffers();

  // Writes this rank's queries of in [rows, hidden], and the key behind them: rope_dim numbers that
  // are to be turned, then kv_rank of the latent.
  void project(ops::Context& ctx,
               const LayerWeights& w,
               const float* in,
               const ops::HeadRows& queries);
  // [rows, heads * value_dim] of what attention gives, [rows, heads * head_dim].
  const float* values(ops::Context& ctx,
                      const LayerWeights& w,
                      const float* attended,
                      int64_t rows);

 private:
  ops::PlacedHeads<const float> project_queries(ops::Context& ctx,
                                                const LayerWeights& w,
                                                int64_t rows);
  void multiply_heads(ops::Context& ctx, const ops::ExpertMatrix& matrix, int64_t rows);

  const ModelConfig& config_;
  const ModelShard& shard_;
  int64_t max_rows_;
  int64_t most_rows_;                    // that go through the products together
  float* projected_ = nullptr;           // [rows, q_rank or heads * query_dim; rope_dim + kv_rank]
  float* low_ = nullptr;                 // [rows, q_rank]
  float* queries_ = nullptr;             // [rows, heads * query_dim]
  float* in_heads_ = nullptr;            // [heads, rows, nope_dim or kv_rank]
  float* out_heads_ = nullptr;           // [heads, rows, kv_rank or value_dim]
  float* values_ = nullptr;              // [max rows, heads * value_dim]
  std::vector<ops::ExpertRows> groups_;  // each head's rows
};

}  // namespace outrider
