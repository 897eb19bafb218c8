// See step_probe.h.
#include "runtime/ranks/target/step_probe.h"

#include <algorithm>
#include <span>

namespace outrider {
namespace {

constexpr int32_t kRowsOfSequence = 8;
constexpr int32_t kRepeats = 3;
constexpr double kLongestS = 1.0;
constexpr int64_t kTokenStride = 7919;  // a prime, so that neighbours are far apart
// The widest gaps first, should the time be over soon. Many rows are whole tiles of a GPU's
// products: a row more takes the time of a tile more.
constexpr int32_t kRows[] = {1, 5, 17, 64, 256, 1024, 2, 3, 9, 32, 128, 512};

int32_t blocks_of_sequence(int32_t block_size) {
  return (kRowsOfSequence + block_size - 1) / block_size;
}

}  // namespace

int32_t most_probe_rows(const ModelOptions& options) {
  const int64_t num_sequences = options.num_blocks / blocks_of_sequence(options.block_size);
  return static_cast<int32_t>(std::min<int64_t>(std::min(options.max_rows, options.max_logit_rows),
                                                num_sequences * kRowsOfSequence));
}

Batch probe_batch(int32_t num_rows,
                  int32_t block_size,
                  int32_t num_tokens,
                  std::vector<int32_t>* blocks) {
  const int32_t num_sequences = (num_rows + kRowsOfSequence - 1) / kRowsOfSequence;
  const auto num_blocks = static_cast<size_t>(blocks_of_sequence(block_size));
  blocks->resize(static_cast<size_t>(num_sequences) * num_blocks);
  for (size_t i = 0; i < blocks->size(); ++i) (*blocks)[i] = static_cast<int32_t>(i);
  Batch batch;
  for (int32_t row = 0; row < num_rows; ++row) {
    batch.tokens.push_back(static_cast<int32_t>(row * kTokenStride % num_tokens));
    batch.positions.push_back(row % kRowsOfSequence);
    batch.sequence_of_row.push_back(row / kRowsOfSequence);
    batch.logit_rows.push_back(row);
  }
  for (size_t i = 0; i < static_cast<size_t>(num_sequences); ++i)
    batch.block_tables.emplace_back(std::span(*blocks).subspan(i * num_blocks, num_blocks));
  return batch;
}

StepLoad probe_load(int32_t num_rows) {
  StepLoad load{.num_rows = num_rows};
  for (int32_t row = 0; row < num_rows; ++row) {
    const int32_t position = row % kRowsOfSequence;
    load.row_positions += position + 1;
    const bool is_last = row + 1 == num_rows || position + 1 == kRowsOfSequence;
    if (is_last) load.kv_positions += position + 1;
  }
  return load;
}

std::vector<StepProbe> probe_steps(int32_t most_rows,
                                   const std::function<double(int32_t num_rows)>& run_step) {
  std::vector<StepProbe> probes;
  double total_s = run_step(1);  // the first one touches everything for the first time
  for (const int32_t num_rows : kRows) {
    if (num_rows > most_rows) continue;
    double shortest_s = 0;
    for (int32_t repeat = 0; repeat < kRepeats && (repeat == 0 || total_s < kLongestS); ++repeat) {
      const double step_s = run_step(num_rows);
      total_s += step_s;
      shortest_s = repeat == 0 ? step_s : std::min(shortest_s, step_s);
    }
    probes.push_back({probe_load(num_rows), shortest_s});
    if (total_s >= kLongestS) break;
  }
  return probes;
}

}  // namespace outrider
