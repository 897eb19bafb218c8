// See model_probe.h.
#include "tests/ranks/model_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace outrider::test {

ModelProbe::ModelProbe(const RunConfig& config, Role role) {
  RankLayout layout;
  layout.has_draft = true;
  loaded_ = role == Role::kDraft ? load_draft(config, layout, 1)
                                 : load_target(config, layout, 0, 1, make_solo_group());
  blocks_.resize(static_cast<size_t>(loaded_.model->options().num_blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

std::vector<std::vector<double>> ModelProbe::next_token_probs(const std::vector<int32_t>& tokens) {
  std::vector<std::vector<double>> probs;
  const auto vocab_size = static_cast<size_t>(loaded_.model->config().vocab_size);
  const auto max_rows = static_cast<size_t>(
      std::min(loaded_.model->options().max_rows, loaded_.model->options().max_logit_rows));
  for (size_t begin = 0; begin < tokens.size(); begin += max_rows) {
    const size_t end = std::min(tokens.size(), begin + max_rows);
    Batch batch;
    batch.block_tables.emplace_back(blocks_);
    for (size_t i = begin; i < end; ++i) {
      batch.tokens.push_back(tokens[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.sequence_of_row.push_back(0);
      batch.logit_rows.push_back(static_cast<int32_t>(i - begin));
    }
    const std::span<const float> logits = loaded_.model->forward(batch);
    for (size_t row = 0; row < end - begin; ++row) {
      const auto values = logits.subspan(row * vocab_size, vocab_size);
      const double most = *std::max_element(values.begin(), values.end());
      std::vector<double> row_probs;
      double sum = 0;
      for (float value : values) row_probs.push_back(std::exp(value - most));
      for (double value : row_probs) sum += value;
      for (double& value : row_probs) value /= sum;
      probs.push_back(std::move(row_probs));
    }
  }
  return probs;
}

}  // namespace outrider::test
