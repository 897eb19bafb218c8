// See step_runner.h.
#include "runtime/commands/bench/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

#include "runtime/ranks/target/logit_scanner.h"

namespace outrider {

StepRunner::StepRunner(const TargetContext& context, int32_t num_positions)
    : context_(context),
      blocks_(static_cast<size_t>((num_positions + context.config.block_size - 1) /
                                  context.config.block_size)) {
  keep_logits_on_device(*context.loaded.model);  // 8.7 MB of 17 rows would be half a millisecond
  if (context.loaded.context != nullptr)
    reader_.emplace(*context.loaded.context, context.loaded.model->matrix_bytes());
  OUTRIDER_CHECK(static_cast<int32_t>(blocks_.size()) <=
                 context.loaded.model->options().num_blocks);
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

void StepRunner::meet() {
  std::array<uint64_t, 1> nothing = {};
  context_.loaded.group->all_reduce_max(nothing);
}

double StepRunner::step_ms(int32_t first_position, int32_t rows, StepLogits logits) {
  constexpr int64_t kStride = 7919;  // a prime, so that neighbours are far apart
  const int64_t vocab_size = context_.loaded.model->config().vocab_size;
  Batch batch;
  batch.block_tables.emplace_back(blocks_);
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t position = first_position + row;
    batch.tokens.push_back(static_cast<int32_t>(position * kStride % vocab_size));
    batch.positions.push_back(position);
    batch.sequence_of_row.push_back(0);
    if (logits == StepLogits::kAllRows || row + 1 == rows) batch.logit_rows.push_back(row);
  }
  meet();
  const SumTraffic before = context_.loaded.model->sum_traffic();
  const auto start = std::chrono::steady_clock::now();
  context_.loaded.model->forward(batch);
  const auto end = std::chrono::steady_clock::now();
  const SumTraffic& after = context_.loaded.model->sum_traffic();
  exchange_ms_ = 1e3 * (after.seconds - before.seconds);
  exchange_bytes_ = static_cast<double>(after.num_bytes - before.num_bytes);
  return std::chrono::duration<double, std::milli>(end - start).count();
}

void StepRunner::fill(int32_t num_positions) {
  const int32_t most = context_.config.max_num_batched_tokens;
  for (int32_t at = 0; at < num_positions; at += most)
    step_ms(at, std::min(most, num_positions - at), StepLogits::kLastRow);
}

double StepRunner::read_ms() {
  meet();
  return reader_->run_ms();
}

double StepRunner::peak_gflops() {
  meet();
  return context_.num_targets * ops::peak_gflops(*context_.loaded.context);
}

namespace {

// Of a layer's attention, the weights that each row is multiplied with.
double attention_weights(const ModelConfig& config) {
  const double hidden = config.hidden_dim;
  const double heads = config.n_heads;
  if (!config.is_latent()) {
    const double q_dim = heads * config.head_dim;
    return hidden * (2 * q_dim + 2.0 * config.n_kv_heads * config.head_dim);
  }
  const LatentConfig& latent = config.latent;
  const double q_dim = heads * latent.query_dim();
  const double queries = latent.q_rank > 0 ? latent.q_rank * (hidden + q_dim) : hidden * q_dim;
  return queries + hidden * config.head_dim +
         heads *
             (latent.kv_rank * (latent.nope_dim + latent.value_dim) + latent.value_dim * hidden);
}

}  // namespace

double step_operations(const ModelConfig& config,
                       int32_t first_position,
                       int32_t rows,
                       StepLogits logits) {
  const double hidden = config.hidden_dim;
  double weights = 0;  // that a row is multiplied with, and numbers of its queries, of all layers
  double q_dim = 0;
  const ExpertsConfig& experts = config.experts;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    const ModelConfig own = config.of_layer(layer);
    double ffn_units = 0;
    if (own.has_experts(layer)) {
      ffn_units = 1.0 * experts.per_row * experts.ffn_dim + experts.shared_ffn_dim;
    }
    if (!own.has_experts(layer) || experts.beside_mlp) ffn_units += own.ffn_dim;
    weights += attention_weights(own) + 3 * hidden * ffn_units;
    q_dim += static_cast<double>(own.n_heads) * own.head_dim;
  }
  const double head_weights = hidden * config.vocab_size;
  const double logit_rows = logits == StepLogits::kAllRows ? rows : 1;
  // Row i looks at first_position + i + 1 positions; scores and sums of values.
  const double positions = rows * (first_position + (rows + 1) / 2.0);
  return 2 * (weights * rows + 2 * q_dim * positions) + 2 * head_weights * logit_rows;
}

std::string describe_target(const TargetContext& context) {
  if (context.loaded.assignment.device != nullptr) {
    return fmt::format("model {}, {} target rank(s) on {}, quantization {}",
                       context.config.model,
                       context.num_targets,
                       context.loaded.device_name(),
                       context.config.quantization);
  }
  const ops::Context& ctx = *context.loaded.context;
  return fmt::format("model {}, {} target rank(s) of {} thread(s), {}, {} activations",
                     context.config.model,
                     context.num_targets,
                     ctx.num_threads(),
                     ops::isa_name(ctx.isa()),
                     ctx.activations() == ops::Activations::kBF16 ? "bf16" : "fp32");
}

}  // namespace outrider
