// See cluster_plan.h.
#include "runtime/commands/plan/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/checkpoint/shard.h"
#include "models/gpu/buffers.h"
#include "models/gpu/layout.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider {
namespace {

constexpr int kLongestDraft = 16;
// A rank's part of what sampling must know of a row: maximum, sum, a draft token's logit, a key.
constexpr double kStatisticsBytes = 24;

double elements(int64_t rows, int64_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns);
}

// Of a layer's experts those that so many rows choose, if each chooses evenly and by itself.
double chosen_experts(const ExpertsConfig& experts, int32_t rows) {
  if (experts.count == 0) return 0;
  return experts.count * (1 - std::pow(1 - 1.0 * experts.per_row / experts.count, rows));
}

// Of one rank: everything that a step multiplies with, of a layer's experts so many.
double matrix_elements(const ModelConfig& model, const ModelShard& shard, double num_experts) {
  const int64_t hidden = model.hidden_dim;
  const auto all_layers = int64_t{model.n_layers} * model.per_layer_dim;
  const double experts = 3 * elements(shard.shared_ffn.size(), hidden) +
                         elements(model.experts.count, hidden) +
                         num_experts * 3 * elements(shard.expert_ffn.size(), hidden);
  double total = elements(shard.vocab.size() + all_layers, hidden);
  for (int32_t layer = 0; layer < model.n_layers; ++layer) {
    const GpuLayout layout = gpu_layout(model, shard, layer);
    for (const GpuMatrixLayout* m : layout.matrices()) total += elements(m->n_out, m->n_in);
    total += static_cast<double>(layout.kv_b_elements);
    if (model.has_experts(layer)) total += experts;
  }
  return total;
}

double kv_elements_per_token(const ModelConfig& model, const ModelShard& shard) {
  return static_cast<double>(gpu_kv_bytes_per_block(model, shard, 1, gpu::Type::kF32)) /
         gpu::type_bytes(gpu::Type::kF32);
}

// Residual, part and norm's output of the hidden width, queries and keys, the product of the wide
// layer, logits of as many rows, what experts make of up to 512; and the exchange's three buffers
// of size + 1 slots.
double buffer_bytes(const ModelConfig& model, const ModelShard& shard, const ClusterShape& shape) {
  const double rows = shape.max_rows;
  const double hidden = model.hidden_dim;
  double attention = 0;
  double ffn = 0;
  for (int32_t layer = 0; layer < model.n_layers; ++layer) {
    const GpuLayout layout = gpu_layout(model, shard, layer);
    const int64_t sums = model.is_latent() ? shard.heads.size() * model.head_dim : 0;
    const int64_t own = layout.qkv.n_out + layout.q_a.n_out + layout.q.n_out + sums;
    attention = std::max(attention, static_cast<double>(own));
    ffn = std::max<double>(ffn, layout.ffn);
  }
  const double per_row =
      hidden * (4 + 4 + 2) + attention * 4 + ffn * 2 + static_cast<double>(shard.vocab.size()) * 4;
  const double per_expert = hidden * 4 + static_cast<double>(shard.expert_ffn.size()) * 2;
  const double experts = std::min(rows, 512.0) * model.experts.per_row * per_expert;
  const double exchange = shape.num_ranks == 1 ? 0
                                               : static_cast<double>(gpu::kNumExchangeBuffers) *
                                                     (shape.num_ranks + 1) * hidden * 4;
  return rows * (per_row + exchange) + experts;
}

// One sum of so many bytes over all ranks: within a node each GPU gives and takes 2 (n - 1) / n of
// it over its links; over nodes each then exchanges its share with its peers there.
double sum_us(double num_bytes, const ClusterShape& shape, const ClusterConstants& constants) {
  if (shape.num_ranks == 1) return 0;
  const int32_t nodes = std::min(shape.num_nodes, shape.num_ranks);
  const double here = static_cast<double>(shape.num_ranks) / nodes;
  double us = here > 1 ? num_bytes * 2 * (here - 1) / here / (constants.link_gb_s * 1e3) : 0;
  if (nodes == 1) return us + constants.exchange_us;
  const double share = num_bytes / std::max(1.0, here);
  return us + constants.cross_node_us +
         share * 2 * (nodes - 1) / nodes / (constants.network_gb_s * 1e3);
}

double read_ms(double num_bytes, const ClusterConstants& constants) {
  return 1e3 * num_bytes / (constants.bandwidth_tb_s * 1e12 * constants.bandwidth_share);
}

// The rank that has most of everything is one of these.
std::vector<ModelShard> shards_of(const ModelConfig& model, const ClusterShape& shape) {
  std::vector<ModelShard> shards;
  for (int r = 0; r < shape.num_ranks; ++r) {
    shards.push_back(shard_model(model, r, shape.num_ranks));
  }
  return shards;
}

}  // namespace

StepPlan plan_step(const ModelConfig& model,
                   const ClusterShape& shape,
                   const ClusterConstants& constants,
                   int32_t rows_per_sequence) {
  StepPlan step;
  step.rows = rows_per_sequence * shape.num_sequences;
  step.num_sums = shape.num_ranks == 1 ? 0 : 1 + 2 * model.n_layers;
  step.bytes_per_sum =
      shape.num_ranks == 1 ? 0 : static_cast<double>(step.rows) * model.hidden_dim * sizeof(float);
  step.statistics_bytes = shape.num_ranks == 1 ? 0 : step.rows * kStatisticsBytes;
  double most_bytes = 0;
  for (const ModelShard& shard : shards_of(model, shape)) {
    const double keys = kv_elements_per_token(model, shard) * shape.kv_bytes * shape.context_len *
                        shape.num_sequences;
    const double matrices = matrix_elements(model, shard, chosen_experts(model.experts, step.rows));
    most_bytes = std::max(most_bytes, matrices * shape.weight_bytes + keys);
  }
  step.read_ms = read_ms(most_bytes, constants);
  step.sums_ms = 1e-3 * (step.num_sums * sum_us(step.bytes_per_sum, shape, constants) +
                         sum_us(step.statistics_bytes, shape, constants));
  return step;
}

ModelPlan plan_model(const ModelConfig& model,
                     const ClusterShape& shape,
                     const ClusterConstants& constants) {
  ModelPlan plan;
  double most = -1;
  for (const ModelShard& shard : shards_of(model, shape)) {
    RankMemory memory;
    memory.matrices_bytes = matrix_elements(model, shard, model.experts.count) * shape.weight_bytes;
    const int64_t row = model.hidden_dim + int64_t{model.n_layers} * model.per_layer_dim;
    memory.embedding_bytes = elements(shard.vocab.size(), row) * 2;
    memory.buffers_bytes = buffer_bytes(model, shard, shape);
    memory.kv_bytes_per_token = kv_elements_per_token(model, shard) * shape.kv_bytes;
    const double taken = memory.matrices_bytes + memory.embedding_bytes + memory.buffers_bytes;
    const double left = constants.memory_gb * 1e9 * constants.memory_share - taken;
    memory.kv_tokens = std::max(0.0, left) / memory.kv_bytes_per_token;
    if (taken <= most) continue;
    most = taken;
    plan.memory = memory;
  }
  plan.plain = plan_step(model, shape, constants, 1);
  return plan;
}

SpeculationPlan plan_speculation(const ModelConfig& model,
                                 const ModelConfig& draft,
                                 const ClusterShape& shape,
                                 const ClusterConstants& constants,
                                 double alpha,
                                 double hit_rate) {
  ClusterShape alone = shape;
  alone.gpus_per_node = alone.num_nodes = alone.num_ranks = 1;
  SpeculationPlan best;
  const double host_ms = constants.host_us * 1e-3;
  const double plain_ms = plan_step(model, shape, constants, 1).total_ms() + host_ms;
  const double draft_ms = plan_step(draft, alone, constants, 1).total_ms();
  for (int draft_len = 1; draft_len <= kLongestDraft; ++draft_len) {
    const StepPlan verify = plan_step(model, shape, constants, draft_len + 1);
    const double speedup = predicted_speedup(
        alpha,
        draft_len,
        {.plain = plain_ms, .verify = verify.total_ms() + host_ms, .draft = draft_ms});
    if (speedup <= best.waiting_speedup) continue;
    best = {.draft_len = draft_len,
            .verify = verify,
            .tokens_per_round = expected_tokens(alpha, draft_len),
            .waiting_speedup = speedup};
  }
  best.ahead_speedup = best_cache(alpha, draft_ms / plain_ms, hit_rate).speedup;
  return best;
}

}  // namespace outrider
