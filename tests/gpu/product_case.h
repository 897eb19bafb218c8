// Matrices and activations for tests of the GPU's products: random, rounded to their types before
// anything else, so that a reference in doubles sees what the kernels see.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/ops/gpu/float8.h"
#include "runtime/ops/gpu/tiles.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

// [rows, n] normal values that `type` (not kE4M3) holds exactly.
struct Table {
  int32_t rows = 0;
  int32_t n = 0;
  std::vector<float> values;

  float at(int32_t row, int32_t i) const {
    return values[static_cast<size_t>(row) * static_cast<size_t>(n) + static_cast<size_t>(i)];
  }
};
inline Table random_table(int32_t rows, int32_t n, Type type, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Table table = {rows, n, {}};
  for (size_t i = 0; i < static_cast<size_t>(rows) * static_cast<size_t>(n); ++i) {
    table.values.push_back(rounded(normal(random), type));
  }
  return table;
}

// Rows in the packed order.
struct Order {
  RowOrder order = RowOrder::kPlain;
  int32_t span = 0;
};

// A matrix in device memory. `values` of it are w[out, k] in the file's order; of kE4M3 what the
// scaled 8 bits stand for.
class TestMatrix {
 public:
  TestMatrix(Device& device,
             const Table& values,
             Type type,
             Order order = {},
             std::vector<float> scales = {})
      : values_(values), order_(order), scales_of_(std::move(scales)) {
    matrix.type = type;
    matrix.n_out = values.rows;
    matrix.n_in = values.n;
    cut(default_slice_ends(values.n));
    if (type == Type::kE4M3) {
      pack_narrow(device);
    } else if (type == Type::kF32) {
      Table packed = values;
      for (int32_t out = 0; out < values.rows; ++out) {
        for (int32_t k = 0; k < values.n; ++k) {
          packed.values[static_cast<size_t>(row_of(out)) * static_cast<size_t>(values.n) +
                        static_cast<size_t>(k)] = values.at(out, k);
        }
      }
      upload(device, packed.values);
    } else {
      std::vector<uint16_t> packed(weight_elements(values.rows, values.n));
      for_each([&](int32_t out, int32_t k, size_t at) {
        narrow(type, packed.data(), at, values.at(out, k));
      });
      upload(device, packed);
    }
  }

  void cut(const SliceEnds& ends) {
    matrix.num_slices = ends.num_slices;
    std::copy(std::begin(ends.slice_ends), std::end(ends.slice_ends), matrix.slice_ends);
  }
  const Table& values() const { return values_; }
  // Inputs [begin, end) of it as a matrix of its own: 8-bit weights keep their scales.
  TestMatrix part(Device& device, int32_t begin, int32_t end) const {
    Table some = {values_.rows, end - begin, {}};
    for (int32_t out = 0; out < values_.rows; ++out) {
      for (int32_t k = begin; k < end; ++k) some.values.push_back(values_.at(out, k));
    }
    return TestMatrix(device, some, matrix.type, order_, scales_of_);
  }
  int32_t row_of(int32_t out) const { return weight_row(out, order_.order, order_.span); }
  // What belongs to outputs, such as bias, in the packed order.
  std::vector<float> packed(const std::vector<float>& of_outputs) const {
    std::vector<float> result(of_outputs.size());
    for (size_t out = 0; out < of_outputs.size(); ++out) {
      result[static_cast<size_t>(row_of(static_cast<int32_t>(out)))] = of_outputs[out];
    }
    return result;
  }

  Matrix matrix;

 private:
  template <typename Change>
  void for_each(const Change& change) {
    for (int32_t out = 0; out < values_.rows; ++out) {
      for (int32_t k = 0; k < values_.n; ++k) {
        change(out, k, weight_offset(row_of(out), k, values_.n, type_bytes(matrix.type)));
      }
    }
  }
  void pack_narrow(Device& device) {
    for (int32_t out = static_cast<int32_t>(scales_of_.size()); out < values_.rows; ++out) {
      float largest = 0;
      for (int32_t k = 0; k < values_.n; ++k) {
        largest = std::max(largest, std::fabs(values_.at(out, k)));
      }
      scales_of_.push_back(e4m3_scale(largest));
    }
    std::vector<uint8_t> packed_bytes(weight_elements(values_.rows, values_.n));
    for_each([&](int32_t out, int32_t k, size_t at) {
      const float scale = scales_of_[static_cast<size_t>(out)];
      packed_bytes[at] = float_to_e4m3(values_.at(out, k) / scale);
      values_.values[static_cast<size_t>(out) * static_cast<size_t>(values_.n) +
                     static_cast<size_t>(k)] = scale * e4m3_to_float(packed_bytes[at]);
    });
    upload(device, packed_bytes);
    const std::vector<float> in_order = packed(scales_of_);
    scales_ = DeviceArray<float>(device, in_order);
    matrix.scales = scales_.device();
  }
  template <typename T>
  void upload(Device& device, const std::vector<T>& packed_elements) {
    data_ = DeviceArray<std::byte>(device, packed_elements.size() * sizeof(T));
    std::memcpy(data_.host(), packed_elements.data(), data_.size());
    data_.push();
    matrix.data = data_.device();
  }

  Table values_;
  Order order_;
  std::vector<float> scales_of_;  // of kE4M3, in the file's order
  DeviceArray<std::byte> data_;
  DeviceArray<float> scales_;
};

// Activations in device memory; rows that there are not stay NaN.
class TestInputs {
 public:
  TestInputs(Device& device, const Table& values, Type type)
      : data_(device, activation_elements(values.rows, values.n) * type_bytes(type)) {
    activations = {data_.device(), type, values.n};
    data_.poison();
    for (int32_t row = 0; row < values.rows; ++row) {
      for (int32_t k = 0; k < values.n; ++k) {
        narrow(type, data_.host(), place(activations, row, k), values.at(row, k));
      }
      if (type == Type::kF32) continue;
      for (int32_t k = values.n; k < padded(values.n, kTileInner); ++k) {
        narrow(type, data_.host(), place(activations, row, k), 0.0f);
      }
    }
    data_.push();
  }
  Activations activations;
  std::span<std::byte> bytes() const { return data_.bytes(); }

 private:
  DeviceArray<std::byte> data_;
};

// The product of one output in doubles, and the sum of its terms' magnitudes, to which its error is
// compared.
struct Exact {
  double sum = 0;
  double magnitude = 0;
};
inline Exact exact_product(const Table& weights, int32_t out, const Table& inputs, int32_t row) {
  Exact exact;
  for (int32_t k = 0; k < weights.n; ++k) {
    const double term = double{weights.at(out, k)} * inputs.at(row, k);
    exact.sum += term;
    exact.magnitude += std::fabs(term);
  }
  return exact;
}

class ProductTest : public GpuTest {
 protected:
  // The first num_rows rows of `inputs` through store_product; [max_rows, n_out], what was not
  // written is NaN.
  std::vector<float> store(const TestMatrix& weights,
                           const Activations& inputs,
                           const StepCounts& step_counts,
                           int32_t max_rows,
                           const std::vector<float>& bias = {},
                           bool selected = false) {
    constexpr size_t kGuard = 64;
    const DeviceArray<StepCounts> counts(*device, std::vector{step_counts});
    const DeviceArray<float> packed_bias(*device, weights.packed(bias));
    const auto count = static_cast<size_t>(max_rows) * static_cast<size_t>(weights.matrix.n_out);
    DeviceArray<float> out(*device, count + kGuard);
    out.poison();
    ops.store_product(*stream,
                      {.in = inputs,
                       .weights = weights.matrix,
                       .bias = bias.empty() ? nullptr : packed_bias.device(),
                       .selected = selected,
                       .max_rows = max_rows,
                       .step = {.counts = counts.device()}},
                      {.out = out.device()});
    stream->wait();
    std::vector<float> result = out.pull();
    for (size_t i = count; i < result.size(); ++i) {
      EXPECT_TRUE(std::isnan(result[i])) << "written past the end";
    }
    result.resize(count);
    return result;
  }
  std::vector<float> store(const TestMatrix& weights,
                           const Activations& inputs,
                           int32_t num_rows,
                           int32_t max_rows,
                           const std::vector<float>& bias = {}) {
    return store(weights, inputs, StepCounts{.num_rows = num_rows}, max_rows, bias);
  }
};

inline Type inputs_for(Type weights) { return weights == Type::kE4M3 ? Type::kBF16 : weights; }

}  // namespace outrider::gpu
