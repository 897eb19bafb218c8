// Steps of a synthetic model with a profile in the context; see forward_profile.h. Single process,
// one rank.
#include "runtime/commands/bench/machine/forward_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/profile.h"

namespace outrider {
namespace {

struct Step {
  int32_t context;  // positions computed before
  int32_t rows;
};
constexpr std::array<Step, 11> kSteps = {{{0, 512},
                                          {512, 1},
                                          {512, 5},
                                          {512, 17},
                                          {512, 512},
                                          {2048, 1},
                                          {2048, 5},
                                          {2048, 17},
                                          {2048, 512},
                                          {4096, 1},
                                          {4096, 5}}};
constexpr int32_t kMaxRows = 512;
constexpr int32_t kPositions = 4096 + kMaxRows;
constexpr int32_t kBlockSize = 16;

struct Measured {
  ops::OpProfile ops;
  double step_ms = 0.0;
  uint32_t hand_overs = 0;  // jobs given to all threads
};

class ProfiledModel {
 public:
  explicit ProfiledModel(const ForwardBenchOptions& options)
      : config_(synthetic_shape(options.shape)),
        group_(make_solo_group()),
        ctx_(options.num_threads, ops::isa_from_name(options.isa)),
        blocks_(kPositions / kBlockSize) {
    ctx_.set_activations(options.activations);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    const ModelShard shard = shard_model(config_, 0, 1);
    model_ = std::make_unique<Transformer>(
        config_,
        random_weights(config_, shard, 42, ops::DType::kBF16),
        shard,
        TransformerOptions{.block_size = kBlockSize,
                           .num_blocks = static_cast<int32_t>(blocks_.size()),
                           .max_rows = kMaxRows,
                           .max_logit_rows = kMaxRows},
        *group_,
        ctx_);
    // Keys and values everywhere: pages that nobody wrote are one page of zeros in a cache.
    for (int32_t at = 0; at < kPositions; at += kMaxRows) run({at, kMaxRows});
  }

  const char* isa() const { return ops::isa_name(ctx_.isa()); }

  // The logits of the last row only, as of a prompt, beyond the rows of a verification.
  Measured run(const Step& step) {
    Batch batch;
    batch.block_tables.emplace_back(blocks_);
    for (int32_t row = 0; row < step.rows; ++row) {
      batch.tokens.push_back((step.context + row) * 7919 % config_.vocab_size);
      batch.positions.push_back(step.context + row);
      batch.sequence_of_row.push_back(0);
      if (step.rows <= 32 || row + 1 == step.rows) batch.logit_rows.push_back(row);
    }
    Measured measured;
    ctx_.set_profile(&measured.ops);
    const uint32_t before = ctx_.num_hand_overs();
    const auto start = std::chrono::steady_clock::now();
    model_->forward(batch);
    const auto spent = std::chrono::steady_clock::now() - start;
    measured.step_ms = std::chrono::duration<double, std::milli>(spent).count();
    measured.hand_overs = ctx_.num_hand_overs() - before;
    ctx_.set_profile(nullptr);
    return measured;
  }

 private:
  ModelConfig config_;
  std::unique_ptr<TargetGroup> group_;
  ops::Context ctx_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<Transformer> model_;
};

// Of each kind the fastest of the steps: a busy machine makes others slower, none faster.
Measured fastest(ProfiledModel& model, const Step& step, int steps) {
  Measured best = model.run(step);
  for (int i = 1; i < steps; ++i) {
    const Measured next = model.run(step);
    best.step_ms = std::min(best.step_ms, next.step_ms);
    for (size_t kind = 0; kind < best.ops.of_kind.size(); ++kind) {
      double& seconds = best.ops.of_kind[kind].seconds;
      seconds = std::min(seconds, next.ops.of_kind[kind].seconds);
    }
  }
  return best;
}

void print_row(const Step& step, const Measured& measured, bool json, std::FILE* out) {
  std::string cells;
  for (size_t kind = 0; kind < measured.ops.of_kind.size(); ++kind) {
    const double ms = measured.ops.of_kind[kind].seconds * 1e3;
    cells += json ? fmt::format(",\"{}\":{:.5f}", ops::kOpKindNames[kind], ms)
                  : fmt::format(" {:>13.3f}", ms);
  }
  if (json) {
    fmt::print(out,
               "{{\"rows\":{},\"context\":{},\"step_ms\":{:.5f},\"hand_overs\":{}{}}}\n",
               step.rows,
               step.context,
               measured.step_ms,
               measured.hand_overs,
               cells);
  } else {
    fmt::print(out,
               "{:>4} {:>7} {:>9.3f}{} {:>10}\n",
               step.rows,
               step.context,
               measured.step_ms,
               cells,
               measured.hand_overs);
  }
  std::fflush(out);
}

}  // namespace

void run_forward_profile(const ForwardBenchOptions& options, std::FILE* out) {
  if (options.steps < 1 || options.steps > 100'000) {
    throw Error("the number of steps of a forward profile must be from 1 to 100000");
  }
  ProfiledModel model(options);
  if (!options.json) {
    fmt::print(out,
               "{} bf16, {}, {} threads: ms of each kind of op, fastest of {} steps\n",
               options.shape,
               model.isa(),
               options.num_threads,
               options.steps);
    fmt::print(out, "rows context      step");
    for (const char* name : ops::kOpKindNames) fmt::print(out, " {:>13}", name);
    fmt::print(out, " hand-overs\n");
  }
  for (const Step& step : kSteps) {
    print_row(step, fastest(model, step, options.steps), options.json, out);
  }
}

}  // namespace outrider
