// How good is cuBLASLt at products with few rows, and at those of prompts? All matrices of llama
// 1B, 8B and of one of eight shards of 70B, in bf16, for the rows of decode and verify steps; the
// first eight algorithms its heuristic offers; weights rotated so that they come from memory and
// not from the L2. The best algorithm's result is checked against a plain kernel.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/reference_product.h"
#include "tools/gpu/probe/shared_library.h"

namespace outrider::gpu_probe {
namespace {

constexpr int kRows[] = {1, 2, 4, 5, 8, 9, 16, 17, 24, 32};
constexpr int kMaxRows = 32;
// Of prompts, for the 8B's layers: to be held against `outrider bench prefill --device cuda`.
constexpr int kPromptRows[] = {128, 512, 2048};
constexpr int kMaxPromptRows = 2048;
constexpr const char* kPromptModel = "8B";
constexpr int kAlgorithms = 8;
constexpr size_t kPoolBytes = size_t{3} << 30;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// outputs x inner, as stored; `times` of them in one step.
struct Shape {
  const char* model;
  const char* matrix;
  int outputs;
  int inner;
  int times;
  size_t bytes() const {
    return size_t{2} * static_cast<size_t>(outputs) * static_cast<size_t>(inner);
  }
};

constexpr Shape kShapes[] = {
    {"1B", "qkv", 3072, 2048, 16},
    {"1B", "o", 2048, 2048, 16},
    {"1B", "gate_up", 16384, 2048, 16},
    {"1B", "down", 2048, 8192, 16},
    {"1B", "lm_head", 128256, 2048, 1},
    {"8B", "qkv", 6144, 4096, 32},
    {"8B", "o", 4096, 4096, 32},
    {"8B", "gate_up", 28672, 4096, 32},
    {"8B", "down", 4096, 14336, 32},
    {"8B", "lm_head", 128256, 4096, 1},
    {"70B/TP8", "qkv", 1280, 8192, 80},
    {"70B/TP8", "o", 8192, 1024, 80},
    {"70B/TP8", "gate_up", 7168, 8192, 80},
    {"70B/TP8", "down", 8192, 3584, 80},
    {"70B/TP8", "lm_head", 16032, 8192, 1},
};

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(what) + ": cuBLASLt status " +
                             std::to_string(static_cast<int>(status)));
  }
}

// The functions used, from whichever file was loaded.
struct BlasLt {
  SharedLibrary library;
  decltype(&cublasLtMatmul) matmul = library.function<decltype(cublasLtMatmul)>("cublasLtMatmul");
  decltype(&cublasLtGetVersion) version =
      library.function<decltype(cublasLtGetVersion)>("cublasLtGetVersion");
  decltype(&cublasLtCreate) create = library.function<decltype(cublasLtCreate)>("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy =
      library.function<decltype(cublasLtDestroy)>("cublasLtDestroy");
  decltype(&cublasLtMatmulDescCreate) make_operation =
      library.function<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescSetAttribute) set_operation =
      library.function<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatmulDescDestroy) end_operation =
      library.function<decltype(cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatrixLayoutCreate) make_layout =
      library.function<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) end_layout =
      library.function<decltype(cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatmulPreferenceCreate) make_preference =
      library.function<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference =
      library.function<decltype(cublasLtMatmulPreferenceSetAttribute)>(
          "cublasLtMatmulPreferenceSetAttribute");
  decltype(&cublasLtMatmulPreferenceDestroy) end_preference =
      library.function<decltype(cublasLtMatmulPreferenceDestroy)>(
          "cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic =
      library.function<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_setting =
      library.function<decltype(cublasLtMatmulAlgoConfigGetAttribute)>(
          "cublasLtMatmulAlgoConfigGetAttribute");
};

struct Memory {
  Stream stream;
  DeviceBuffer weights{kPoolBytes};
  DeviceBuffer input{size_t{2} * kMaxPromptRows * 16384};
  DeviceBuffer output{size_t{2} * kMaxPromptRows * 28672};
  static_assert(kMaxRows * 131072 <= kMaxPromptRows * 28672);
  DeviceBuffer workspace{kWorkspaceBytes};
};

// Row-major output[rows x outputs] = input[rows x inner] * weights^T, which column-major cuBLASLt
// sees as output^T = weights * input^T.
class Product {
 public:
  Product(const BlasLt& blas,
          cublasLtHandle_t handle,
          const Memory& memory,
          const Shape& shape,
          int rows)
      : blas_(blas), handle_(handle), memory_(memory), shape_(shape) {
    const auto outputs = static_cast<uint64_t>(shape.outputs);
    const auto inner = static_cast<uint64_t>(shape.inner);
    const auto columns = static_cast<uint64_t>(rows);
    check_blas(blas.make_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_blas(blas.set_operation(
                   operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
               "describing a product");
    check_blas(blas.make_layout(&weights_, CUDA_R_16BF, inner, outputs, shape.inner),
               "describing the weights");
    check_blas(blas.make_layout(&input_, CUDA_R_16BF, inner, columns, shape.inner),
               "describing the input");
    check_blas(blas.make_layout(&output_, CUDA_R_16BF, outputs, columns, shape.outputs),
               "describing the output");
  }
  ~Product() {
    blas_.end_layout(output_);
    blas_.end_layout(input_);
    blas_.end_layout(weights_);
    blas_.end_operation(operation_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::vector<cublasLtMatmulHeuristicResult_t> algorithms() const {
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(blas_.make_preference(&preference), "making a preference");
    const size_t workspace = kWorkspaceBytes;
    check_blas(
        blas_.set_preference(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
        "setting a preference");
    std::vector<cublasLtMatmulHeuristicResult_t> results(kAlgorithms);
    int found = 0;
    const cublasStatus_t status = blas_.heuristic(handle_,
                                                  operation_,
                                                  weights_,
                                                  input_,
                                                  output_,
                                                  output_,
                                                  preference,
                                                  kAlgorithms,
                                                  results.data(),
                                                  &found);
    blas_.end_preference(preference);
    check_blas(status, "asking the heuristic");
    results.resize(static_cast<size_t>(found));
    return results;
  }

  void run(const cublasLtMatmulAlgo_t& algorithm, int copy) const {
    const float one = 1;
    const float zero = 0;
    const size_t copies = kPoolBytes / shape_.bytes();
    const char* weights =
        memory_.weights.as<char>() + static_cast<size_t>(copy) % copies * shape_.bytes();
    check_blas(blas_.matmul(handle_,
                            operation_,
                            &one,
                            weights,
                            weights_,
                            memory_.input.as<void>(),
                            input_,
                            &zero,
                            memory_.output.as<void>(),
                            output_,
                            memory_.output.as<void>(),
                            output_,
                            &algorithm,
                            memory_.workspace.as<void>(),
                            kWorkspaceBytes,
                            memory_.stream),
               "multiplying");
  }

 private:
  const BlasLt& blas_;
  cublasLtHandle_t handle_;
  const Memory& memory_;
  Shape shape_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weights_ = nullptr;
  cublasLtMatrixLayout_t input_ = nullptr;
  cublasLtMatrixLayout_t output_ = nullptr;
};

std::string settings_of(const BlasLt& blas, const cublasLtMatmulAlgo_t& algorithm) {
  const auto setting = [&](cublasLtMatmulAlgoConfigAttributes_t which) {
    uint32_t value = 0;
    size_t written = 0;
    blas.algorithm_setting(&algorithm, which, &value, sizeof(value), &written);
    return std::to_string(value);
  };
  return "algorithm " + setting(CUBLASLT_ALGO_CONFIG_ID) + ", tile " +
         setting(CUBLASLT_ALGO_CONFIG_TILE_ID) + ", stages " +
         setting(CUBLASLT_ALGO_CONFIG_STAGES_ID) + ", split of the inner dimension " +
         setting(CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
}

struct Measured {
  double best_us = 0;
  double first_us = 0;  // of the algorithm the heuristic puts first
  std::string settings;
  double error = 0;  // ||output - reference|| / ||reference|| of the best
};

std::optional<Measured> measure(const BlasLt& blas,
                                cublasLtHandle_t handle,
                                const Memory& memory,
                                const Shape& shape,
                                int rows) {
  const Product product(blas, handle, memory, shape, rows);
  Measured measured;
  const cublasLtMatmulAlgo_t* best = nullptr;
  const auto algorithms = product.algorithms();
  const int nodes = static_cast<int>(std::clamp<size_t>((size_t{4} << 30) / shape.bytes(), 8, 64));
  for (const auto& candidate : algorithms) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    const double us =
        us_per_node(memory.stream, nodes, 3, [&](int i) { product.run(candidate.algo, i); });
    measured.first_us = best == nullptr ? us : measured.first_us;
    if (best == nullptr || us < measured.best_us) {
      measured.best_us = us;
      best = &candidate.algo;
    }
  }
  if (best == nullptr) {
    return std::nullopt;
  }
  measured.settings = settings_of(blas, *best);
  const size_t output_bytes =
      size_t{2} * static_cast<size_t>(rows) * static_cast<size_t>(shape.outputs);
  check(cudaMemsetAsync(memory.output.as<void>(), 0xff, output_bytes, memory.stream),
        "poisoning the output");
  product.run(*best, 0);
  measured.error = relative_error(memory.output.as<void>(),
                                  memory.weights.as<void>(),
                                  memory.input.as<void>(),
                                  rows,
                                  shape.outputs,
                                  shape.inner,
                                  memory.stream);
  return measured;
}

// All products of the layers in a prompt's step; the worst relative error.
double measure_prompts(const BlasLt& blas,
                       cublasLtHandle_t handle,
                       const Memory& memory,
                       Report& report) {
  Table table{"Products of an 8B's layers in a prompt's step: us each, ms in all, TFLOP/s",
              {"rows", "qkv", "o", "gate_up", "down", "all, ms", "TFLOP/s"},
              {}};
  double worst_error = 0;
  for (const int rows : kPromptRows) {
    std::vector<std::string> cells{std::to_string(rows)};
    double all_us = 0;
    double operations = 0;
    for (const Shape& shape : kShapes) {
      if (std::string(shape.model) != kPromptModel || shape.times == 1) {
        continue;
      }
      const auto measured = measure(blas, handle, memory, shape, rows);
      cells.push_back(measured ? number(measured->best_us) : "none");
      all_us += measured ? shape.times * measured->best_us : NAN;
      operations += shape.times * static_cast<double>(shape.bytes()) * rows;
      worst_error = std::max(worst_error, measured ? measured->error : 0);
    }
    cells.push_back(number(all_us / 1e3, 3));
    cells.push_back(number(operations / all_us / 1e6, 0));
    table.rows.push_back(cells);
    report.value("prompt_8b_ms_" + std::to_string(rows), all_us / 1e3);
    Report now = report;
    now.table(table.title, table.columns).rows = table.rows;
    now.save("running");
  }
  report.table(table.title, table.columns).rows = table.rows;
  return worst_error;
}

double moved_bytes(const Shape& shape, int rows) {
  return static_cast<double>(shape.bytes()) + 2.0 * rows * (shape.inner + shape.outputs);
}

std::vector<std::string> columns_by_rows(const char* first) {
  std::vector<std::string> columns{first, "MB"};
  for (const int rows : kRows) {
    columns.push_back(std::to_string(rows));
  }
  return columns;
}

}  // namespace

void probe_cublaslt(const ProbeOptions& options, Report& report) {
  const BlasLt blas{
      SharedLibrary("libcublasLt.so.13", options.cublaslt_library, "OUTRIDER_CUBLASLT")};
  report.note("cuBLASLt " + std::to_string(blas.version()) + " from " +
              SharedLibrary::path_of_function(blas.version));
  report.note(
      "us per product as a graph node, weights from memory; in brackets GB/s of weights, input and "
      "output" +
      std::string(options.read_ceiling_gb_s > 0 ? " as % of the read ceiling measured before"
                                                : ""));
  cublasLtHandle_t handle = nullptr;
  check_blas(blas.create(&handle), "creating a handle");
  const Memory memory;
  fill_random_bf16(memory.weights.as<void>(), kPoolBytes / 2, 0.05f, 1, memory.stream);
  fill_random_bf16(memory.input.as<void>(), memory.input.bytes() / 2, 1.0f, 2, memory.stream);

  Table shown{"Best of the first 8 algorithms, by rows", columns_by_rows("matrix"), {}};
  Table steps{"All products of a step, ms, and tokens/s if there were nothing else",
              columns_by_rows("model"),
              {}};
  Table all{"Every case",
            {"model",
             "matrix",
             "rows",
             "best us",
             "heuristic's first us",
             "GB/s",
             "relative error",
             "settings of the best"},
            {}};
  double worst_error = 0;
  const auto save = [&](const char* status) {
    Report now = report;
    for (const Table* table : {&shown, &steps, &all}) {
      now.table(table->title, table->columns).rows = table->rows;
    }
    now.value("worst_relative_error_1e6", worst_error * 1e6);
    now.save(status);
    return now;
  };
  std::vector<double> step_us(std::size(kRows));
  double step_bytes = 0;
  for (const Shape& shape : kShapes) {
    shown.rows.push_back({std::string(shape.model) + " " + shape.matrix,
                          number(static_cast<double>(shape.bytes()) / 1e6)});
    for (size_t i = 0; i < std::size(kRows); ++i) {
      const auto measured = measure(blas, handle, memory, shape, kRows[i]);
      if (!measured) {
        shown.rows.back().push_back("none");
        step_us[i] = NAN;
        continue;
      }
      const double rate = moved_bytes(shape, kRows[i]) / measured->best_us / 1e3;
      const double part =
          options.read_ceiling_gb_s > 0 ? 100 * rate / options.read_ceiling_gb_s : rate;
      shown.rows.back().push_back(number(measured->best_us) + " (" + number(part, 0) + ")");
      all.rows.push_back({shape.model,
                          shape.matrix,
                          std::to_string(kRows[i]),
                          number(measured->best_us, 2),
                          number(measured->first_us, 2),
                          number(rate, 0),
                          number(measured->error, 5),
                          measured->settings});
      step_us[i] += shape.times * measured->best_us;
      worst_error = std::max(worst_error, measured->error);
    }
    step_bytes += shape.times * static_cast<double>(shape.bytes());
    if (std::string(shape.matrix) == "lm_head") {
      steps.rows.push_back({shape.model, number(step_bytes / 1e6, 0)});
      for (size_t i = 0; i < std::size(kRows); ++i) {
        steps.rows.back().push_back(number(step_us[i] / 1e3, 3) + " (" +
                                    number(1e6 / step_us[i], 0) + ")");
      }
      step_us.assign(std::size(kRows), 0.0);
      step_bytes = 0;
    }
    save("running");
  }
  report = save("running");
  worst_error = std::max(worst_error, measure_prompts(blas, handle, memory, report));
  blas.destroy(handle);
  if (!(worst_error < 1e-2)) {
    throw std::runtime_error("a product is wrong: relative error " + number(worst_error, 4));
  }
}

}  // namespace outrider::gpu_probe
