// A step of one rank's model with random bf16 weights, by rows of one sequence: under numerics fast
// and strict. `outrider bench verify-curve` sets such steps beside a plain read, of any model.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"
#include "models/weights/weights.h"
#include "runtime/ops/ops.h"

namespace outrider {
namespace {

constexpr int32_t kContext = 64;  // positions computed before the timed steps
constexpr int32_t kMostRows = 512;
constexpr int32_t kBlockSize = 16;

// Both kinds of numerics from the same weights.
class Decoder {
 public:
  explicit Decoder(const std::string& shape)
      : config_(synthetic_shape(shape)),
        group_(make_solo_group()),
        context_(ops::plan_threads({})),
        blocks_((kContext + kMostRows) / kBlockSize) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    const std::shared_ptr<const Weights> weights =
        random_weights(config_, shard_model(config_, 0, 1), 42, ops::DType::kBF16);
    matrix_bytes_ = weights->matrix_bytes();
    for (const Numerics numerics : {Numerics::kFast, Numerics::kStrict}) {
      std::unique_ptr<Transformer>& model = model_of(numerics);
      model = std::make_unique<Transformer>(
          config_,
          weights,
          shard_model(config_, 0, 1, numerics),
          TransformerOptions{.block_size = kBlockSize,
                             .num_blocks = static_cast<int32_t>(blocks_.size()),
                             .max_rows = kMostRows,
                             .max_logit_rows = kMostRows},
          *group_,
          context_);
      step(numerics, 0, kContext);
    }
  }

  size_t matrix_bytes() const { return matrix_bytes_; }

  void step(Numerics numerics, int32_t first_position, int32_t rows) {
    Batch batch;
    batch.block_tables.emplace_back(blocks_);
    for (int32_t row = 0; row < rows; ++row) {
      batch.tokens.push_back((first_position + row) * 7919 % config_.vocab_size);
      batch.positions.push_back(first_position + row);
      batch.sequence_of_row.push_back(0);
      // Of a prompt only the last row's, else all rows' as in a verification.
      if (rows <= 32 || row + 1 == rows) batch.logit_rows.push_back(row);
    }
    benchmark::DoNotOptimize(model_of(numerics)->forward(batch).data());
  }

 private:
  std::unique_ptr<Transformer>& model_of(Numerics numerics) {
    return numerics == Numerics::kStrict ? strict_ : fast_;
  }

  ModelConfig config_;
  std::unique_ptr<TargetGroup> group_;
  ops::Context context_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<Transformer> fast_;
  std::unique_ptr<Transformer> strict_;
  size_t matrix_bytes_ = 0;
};

Decoder& decoder_of(const std::string& shape) {
  static std::string held;
  static std::unique_ptr<Decoder> decoder;
  if (held != shape) {
    decoder.reset();
    decoder = std::make_unique<Decoder>(shape);
    held = shape;
  }
  return *decoder;
}

void forward(benchmark::State& state, const std::string& shape, Numerics numerics) {
  Decoder& decoder = decoder_of(shape);
  for (auto _ : state) decoder.step(numerics, kContext, static_cast<int32_t>(state.range(0)));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(decoder.matrix_bytes()));
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const char* shape : {"tinyllama-1.1b", "tinyllama-1.1b@1"}) {
    for (const Numerics numerics : {Numerics::kFast, Numerics::kStrict}) {
      const char* name = numerics == Numerics::kStrict ? "strict" : "fast";
      benchmark::RegisterBenchmark(
          fmt::format("forward/{}/{}", shape, name).c_str(),
          [shape, numerics](benchmark::State& state) { forward(state, shape, numerics); })
          ->ArgName("rows")
          ->ArgsProduct({{1, 2, 3, 5, 9, 17, kMostRows}})
          ->Unit(benchmark::kMillisecond)
          ->MeasureProcessCPUTime()
          ->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace outrider
