// See bench_ops.h. The machine's bandwidth and clock may change within seconds when others use it,
// so every measurement of the products stands between two of the plain read and of the peak loop,
// and medians of those ratios are what is reported.
#include "runtime/ops/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "runtime/ops/cpu/threads/thread_pool.h"
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
  Activations activations = Activations::kF32;

  bool rounds() const { return activations == Activations::kBF16; }
};
constexpr std::array<WeightFormat, 4> kFormats = {WeightFormat{"bf16", {}},
                                                  {"bf16", {}, Activations::kBF16},
                                                  {"int8", {8, 128}},
                                                  {"int4", {4, 128}}};
// Of the peak loop, per thread: some milliseconds.
constexpr int64_t kPeakRounds = 1 << 17;

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

// By the clock, and the processor time of all threads, which a busy machine disturbs less.
struct Taken {
  double ms = 0;
  double processor_ms = 0;
};

struct Speed {
  double gop_per_s = 0;
  double per_processor_s = 0;
};

struct Bench {
  Context ctx;
  Model model;
  AlignedBytes read_array = allocate_bytes(kReadBytes);
  std::vector<float> in;
  std::vector<float> out;
  uint32_t read_mix = 0;

  Bench(int num_threads, const WeightFormat& format) : ctx(num_threads), model(make_model(format)) {
    ctx.set_activations(format.activations);
    in.assign(static_cast<size_t>(kRowCounts.back() * kMostInputs), 0.01f);
    out.resize(static_cast<size_t>(kRowCounts.back() * kMostOutputs));
    for (size_t i = 0; i < kReadBytes; i += 4096) read_array[i] = std::byte{1};
  }

  double read_gb_per_s();
  // What the multipliers that this format uses can do, on all threads, in Gop/s of time and of
  // processor time; of byte products it is not measured (0).
  Speed peak();
  Taken step(int64_t rows);

 private:
  double processor_ms();
  Taken time_of(const auto& work) {
    const double processor_begin = processor_ms();
    const double begin = now_ms();
    work();
    const double end = now_ms();
    return {end - begin, processor_ms() - processor_begin};
  }
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

// Of all threads so far. Each asks for its own: what the system knows of others is some ticks old.
double Bench::processor_ms() {
  std::vector<double> times(static_cast<size_t>(ctx.num_threads()) * 8);
  ctx.threads().run([&](int thread, int) {
    std::timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    times[static_cast<size_t>(thread) * 8] =
        static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  });
  return std::accumulate(times.begin(), times.end(), 0.0);
}

Speed Bench::peak() {
  auto* loop = model.format.rounds() ? cpu::rounded_products_of(ctx).peak
                                     : cpu::kernels_of(ctx.isa()).rounded.peak;
  if (model.format.quantized.bits != 0) loop = cpu::quant_kernels_of(ctx.isa()).peak;
  if (loop == nullptr) return {};
  std::vector<int64_t> ops(static_cast<size_t>(ctx.num_threads()) * 8);
  std::vector<float> sinks(static_cast<size_t>(ctx.num_threads()) * 16, 1.0f);
  const Taken taken = time_of([&] {
    ctx.threads().run([&](int thread, int) {
      const auto own = static_cast<size_t>(thread);
      ops[own * 8] = loop(kPeakRounds, &sinks[own * 16]);
    });
  });
  const auto all = static_cast<double>(std::accumulate(ops.begin(), ops.end(), int64_t{0}));
  return {all / taken.ms / 1e6, all / taken.processor_ms / 1e6};
}

Taken Bench::step(int64_t rows) {
  return time_of([&] {
    for (const PackedMatrix& matrix : model.weights) {
      linear(ctx, out.data(), in.data(), rows, matrix);
    }
  });
}

struct Speeds {
  std::vector<double> reads;  // GB/s
  Speed peak;                 // the best; 0: not measured

  double read() const { return median(reads); }
  double best_read() const { return *std::max_element(reads.begin(), reads.end()); }
  void add_peak(const Speed& seen) {
    peak.gop_per_s = std::max(peak.gop_per_s, seen.gop_per_s);
    peak.per_processor_s = std::max(peak.per_processor_s, seen.per_processor_s);
  }
};

struct Result {
  int64_t rows = 0;
  double ms = 0;
  double processor_ms = 0;
  double gb_per_s = 0;
  double share_of_read = 0;
  double times_one_row = 0;
  double best_ms = 0;
  double gops = 0;  // 1e9 multiplications and additions of one step

  double gop_per_s() const { return gops / ms * 1e3; }
  // Of the best peak seen; 0: not measured.
  double share_of_peak(const Speeds& speeds) const {
    return speeds.peak.gop_per_s > 0 ? gop_per_s() / speeds.peak.gop_per_s : 0;
  }
  double processor_share_of_peak(const Speeds& speeds) const {
    if (!(speeds.peak.per_processor_s > 0)) return 0;
    return gops / processor_ms * 1e3 / speeds.peak.per_processor_s;
  }
};

// Each round measures the peak, the read, one row, `rows` rows, the read and the peak again.
Result measure(Bench& bench, int64_t rows, Speeds& speeds) {
  const auto bytes = static_cast<double>(bench.model.num_bytes);
  std::vector<double> times;
  std::vector<double> processor_times;
  std::vector<double> shares;
  std::vector<double> ratios;
  for (int i = 0; i < (rows < kTimedOnce ? kRepeats : 2); ++i) {
    speeds.add_peak(bench.peak());
    const double before = bench.read_gb_per_s();
    const Taken one = bench.step(1);
    const Taken many = rows == 1 ? one : bench.step(rows);
    const double after = bench.read_gb_per_s();
    speeds.add_peak(bench.peak());
    speeds.reads.insert(speeds.reads.end(), {before, after});
    times.push_back(many.ms);
    processor_times.push_back(many.processor_ms);
    ratios.push_back(many.ms / one.ms);
    shares.push_back(bytes / many.ms / 1e6 / ((before + after) / 2));
  }
  const double ms = median(times);
  return {.rows = rows,
          .ms = ms,
          .processor_ms = median(processor_times),
          .gb_per_s = bytes / ms / 1e6,
          .share_of_read = median(shares),
          .times_one_row = median(ratios),
          .best_ms = *std::min_element(times.begin(), times.end()),
          .gops = 2e-9 * static_cast<double>(bench.model.num_weights * rows)};
}

std::string percent(double share) { return share > 0 ? fmt::format("{:.1f}%", 100 * share) : "-"; }

const char* activations_name(const WeightFormat& format) {
  if (format.quantized.bits != 0) return "int8";
  return format.rounds() ? "bfloat16" : "float32";
}

void print_table(std::FILE* out,
                 const Bench& bench,
                 const Speeds& speeds,
                 const std::vector<Result>& results) {
  fmt::print(out,
             "linear over {:.2f} GB of {} weights (1.1B llama shape), {} activations, {} threads, "
             "{}{}\n",
             static_cast<double>(bench.model.num_bytes) / 1e9,
             bench.model.format.name,
             activations_name(bench.model.format),
             bench.ctx.num_threads(),
             isa_name(bench.ctx.isa()),
             bench.model.format.rounds() && bench.ctx.uses_bf16_dot() ? " with bf16 dot" : "");
  fmt::print(
      out, "plain read: {:.1f} GB/s (median), {:.1f} (best)", speeds.read(), speeds.best_read());
  if (speeds.peak.gop_per_s > 0) {
    fmt::print(out, "; multiplying in registers: {:.0f} Gop/s (best)", speeds.peak.gop_per_s);
  }
  fmt::print(out,
             "\n{:>5} {:>9} {:>8} {:>14} {:>10} {:>7} {:>8} {:>15} {:>9} {:>18}\n",
             "rows",
             "ms",
             "GB/s",
             "share of read",
             "x one row",
             "Gop/s",
             "of peak",
             "processor time",
             "best ms",
             "best of best read");
  for (const Result& result : results) {
    fmt::print(
        out,
        "{:>5} {:>9.2f} {:>8.1f} {:>14} {:>10.2f} {:>7.0f} {:>8} {:>15} {:>9.2f} {:>17.1f}%\n",
        result.rows,
        result.ms,
        result.gb_per_s,
        percent(result.share_of_read),
        result.times_one_row,
        result.gop_per_s(),
        percent(result.share_of_peak(speeds)),
        percent(result.processor_share_of_peak(speeds)),
        result.best_ms,
        100 * static_cast<double>(bench.model.num_bytes) / result.best_ms / 1e6 /
            speeds.best_read());
  }
}

void print_json(std::FILE* out,
                const Bench& bench,
                const Speeds& speeds,
                const std::vector<Result>& results) {
  fmt::print(
      out,
      R"({{"weights":"{}","activations":"{}","threads":{},"isa":"{}","bf16_dot":{},"weight_bytes":{},"read_gb_per_s":{:.2f},"best_read_gb_per_s":{:.2f},"peak_gop_per_s":{:.1f},"rows":[)",
      bench.model.format.name,
      activations_name(bench.model.format),
      bench.ctx.num_threads(),
      isa_name(bench.ctx.isa()),
      bench.ctx.uses_bf16_dot(),
      bench.model.num_bytes,
      speeds.read(),
      speeds.best_read(),
      speeds.peak.gop_per_s);
  for (size_t i = 0; i < results.size(); ++i) {
    fmt::print(
        out,
        R"({}{{"rows":{},"ms":{:.3f},"gb_per_s":{:.2f},"share_of_read":{:.4f},"times_one_row":{:.4f},"gop_per_s":{:.1f},"share_of_peak":{:.4f},"processor_share_of_peak":{:.4f},"best_ms":{:.3f}}})",
        i == 0 ? "" : ",",
        results[i].rows,
        results[i].ms,
        results[i].gb_per_s,
        results[i].share_of_read,
        results[i].times_one_row,
        results[i].gop_per_s(),
        results[i].share_of_peak(speeds),
        results[i].processor_share_of_peak(speeds),
        results[i].best_ms);
  }
  fmt::print(out, "]}}");
}

}  // namespace

void run_ops_bench(int num_threads, bool json, std::FILE* out) {
  if (json) fmt::print(out, "[");
  for (const WeightFormat& format : kFormats) {
    const auto bench = std::make_unique<Bench>(num_threads, format);
    bench->step(1);
    Speeds speeds;
    std::vector<Result> results;
    for (const int64_t rows : kRowCounts) results.push_back(measure(*bench, rows, speeds));
    if (json && &format != kFormats.data()) fmt::print(out, ",");
    (json ? print_json : print_table)(out, *bench, speeds, results);
    if (!json) fmt::print(out, "\n");
    std::fflush(out);
  }
  if (json) fmt::print(out, "]\n");
}

}  // namespace outrider::ops
