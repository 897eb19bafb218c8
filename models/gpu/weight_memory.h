// Puts vectors and matrices into device memory, one after the other: what upload_weights and
// random_gpu_weights are made of.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/gpu/layout.h"
#include "models/gpu/weights.h"

namespace outrider {

class GpuWeightMemory {
 public:
  GpuWeightMemory(gpu::Device& device, const GpuLayout& layout);

  GpuWeights& weights() { return *weights_; }
  std::unique_ptr<GpuWeights> take() { return std::move(weights_); }

  void* allocate(size_t num_bytes);
  // Null for an empty one.
  const float* vector(std::span<const float> values);
  // A bias, in its matrix' order on the device. Null for an empty one.
  const float* bias(std::span<const float> values, const GpuMatrixLayout& layout);
  // Memory for a matrix, with scales where the type has some; slices are chosen. Throws Error for
  // slices that the kernels cannot sum.
  gpu::Matrix allocate_matrix(const GpuMatrixLayout& layout, gpu::Type type);
  gpu::Matrix matrix(const GpuMatrixLayout& layout, gpu::Type type, const ops::PackedMatrix& from);
  // A matrix of all experts as their products take it: with the outputs of one. Counted.
  gpu::Matrix of_experts(gpu::Matrix all, int32_t n_out);
  // [num_rows, n] row-major; read_row gives a row's floats, on any thread.
  const void* rows(int64_t num_rows,
                   int64_t n,
                   gpu::Type type,
                   const std::function<void(int64_t row, float* out)>& read_row);

 private:
  gpu::Device& device_;
  std::unique_ptr<GpuWeights> weights_;
};

}  // namespace outrider
