// What the loader of weights sees of a checkpoint's integers: which projections can be run as they
// are, filling matrices with them, and the floats that the others stand for. Used by the checkpoint
// source (checkpoint_source.cpp); all of it may be called from several threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "models/weights/quantized_tensors.h"
#include "models/weights/weight_reader.h"
#include "runtime/ops/tensor.h"

namespace outrider {

class QuantizedCheckpoint {
 public:
  // checkpoint must outlive this.
  QuantizedCheckpoint(const Checkpoint& checkpoint, const QuantizationConfig& config)
      : tensors_(checkpoint, config), num_bits_(config.num_bits) {}

  // The projection whose weights this tensor name means, when the file has it in integers.
  std::optional<std::string> projection_of(const std::string& tensor_name) const;

  // The form of a matrix that holds the projection's integers; none when the file has it in floats,
  // or in integers that the products do not take (inputs whose groups are not in order, 8-bit zero
  // points, odd group sizes): then it is run in floats. Throws Error as QuantizedTensors::expect.
  std::optional<ops::QuantFormat> runnable_format(const Projection& projection) const;
  // Fills rows [first_row, ...) of a matrix of that form.
  void fill(const std::string& projection,
            const TensorPart& part,
            int64_t first_row,
            ops::PackedMatrix& to) const;

  // The type of the scales: what the formats' own tools dequantise to. Throws Error as expect().
  ops::DType float_type(const Projection& projection) const;
  // The part's floats in that type, row-major.
  void read_floats(const std::string& projection, const TensorPart& part, std::byte* out) const;

 private:
  QuantizedTensors tensors_;
  int32_t num_bits_;
};

}  // namespace outrider
