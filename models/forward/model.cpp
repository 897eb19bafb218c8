// What all models do alike; see model.h.
#include "models/forward/model.h"

#include "runtime/base/error.h"

namespace outrider {

void Model::check_batch(const Batch& batch) const {
  const size_t rows = batch.tokens.size();
  OUTRIDER_CHECK(rows <= static_cast<size_t>(options_.max_rows));
  OUTRIDER_CHECK(batch.positions.size() == rows && batch.sequence_of_row.size() == rows);
  for (size_t row = 0; row < rows; ++row) {
    OUTRIDER_CHECK(batch.tokens[row] >= 0 && batch.tokens[row] < config_.vocab_size);
    const auto sequence = static_cast<size_t>(batch.sequence_of_row[row]);
    OUTRIDER_CHECK(batch.sequence_of_row[row] >= 0 && sequence < batch.block_tables.size());
    const int32_t position = batch.positions[row];
    const auto num_positions = batch.block_tables[sequence].size() * options_.block_size;
    OUTRIDER_CHECK(position >= 0 && static_cast<size_t>(position) < num_positions);
  }
  for (const auto& table : batch.block_tables) {
    for (const int32_t block : table) OUTRIDER_CHECK(block >= 0 && block < options_.num_blocks);
  }
  OUTRIDER_CHECK(batch.logit_rows.size() <= static_cast<size_t>(options_.max_logit_rows));
  int32_t last = -1;
  for (const int32_t row : batch.logit_rows) {
    OUTRIDER_CHECK(row > last && static_cast<size_t>(row) < rows);
    last = row;
  }
}

std::vector<ChosenToken> Model::run_chain(const ChainedSteps&) {
  OUTRIDER_CHECK(most_chained_steps() > 1);
  return {};
}

void Model::poison_blocks(std::span<const int32_t> blocks) {
  for (const ops::KvPages& pages : kv_pages()) {
    for (const int32_t block : blocks) {
      ops::kv_fill(
          pages, pages.vector_at(block, 0, 0), pages.vectors_per_block(), ops::KvFill::kNan);
    }
  }
}

void Model::poison_position(int32_t block, int32_t slot) {
  for (const ops::KvPages& pages : kv_pages()) {
    for (int64_t head = 0; head < pages.n_kv_heads; ++head) {
      ops::kv_fill(pages, pages.vector_at(block, head, slot), 1, ops::KvFill::kNan);
    }
  }
}

}  // namespace outrider
