// What a GpuTransformer's steps write, allocated once, and how much that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/forward/model.h"
#include "models/gpu/weights.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider {

struct GpuOptions {
  int32_t max_positions = 0;  // no row stands at or beyond it
  gpu::Type kv_type = gpu::Type::kBF16;
  // A draft is high: its launches are short and a target's fill the device, behind which it would
  // wait; the target waits for nothing but the draft's bytes.
  gpu::Priority priority = gpu::Priority::kNormal;
  bool enforce_eager = false;  // no graphs
};

// rows = max_rows; heads, kv, ffn and vocab are this shard's counts, of the layer with most.
struct GpuBuffers {
  GpuBuffers() = default;  // of no device, to count bytes
  GpuBuffers(gpu::Device& device,
             gpu::Stream& stream,
             const ModelConfig& config,
             const ModelShard& shard,
             const GpuWeights& weights,
             const ModelOptions& options,
             const GpuOptions& gpu_options);

  float* x = nullptr;        // [rows, hidden] residual stream
  void* normed = nullptr;    // [max(rows, logit rows), hidden], as the next product reads it
  float* qkv = nullptr;      // [rows, (heads + 2 kv) * head_dim]; null when products write further
  void* queries = nullptr;   // [rows, heads, head_dim]
  void* attended = nullptr;  // [rows, heads * value_dim]
  float* part = nullptr;     // [rows, hidden] this rank's share of a row-parallel product
  float* gate_up = nullptr;  // [rows, 2 ffn] or [rows, ffn]; null when the product goes further
  void* gated = nullptr;     // [rows, ffn]
  void* experts = nullptr;   // GpuExpertMlp's, or null
  float* expert_part = nullptr;  // [rows, hidden] of experts beside an MLP
  float* squares = nullptr;      // [rows, heads + kv heads of the whole model], for norms over them
  // Of latent attention, whose qkv is the key alone.
  float* q_a = nullptr;   // [rows, q_rank]
  void* low = nullptr;    // [rows, q_rank], normed
  float* q = nullptr;     // [rows, heads * query_dim]
  float* sums = nullptr;  // [rows, heads * head_dim] of latents
  // Of per-layer inputs.
  float* vectors = nullptr;       // [rows, layers * per_layer_dim]
  float* projected = nullptr;     // the same; of a layer [rows, per_layer_dim], its gates
  void* gated_vectors = nullptr;  // [rows, per_layer_dim]
  float* logits = nullptr;        // [logit rows, vocab]
  size_t logits_bytes = 0;
  void* attention_scratch = nullptr;
  gpu::RotaryView rotary;
  gpu::RotaryView local_rotary;          // of windowed layers with a rope of their own
  const float* query_factors = nullptr;  // [max positions] or null
  const float* slopes = nullptr;         // [heads], ALiBi's, or null
  std::vector<gpu::KvView> kv;           // of layers that have any
  gpu::KvView* kv_on_device = nullptr;
  // Blocks that queued work still reads the names of: a ring that begins anew with each step.
  gpu::PinnedBuffer block_names;
  size_t num_blocks_named = 0;
  size_t most_blocks_named = 0;
  gpu::Type matrix_type = gpu::Type::kF32;  // the widest of the products'
  size_t kv_bytes = 0;
  size_t num_bytes = 0;  // of all but KV

 private:
  std::vector<gpu::Buffer> memory_;
};

// Bytes of device memory, for sizing before anything is loaded. weights: the type of the products'
// matrices.
size_t gpu_buffer_bytes(const ModelConfig& config,
                        const ModelShard& shard,
                        const ModelOptions& options,
                        const GpuOptions& gpu_options,
                        gpu::Type weights);
size_t gpu_kv_bytes_per_block(const ModelConfig& config,
                              const ModelShard& shard,
                              int32_t block_size,
                              gpu::Type kv_type);

}  // namespace outrider
