// The matrix products of a model of 1.1B parameters, by weight format and rows, beside a plain read
// of memory and products in registers: which of the two a step is bound by, and how near it comes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <random>
#include <vector>

#include "runtime/ops/ceilings.h"
#include "runtime/ops/half.h"
#include "runtime/ops/ops.h"

namespace outrider::ops {
namespace {

constexpr size_t kReadBytes = size_t{1} << 30;
constexpr int64_t kMostRows = 512;
constexpr int64_t kMostOutputs = 32000;
constexpr int64_t kMostInputs = 5632;

struct Shape {
  int64_t n_out;
  int64_t n_in;
};
// TinyLlama-1.1B: 22 layers of qkv, o, gate and up, down; then the head.
constexpr Shape kLayer[] = {{2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}};
constexpr Shape kHead = {32000, 2048};
constexpr int kLayers = 22;

struct WeightFormat {
  const char* name;
  QuantFormat quantized;  // bits 0: bf16
  Activations activations = Activations::kF32;
};
constexpr WeightFormat kFormats[] = {
    {"bf16", {}}, {"bf16_rounded", {}, Activations::kBF16}, {"int8", {8, 128}}, {"int4", {4, 128}}};

// As many threads as this process may use CPUs.
std::unique_ptr<Context> make_context(Activations activations) {
  auto context = std::make_unique<Context>(plan_threads({}));
  context->set_activations(activations);
  return context;
}

struct Products {
  std::unique_ptr<Context> context;
  std::vector<PackedMatrix> weights;
  size_t num_bytes = 0;
  int64_t num_weights = 0;
  std::vector<float> in = std::vector<float>(kMostRows * kMostInputs, 0.01f);
  std::vector<float> out = std::vector<float>(kMostRows * kMostOutputs);

  explicit Products(const WeightFormat& format) : context(make_context(format.activations)) {
    std::mt19937 generator(1);
    std::vector<uint16_t> values(kMostInputs + 64);
    for (uint16_t& value : values) {
      value = float_to_bf16((static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f) * 0.02f);
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const Shape& shape : kLayer) add(format, shape, values);
    }
    add(format, kHead, values);
  }

 private:
  void add(const WeightFormat& format, const Shape& shape, const std::vector<uint16_t>& values) {
    PackedMatrix& matrix = format.quantized.bits == 0
                               ? weights.emplace_back(shape.n_out, shape.n_in, DType::kBF16)
                               : weights.emplace_back(shape.n_out, shape.n_in, format.quantized);
    for (int64_t row = 0; row < shape.n_out; ++row) {
      matrix.fill_rows(row, values.data() + row % 64, 1, shape.n_in, DType::kBF16);
    }
    num_bytes += matrix.num_bytes();
    num_weights += shape.n_out * shape.n_in;
  }
};

// The weights of one format at a time: those of all would need twice the memory.
Products& products_of(const WeightFormat& format) {
  static const WeightFormat* held = nullptr;
  static std::unique_ptr<Products> products;
  if (held != &format) {
    products.reset();
    products = std::make_unique<Products>(format);
    held = &format;
  }
  return *products;
}

void products(benchmark::State& state, const WeightFormat& format) {
  Products& model = products_of(format);
  const int64_t rows = state.range(0);
  for (auto _ : state) {
    for (const PackedMatrix& matrix : model.weights) {
      linear(*model.context, model.out.data(), model.in.data(), rows, matrix);
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(model.num_bytes));
  // Multiplications and additions.
  state.counters["op/s"] = {static_cast<double>(2 * rows * model.num_weights),
                            benchmark::Counter::kIsIterationInvariantRate};
}

void plain_read(benchmark::State& state) {
  const auto context = make_context(Activations::kF32);
  ReadLoop reader(*context, kReadBytes);
  for (auto _ : state) reader.run_ms();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(reader.num_bytes()));
}

void register_products(benchmark::State& state, Activations activations) {
  const auto context = make_context(activations);
  double gflops = 0;
  for (auto _ : state) gflops = std::max(gflops, peak_gflops(*context));
  state.counters["op/s"] = gflops * 1e9;
}

BENCHMARK(plain_read)->UseRealTime();
BENCHMARK_CAPTURE(register_products, f32, Activations::kF32)->UseRealTime();
BENCHMARK_CAPTURE(register_products, bf16, Activations::kBF16)->UseRealTime();

[[maybe_unused]] const bool kRegistered = [] {
  for (const WeightFormat& format : kFormats) {
    benchmark::RegisterBenchmark(fmt::format("products/{}", format.name).c_str(),
                                 [&format](benchmark::State& state) { products(state, format); })
        ->ArgName("rows")
        ->ArgsProduct({{1, 2, 3, 5, 9, 17, 32, 128, kMostRows}})
        ->Unit(benchmark::kMillisecond)
        ->MeasureProcessCPUTime()
        ->UseRealTime();
  }
  return true;
}();

}  // namespace
}  // namespace outrider::ops
