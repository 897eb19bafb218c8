// Alternating measurement of decode steps and plain reads; see forward_bench.h. Single process, one
// rank.
#include "runtime/commands/bench/machine/forward_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <numeric>
#include <vector>

#include "models/forward/transformer.h"
#include "models/synthetic/synthetic.h"
#include "models/weights/weights.h"
#include "runtime/base/error.h"
#include "runtime/ops/ops.h"
#include "runtime/ops/read_loop.h"

namespace outrider {
namespace {

constexpr std::array<int, 6> kCurveRows = {1, 2, 3, 5, 9, 17};
constexpr std::array<int, 2> kStrictRows = {1, 5};
constexpr int32_t kContext = 64;  // positions computed before the timed steps
constexpr int32_t kBlockSize = 16;

double time_ms(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(end - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// One sequence of one model, stepped at a fixed context so that every timed step does the same
// work; under both kinds of numerics, from the same weights.
class Decoder {
 public:
  explicit Decoder(const ForwardBenchOptions& options)
      : config_(synthetic_shape(options.shape)),
        group_(make_solo_group()),
        ctx_(options.num_threads, ops::isa_from_name(options.isa)),
        blocks_((kContext + kCurveRows.back()) / kBlockSize + 1) {
    ctx_.set_activations(options.activations);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shared_ptr<const Weights> weights;
    load_ms_ = time_ms([&] {
      weights = random_weights(config_, shard_model(config_, 0, 1), 42, ops::DType::kBF16);
    });
    matrix_bytes_ = weights->matrix_bytes();
    for (const Numerics numerics : {Numerics::kFast, Numerics::kStrict}) {
      std::unique_ptr<Transformer>& model = model_of(numerics);
      model = std::make_unique<Transformer>(
          config_,
          weights,
          shard_model(config_, 0, 1, numerics),
          TransformerOptions{.block_size = kBlockSize,
                             .num_blocks = static_cast<int32_t>(blocks_.size()),
                             .max_rows = kContext,
                             .max_logit_rows = kContext},
          *group_,
          ctx_);
      step_ms(*model, 0, kContext);
    }
  }

  size_t matrix_bytes() const { return matrix_bytes_; }
  double load_ms() const { return load_ms_; }
  const char* activations() const {
    return ctx_.activations() == ops::Activations::kBF16 ? "bfloat16" : "float32";
  }
  ops::Context& context() { return ctx_; }
  const char* isa() const { return ops::isa_name(ctx_.isa()); }

  double decode_ms(int rows, Numerics numerics = Numerics::kFast) {
    return step_ms(*model_of(numerics), kContext, rows);
  }

 private:
  std::unique_ptr<Transformer>& model_of(Numerics numerics) {
    return numerics == Numerics::kStrict ? strict_model_ : model_;
  }

  double step_ms(Transformer& model, int32_t first_position, int rows) {
    Batch batch;
    batch.block_tables.emplace_back(blocks_);
    for (int32_t row = 0; row < rows; ++row) {
      batch.tokens.push_back((first_position + row) * 7919 % config_.vocab_size);
      batch.positions.push_back(first_position + row);
      batch.sequence_of_row.push_back(0);
      batch.logit_rows.push_back(row);
    }
    return time_ms([&] { model.forward(batch); });
  }

  ModelConfig config_;
  std::unique_ptr<TargetGroup> group_;
  ops::Context ctx_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Transformer> strict_model_;
  size_t matrix_bytes_ = 0;
  double load_ms_ = 0.0;
};

// Of a strict step, and against a fast one.
struct StrictCost {
  double step_ms = 0.0;
  double ratio = 0.0;
  double cpu_ratio = 0.0;  // of processor time, which a busy machine disturbs less
};

struct Figures {
  double step_ms = 0.0;
  double decode_gb_per_s = 0.0;
  double read_gb_per_s = 0.0;
  double share_percent = 0.0;
  std::array<double, kCurveRows.size()> curve_ms = {};
  std::array<StrictCost, kStrictRows.size()> strict = {};
};

// Decode step, read loop, decode step, read loop, ...: what disturbs the machine disturbs both.
void measure_decode(Decoder& decoder, ops::ReadLoop& reader, int steps, Figures& figures) {
  std::vector<double> step_times;
  std::vector<double> read_times;
  std::vector<double> shares;
  decoder.decode_ms(1);
  reader.run_ms();
  const double bytes_ratio =
      static_cast<double>(decoder.matrix_bytes()) / static_cast<double>(reader.num_bytes());
  for (int step = 0; step < steps; ++step) {
    step_times.push_back(decoder.decode_ms(1));
    read_times.push_back(reader.run_ms());
    shares.push_back(100.0 * bytes_ratio * read_times.back() / step_times.back());
  }
  figures.step_ms = median(step_times);
  figures.decode_gb_per_s = static_cast<double>(decoder.matrix_bytes()) / figures.step_ms / 1e6;
  figures.read_gb_per_s = static_cast<double>(reader.num_bytes()) / median(read_times) / 1e6;
  figures.share_percent = median(shares);
}

// The rows of a verification, in turn, for the same reason.
void measure_curve(Decoder& decoder, int steps, Figures& figures) {
  std::array<std::vector<double>, kCurveRows.size()> times;
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < kCurveRows.size(); ++i) {
      times[i].push_back(decoder.decode_ms(kCurveRows[i]));
    }
  }
  for (size_t i = 0; i < kCurveRows.size(); ++i) figures.curve_ms[i] = median(times[i]);
}

struct StepTimes {
  double wall_ms = 0.0;
  double cpu = 0.0;  // of all threads, in clock ticks
};

StepTimes timed_step(Decoder& decoder, int rows, Numerics numerics) {
  const std::clock_t start = std::clock();
  StepTimes times;
  times.wall_ms = decoder.decode_ms(rows, numerics);
  times.cpu = static_cast<double>(std::clock() - start);
  return times;
}

// Strict against fast, step by step, each first in turn; the ratios are medians over the turns.
void measure_strict(Decoder& decoder, int steps, Figures& figures) {
  for (size_t i = 0; i < kStrictRows.size(); ++i) {
    std::vector<double> times;
    std::vector<double> ratios;
    std::vector<double> cpu_ratios;
    for (int step = 0; step < steps; ++step) {
      std::array<StepTimes, 2> taken;  // fast, strict
      for (const int turn : {step % 2, 1 - step % 2}) {
        taken[static_cast<size_t>(turn)] =
            timed_step(decoder, kStrictRows[i], turn == 0 ? Numerics::kFast : Numerics::kStrict);
      }
      times.push_back(taken[1].wall_ms);
      ratios.push_back(taken[1].wall_ms / taken[0].wall_ms);
      cpu_ratios.push_back(taken[1].cpu / std::max(1.0, taken[0].cpu));
    }
    figures.strict[i] = {median(times), median(ratios), median(cpu_ratios)};
  }
}

void print_table(const ForwardBenchOptions& options,
                 const Decoder& decoder,
                 const Figures& figures,
                 std::FILE* out) {
  fmt::print(out,
             "{} bf16, {} activations, {}, {} threads, context {}, medians of {} steps\n",
             options.shape,
             decoder.activations(),
             decoder.isa(),
             options.num_threads,
             kContext,
             options.steps);
  fmt::print(out, "weights made and packed  {:10.1f} s\n", decoder.load_ms() / 1e3);
  fmt::print(out, "decode, batch 1          {:10.2f} tokens/s\n", 1e3 / figures.step_ms);
  fmt::print(out, "weights read by it       {:10.2f} GB/s\n", figures.decode_gb_per_s);
  fmt::print(out, "plain read loop          {:10.2f} GB/s\n", figures.read_gb_per_s);
  fmt::print(out, "share                    {:10.1f} %\n", figures.share_percent);
  for (size_t i = 0; i < kCurveRows.size(); ++i) {
    fmt::print(out,
               "step of {:2} rows          {:10.2f} ms  {:.2f} x one row\n",
               kCurveRows[i],
               figures.curve_ms[i],
               figures.curve_ms[i] / figures.curve_ms[0]);
  }
  for (size_t i = 0; i < kStrictRows.size(); ++i) {
    fmt::print(
        out,
        "strict, step of {:2} rows  {:10.2f} ms  {:.3f} x fast, {:.3f} x its processor time\n",
        kStrictRows[i],
        figures.strict[i].step_ms,
        figures.strict[i].ratio,
        figures.strict[i].cpu_ratio);
  }
}

void print_json(const ForwardBenchOptions& options,
                const Decoder& decoder,
                const Figures& figures,
                std::FILE* out) {
  std::string curve;
  for (size_t i = 0; i < kCurveRows.size(); ++i) {
    curve += fmt::format("{}\"{}\":{:.4f}", i == 0 ? "" : ",", kCurveRows[i], figures.curve_ms[i]);
  }
  std::string strict;
  for (size_t i = 0; i < kStrictRows.size(); ++i) {
    strict += fmt::format(
        "{}\"{}\":{{\"step_ms\":{:.4f},\"ratio_to_fast\":{:.4f},\"cpu_ratio_to_fast\":{:.4f}}}",
        i == 0 ? "" : ",",
        kStrictRows[i],
        figures.strict[i].step_ms,
        figures.strict[i].ratio,
        figures.strict[i].cpu_ratio);
  }
  fmt::print(out,
             "{{\"shape\":\"{}\",\"dtype\":\"bf16\",\"activation_dtype\":\"{}\",\"isa\":\"{}\","
             "\"threads\":{},\"steps\":{},"
             "\"weight_bytes\":{},\"load_s\":{:.3f},\"step_ms\":{:.4f},\"tokens_per_s\":{:.4f},"
             "\"decode_gb_per_s\":{:.4f},\"read_gb_per_s\":{:.4f},\"share_percent\":{:.2f},"
             "\"step_ms_by_rows\":{{{}}},\"strict_by_rows\":{{{}}}}}\n",
             options.shape,
             decoder.activations(),
             decoder.isa(),
             options.num_threads,
             options.steps,
             decoder.matrix_bytes(),
             decoder.load_ms() / 1e3,
             figures.step_ms,
             1e3 / figures.step_ms,
             figures.decode_gb_per_s,
             figures.read_gb_per_s,
             figures.share_percent,
             curve,
             strict);
}

}  // namespace

void run_forward_bench(const ForwardBenchOptions& options, std::FILE* out) {
  if (options.steps < 1 || options.steps > 100'000) {
    throw Error("the number of steps of a forward benchmark must be from 1 to 100000");
  }
  if (options.num_threads < 1 || options.num_threads > 1024) {
    throw Error("the number of threads of a forward benchmark must be from 1 to 1024");
  }
  Decoder decoder(options);
  ops::ReadLoop reader(decoder.context(), decoder.matrix_bytes());
  Figures figures;
  measure_decode(decoder, reader, options.steps, figures);
  measure_curve(decoder, options.steps, figures);
  measure_strict(decoder, options.steps, figures);
  (options.json ? print_json : print_table)(options, decoder, figures, out);
  std::fflush(out);
}

}  // namespace outrider
