// See bench_ops.h. The machine's bandwidth may change within seconds when others use it, so every
// measurement of the products stands between two of the plain read, and medians of those ratios are
// what is reported.
#include "runtime/ops/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/thread_pool.h"
#include "runtime/ops/half.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

constexpr size_t kReadBytes = size_t{1} << 30;
constexpr int kRepeats = 9;
constexpr std::array<int64_t, 9> kRowCounts = {1, 2, 3, 5, 9, 17, 32, 128, 512};
constexpr int64_t kTimedOnce = 64;  // row counts from here on are measured less often
constexpr int64_t kMostOutputs = 32000;
constexpr int64_t kMostInputs = 5632;

struct Shape {
  int64_t n_out;
  int64_t n_in;
};
// TinyLlama-1.1B: 22 layers of qkv, o, gate and up, down; then the head.
constexpr std::array<Shape, 4> kLayer = {
    Shape{2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}};
constexpr Shape kHead = {32000, 2048};
constexpr int kLayers = 22;

struct WeightFormat {
  const char* name;
  QuantFormat quantized;  // bits 0: bf16
};
constexpr std::array<WeightFormat, 3> kFormats = {
    WeightFormat{"bf16", {}}, {"int8", {8, 128}}, {"int4", {4, 128}}};

struct Model {
  WeightFormat format;
  std::vector<PackedMatrix> weights;
  size_t num_bytes = 0;
  int64_t num_weights = 0;
};

void add_matrix(Model& model, const Shape& shape, const std::vector<uint16_t>& values) {
  const QuantFormat& quantized = model.format.quantized;
  PackedMatrix matrix = quantized.bits == 0 ? PackedMatrix(shape.n_out, shape.n_in, DType::kBF16)
                                            : PackedMatrix(shape.n_out, shape.n_in, quantized);
  for (int64_t row = 0; row < shape.n_out; ++row) {
    matrix.fill_rows(row, values.data() + row % 64, 1, shape.n_in, DType::kBF16);
  }
  model.num_bytes += matrix.num_bytes();
  model.num_weights += shape.n_out * shape.n_in;
  model.weights.push_back(std::move(matrix));
}

Model make_model(const WeightFormat& format) {
  std::mt19937 generator(1);
  std::vector<uint16_t> values(static_cast<size_t>(kMostInputs + 64));
  for (uint16_t& value : values) {
    value = float_to_bf16((static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f) * 0.02f);
  }
  Model model{.format = format};
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Shape& shape : kLayer) add_matrix(model, shape, values);
  }
  add_matrix(model, kHead, values);
  return model;
}

double now_ms() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Bench {
  Context ctx;
  Model model;
  AlignedBytes read_array = allocate_bytes(kReadBytes);
  std::vector<float> in;
  std::vector<float> out;
  uint32_t read_mix = 0;

  Bench(int num_threads, const WeightFormat& format) : ctx(num_threads), model(make_model(format)) {
    in.assign(static_cast<size_t>(kRowCounts.back() * kMostInputs), 0.01f);
    out.resize(static_cast<size_t>(kRowCounts.back() * kMostOutputs));
    for (size_t i = 0; i < kReadBytes; i += 4096) read_array[i] = std::byte{1};
  }

  double read_gb_per_s();
  double step_ms(int64_t rows);
};

double Bench::read_gb_per_s() {
  std::vector<uint32_t> mixes(static_cast<size_t>(ctx.num_threads()) * 16);
  const double begin = now_ms();
  ctx.threads().run([&](int thread, int num) {
    const size_t part = kReadBytes / static_cast<size_t>(num) / 1024 * 1024;
    mixes[static_cast<size_t>(thread) * 16] = cpu::kernels_of(ctx.isa()).read_stream(
        read_array.get() + static_cast<size_t>(thread) * part, static_cast<int64_t>(part));
  });
  const double elapsed = now_ms() - begin;
  for (const uint32_t mix : mixes) read_mix ^= mix;
  return static_cast<double>(kReadBytes) / elapsed / 1e6;
}

double Bench::step_ms(int64_t rows) {
  const double begin = now_ms();
  for (const PackedMatrix& matrix : model.weights) linear(ctx, out.data(), in.data(), rows, matrix);
  return now_ms() - begin;
}

struct ReadSpeed {
  double median = 0;
  double best = 0;
};

struct Result {
  int64_t rows = 0;
  double ms = 0;
  double gb_per_s = 0;
  double share_of_read = 0;
  double times_one_row = 0;
  double best_ms = 0;
};

// Each round measures the read, one row, `rows` rows, and the read again.
Result measure(Bench& bench, int64_t rows, std::vector<double>& reads) {
  std::vector<double> times;
  std::vector<double> shares;
  std::vector<double> ratios;
  for (int i = 0; i < (rows < kTimedOnce ? kRepeats : 2); ++i) {
    const double before = bench.read_gb_per_s();
    const double one = bench.step_ms(1);
    const double many = rows == 1 ? one : bench.step_ms(rows);
    const double after = bench.read_gb_per_s();
    reads.insert(reads.end(), {before, after});
    times.push_back(many);
    ratios.push_back(many / one);
    shares.push_back(static_cast<double>(bench.model.num_bytes) / many / 1e6 /
                     ((before + after) / 2));
  }
  const double ms = median(times);
  return {rows,
          ms,
          static_cast<double>(bench.model.num_bytes) / ms / 1e6,
          median(shares),
          median(ratios),
          *std::min_element(times.begin(), times.end())};
}

void print_table(std::FILE* out,
                 const Bench& bench,
                 const ReadSpeed& read,
                 const std::vector<Result>& results) {
  fmt::print(out,
             "linear over {:.2f} GB of {} weights (1.1B llama shape), {} threads, {}\n",
             static_cast<double>(bench.model.num_bytes) / 1e9,
             bench.model.format.name,
             bench.ctx.num_threads(),
             isa_name(bench.ctx.isa()));
  fmt::print(out, "plain read: {:.1f} GB/s (median), {:.1f} (best)\n", read.median, read.best);
  fmt::print(out,
             "{:>5} {:>9} {:>8} {:>14} {:>10} {:>9} {:>9} {:>18}\n",
             "rows",
             "ms",
             "GB/s",
             "share of read",
             "x one row",
             "Gop/s",
             "best ms",
             "best of best read");
  for (const Result& result : results) {
    const double flops =
        2.0 * static_cast<double>(bench.model.num_weights * result.rows) / result.ms / 1e6;
    fmt::print(out,
               "{:>5} {:>9.2f} {:>8.1f} {:>13.1f}% {:>10.2f} {:>9.0f} {:>9.2f} {:>17.1f}%\n",
               result.rows,
               result.ms,
               result.gb_per_s,
               100 * result.share_of_read,
               result.times_one_row,
               flops,
               result.best_ms,
               100 * static_cast<double>(bench.model.num_bytes) / result.best_ms / 1e6 / read.best);
  }
}

void print_json(std::FILE* out,
                const Bench& bench,
                const ReadSpeed& read,
                const std::vector<Result>& results) {
  fmt::print(
      out,
      R"({{"threads":{},"isa":"{}","weight_bytes":{},"read_gb_per_s":{:.2f},"best_read_gb_per_s":{:.2f},"rows":[)",
      bench.ctx.num_threads(),
      isa_name(bench.ctx.isa()),
      bench.model.num_bytes,
      read.median,
      read.best);
  for (size_t i = 0; i < results.size(); ++i) {
    fmt::print(
        out,
        R"({}{{"rows":{},"ms":{:.3f},"gb_per_s":{:.2f},"share_of_read":{:.4f},"times_one_row":{:.4f},"best_ms":{:.3f}}})",
        i == 0 ? "" : ",",
        results[i].rows,
        results[i].ms,
        results[i].gb_per_s,
        results[i].share_of_read,
        results[i].times_one_row,
        results[i].best_ms);
  }
  fmt::print(out, "]");  // the object stays open: the other formats' follow within the first
}

}  // namespace

void run_ops_bench(int num_threads, bool json, std::FILE* out) {
  for (const WeightFormat& format : kFormats) {
    const auto bench = std::make_unique<Bench>(num_threads, format);
    bench->step_ms(1);
    std::vector<double> reads;
    std::vector<Result> results;
    for (const int64_t rows : kRowCounts) results.push_back(measure(*bench, rows, reads));
    const ReadSpeed read{median(reads), *std::max_element(reads.begin(), reads.end())};
    const bool is_first = &format == kFormats.data();
    if (json && !is_first) fmt::print(out, ",\"{}\":", format.name);
    (json ? print_json : print_table)(out, *bench, read, results);
    if (json && !is_first) fmt::print(out, "}}");
    if (!json) fmt::print(out, "\n");
    std::fflush(out);
  }
  if (json) fmt::print(out, "}}\n");
}

}  // namespace outrider::ops
