// See model_probe.h.
#include "runtime/ranks/loading/model_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/ranks/loading/model_names.h"

namespace outrider {
namespace {

constexpr int32_t kRowsAtOnce = 64;

// The sizes of one sequence, whatever the job has: the probe's memory is its own.
RunConfig one_sequence(RunConfig config) {
  const ModelConfig target = model_config_of(config.model, Role::kTarget);
  const int64_t max_model_len =
      config.max_model_len > 0 ? config.max_model_len : target.max_positions;
  const int64_t num_blocks =
      (max_model_len + config.speculative.longest_draft_len() + config.block_size) /
      config.block_size;
  const size_t block_bytes = Transformer::kv_bytes_per_block(
      target, shard_model(target, 0, 1), config.block_size, kv_type_of(config, target));
  config.kv_cache_memory_bytes = num_blocks * static_cast<int64_t>(block_bytes);
  config.max_num_seqs = kRowsAtOnce;  // for a draft this is also the number of rows with logits
  config.max_num_batched_tokens = kRowsAtOnce;
  return config;
}

}  // namespace

ModelProbe::ModelProbe(const RunConfig& config, Role role, int num_threads) {
  RankLayout layout;
  layout.has_draft = true;
  const RunConfig sizes = one_sequence(config);
  loaded_ = role == Role::kDraft ? load_draft(sizes, layout, num_threads)
                                 : load_target(sizes, layout, 0, num_threads, make_solo_group());
  blocks_.resize(static_cast<size_t>(loaded_.model->options().num_blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

void ModelProbe::visit_logits(std::span<const int32_t> tokens, size_t first, const Visit& visit) {
  const Model& model = *loaded_.model;
  OUTRIDER_CHECK(tokens.size() <= blocks_.size() * static_cast<size_t>(model.options().block_size));
  const auto width = static_cast<size_t>(vocab_size());
  const auto max_rows =
      static_cast<size_t>(std::min(model.options().max_rows, model.options().max_logit_rows));
  for (size_t begin = 0; begin < tokens.size(); begin += max_rows) {
    const size_t end = std::min(tokens.size(), begin + max_rows);
    Batch batch;
    batch.block_tables.emplace_back(blocks_);
    for (size_t i = begin; i < end; ++i) {
      batch.tokens.push_back(tokens[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.sequence_of_row.push_back(0);
      if (i >= first) batch.logit_rows.push_back(static_cast<int32_t>(i - begin));
    }
    const std::span<const float> logits = loaded_.model->forward(batch);
    for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
      const auto index = begin + static_cast<size_t>(batch.logit_rows[row]);
      visit(index, logits.subspan(row * width, width));
    }
  }
}

std::vector<std::vector<double>> ModelProbe::next_token_probs(const std::vector<int32_t>& tokens) {
  std::vector<std::vector<double>> probs;
  visit_logits(tokens, 0, [&](size_t, std::span<const float> logits) {
    probs.push_back(softmax(logits, 1.0));
  });
  return probs;
}

std::vector<double> softmax(std::span<const float> logits, double temperature) {
  std::vector<double> probs(logits.size(), 0.0);
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) {
    probs[static_cast<size_t>(best - logits.begin())] = 1.0;
    return probs;
  }
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    probs[i] =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(*best)) / temperature);
    sum += probs[i];
  }
  for (double& prob : probs) prob /= sum;
  return probs;
}

}  // namespace outrider
