// See emulated_shard.h.
#include "runtime/commands/plan/emulated_shard.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "runtime/ranks/loading/model_loader.h"
#include "runtime/ranks/target/logit_scanner.h"

namespace outrider {
namespace {

constexpr int32_t kFirstPosition = 64;
constexpr int kSteps = 9;

// The other members say nothing.
class NullGroup final : public TargetGroup {
 public:
  explicit NullGroup(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void all_reduce_sum(std::span<float>, Fold) override {}
  void all_reduce_sum(std::span<uint64_t>) override {}
  void all_reduce_max(std::span<uint64_t>) override {}
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::fill(all.begin(), all.end(), std::byte{0});
    std::copy(mine.begin(), mine.end(), all.begin());
  }

 private:
  const int size_;
};

double step_ms(Model& model, std::span<const int32_t> blocks, int32_t first, int32_t rows) {
  Batch batch;
  batch.block_tables.push_back(blocks);
  for (int32_t row = 0; row < rows; ++row) {
    batch.tokens.push_back((first + row) % model.config().vocab_size);
    batch.positions.push_back(first + row);
    batch.sequence_of_row.push_back(0);
    batch.logit_rows.push_back(row);
  }
  const auto begin = std::chrono::steady_clock::now();
  model.forward(batch);
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

}  // namespace

std::vector<EmulatedStep> time_shard(const RunConfig& config,
                                     int num_ranks,
                                     const std::vector<int32_t>& rows) {
  const int32_t most_rows = *std::max_element(rows.begin(), rows.end());
  RunConfig own = config;
  own.tensor_parallel_size = num_ranks;
  own.speculative = {};
  own.device_sums = "staged";  // no memory is set aside for sums that nobody makes
  own.max_num_seqs = 1;
  own.max_model_len = kFirstPosition + most_rows;
  own.max_num_batched_tokens = std::max(kFirstPosition, most_rows);
  const RankLayout layout = {.num_targets = num_ranks};
  const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  LoadedModel loaded = load_target(own,
                                   layout,
                                   0,
                                   own.threads > 0 ? own.threads : cores,
                                   std::make_unique<NullGroup>(num_ranks));
  begin_alone(loaded);
  keep_logits_on_device(*loaded.model);
  std::vector<int32_t> blocks(
      static_cast<size_t>((own.max_model_len + own.block_size - 1) / own.block_size));
  std::iota(blocks.begin(), blocks.end(), 0);
  step_ms(*loaded.model, blocks, 0, kFirstPosition);
  std::vector<EmulatedStep> steps;
  for (const int32_t num_rows : rows) {
    std::vector<double> times;
    for (int i = 0; i < kSteps; ++i) {
      times.push_back(step_ms(*loaded.model, blocks, kFirstPosition, num_rows));
    }
    std::nth_element(times.begin(), times.begin() + kSteps / 2, times.end());
    steps.push_back({num_rows, times[kSteps / 2]});
  }
  return steps;
}

}  // namespace outrider
