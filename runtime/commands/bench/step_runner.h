// Steps of one sequence on the target ranks of a job, timed: what verify-curve and prefill are made
// of. Every rank makes the same calls; times are the caller's rank's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ops/ceilings.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

enum class StepLogits { kAllRows, kLastRow };  // of a verification; of a prompt

class StepRunner {
 public:
  // context's config must hold num_positions in max_model_len; context must outlive this.
  StepRunner(const TargetContext& context, int32_t num_positions);

  // The step computes positions [first_position, first_position + rows) with any tokens; keys and
  // values before it are what earlier steps left there. Ranks start together.
  double step_ms(int32_t first_position, int32_t rows, StepLogits logits);
  // Of the last step: its part in the sums over the ranks, and what this rank handed over there.
  double exchange_ms() const { return exchange_ms_; }
  double exchange_bytes() const { return exchange_bytes_; }
  // And the bytes of weights that it read.
  double step_bytes() const { return static_cast<double>(context_.loaded.model->step_bytes()); }
  // All positions before it, in steps of at most max_num_batched_tokens.
  void fill(int32_t num_positions);
  // Whether this machine's ceilings can be measured in turns with the steps: on CPUs. Those of GPUs
  // are gpu_probe's (docs/how-to/use-a-gpu.md).
  bool has_ceilings() const { return reader_.has_value(); }
  // One plain read of as many bytes as this rank's products read; ranks start together.
  double read_ms();

  // GFLOP/s of all ranks' multipliers together, this rank's taken for each; ranks start together.
  double peak_gflops();

  double bytes_per_step() const {
    return static_cast<double>(context_.loaded.model->matrix_bytes());
  }
  double bytes_per_read() const { return static_cast<double>(reader_->num_bytes()); }
  bool reports() const { return context_.world.rank() == 0; }

 private:
  void meet();

  const TargetContext& context_;
  std::vector<int32_t> blocks_;
  std::optional<ops::ReadLoop> reader_;
  double exchange_ms_ = 0;
  double exchange_bytes_ = 0;
};

// Floating-point operations of a step, over all ranks: two a weight and row, and the attention over
// all positions up to each row's.
double step_operations(const ModelConfig& config,
                       int32_t first_position,
                       int32_t rows,
                       StepLogits logits);

// "model synth:..., 2 target rank(s) of 1 thread(s), avx512, bf16 activations": for titles.
std::string describe_target(const TargetContext& context);

}  // namespace outrider
