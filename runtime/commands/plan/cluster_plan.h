// What a pair would need and take on a cluster of GPUs, computed from its shapes and from constants
// of the machine: `outrider plan`. Pure arithmetic; nothing here was measured.
#pragma once

#include <cstdint>

#include "models/checkpoint/model_config.h"

namespace outrider {

// Of the machine. The defaults are other people's figures and our goals, not measurements of this
// program.
struct ClusterConstants {
  double memory_gb = 141;        // of a GPU (10^9 bytes); H200, its datasheet
  double memory_share = 0.9;     // of it that may be used
  double bandwidth_tb_s = 4.3;   // device copy on an H200
  double bandwidth_share = 0.8;  // of it that a whole step reaches: the goal
  double exchange_us = 5;        // a small sum within a node: the goal; NCCL takes 17
  double link_gb_s = 320;        // of a GPU to its peers in the node; NCCL's own model
  double cross_node_us = 25;     // a small sum over nodes; NCCL's own model, 2 nodes of 8
  double network_gb_s = 50;      // of a GPU to another node: 400 Gbit/s
  double host_us = 0;            // of a round, on the host
};

struct ClusterShape {
  int32_t gpus_per_node = 1;  // for the target; the draft has one more
  int32_t num_nodes = 1;
  int32_t num_ranks = 1;     // of the target: tensor_parallel_size
  int32_t weight_bytes = 2;  // of an element of a matrix: 2 bf16, 1 fp8
  int32_t kv_bytes = 2;      // of a key's or value's element
  int32_t num_sequences = 1;
  int32_t context_len = 1024;
  int32_t max_rows = 256;  // of a step, for buffers
};

struct RankMemory {
  double matrices_bytes = 0;  // read by every step, but for experts that no row chooses
  double embedding_bytes = 0;
  double buffers_bytes = 0;  // activations and the exchange's
  double kv_bytes_per_token = 0;
  double kv_tokens = 0;  // that fit; 0: the weights alone do not
};

struct StepPlan {
  int32_t rows = 0;
  int32_t num_sums = 0;  // over the ranks, of partial sums
  double bytes_per_sum = 0;
  double statistics_bytes = 0;  // of a rank, in one gather
  double read_ms = 0;           // weights and keys, at the constants' bandwidth
  double sums_ms = 0;
  double total_ms() const { return read_ms + sums_ms; }
};

struct ModelPlan {
  RankMemory memory;  // of the rank that has most
  StepPlan plain;     // one row a sequence
};

// Throws Error when the model cannot be cut into so many ranks.
ModelPlan plan_model(const ModelConfig& model,
                     const ClusterShape& shape,
                     const ClusterConstants& constants);
StepPlan plan_step(const ModelConfig& model,
                   const ClusterShape& shape,
                   const ClusterConstants& constants,
                   int32_t rows_per_sequence);

struct SpeculationPlan {
  int32_t draft_len = 0;  // with the greatest speed-up when the draft waits
  StepPlan verify;        // draft_len + 1 rows a sequence
  double tokens_per_round = 0;
  double waiting_speedup = 0;  // Leviathan et al., Theorem 3.8 with these step times
  double ahead_speedup = 0;    // asynchronous drafting with prepared outcomes (speedup_formulas.h)
};
// alpha: chance that a draft token stands; hit_rate: that its outcome was prepared.
SpeculationPlan plan_speculation(const ModelConfig& model,
                                 const ModelConfig& draft,
                                 const ClusterShape& shape,
                                 const ClusterConstants& constants,
                                 double alpha,
                                 double hit_rate);

}  // namespace outrider
