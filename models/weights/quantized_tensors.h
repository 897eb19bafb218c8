// Projections that a checkpoint keeps in integers (GPTQ, AWQ, compressed-tensors, MXFP4), read a
// rectangle at a time into one plain form: weight[row, i] = scale[row, g] * (integer[row, i] -
// zero[row, g]), g being the group of input i, integers and zero points unsigned. Nothing in the
// files is trusted: names, types, shapes and indices are checked before memory is taken. Used while
// weights load, on every rank; all of it may be called from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/quantization_config.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/shard.h"
#include "models/weights/weight_reader.h"
#include "runtime/ops/tensor.h"

namespace outrider {

// Rows and columns of a tensor taken as [n_rows, n_columns], densely; element: bytes of one.
std::vector<std::byte> read_rectangle(
    const Checkpoint::Entry& entry, int64_t n_columns, Range rows, Range columns, int64_t element);

// A projection is named without ".weight": "model.layers.0.mlp.up_proj".
struct Projection {
  std::string name;
  int64_t n_out = 0;
  int64_t n_in = 0;
};

// Rows (outputs) and columns (inputs) of a projection. Scales and zero points are unpacked; the
// integers stay as the file packs them until asked for. Row ranges count from the part's first.
class QuantizedPart {
 public:
  int64_t n_rows() const { return rows_.size(); }
  int64_t n_columns() const { return columns_.size(); }

  // Integers of these rows, 0 .. 2^bits - 1, row-major [rows, n_columns]; of MXFP4 the floats'
  // bits.
  void integers(Range rows, uint8_t* out) const;
  // Integer - zero point. Throws Error naming the projection when one does not fit a signed byte.
  void signed_values(Range rows, int8_t* out) const;
  // scale * (integer - zero point), rounded to float once.
  void dequantize(Range rows, float* out) const;

 private:
  friend class QuantizedTensors;
  void unpack_input_words(Range rows, uint8_t* out) const;
  void unpack_output_words(Range rows, uint8_t* out) const;
  void unpack_row_words(Range rows, uint8_t* out) const;
  void unpack_fp4(Range rows, uint8_t* out) const;

  std::string name_;
  WeightLayout layout_ = WeightLayout::kPlain;
  int32_t num_bits_ = 0;
  Range rows_;  // of the projection
  Range columns_;
  // The rectangle of the packed tensor that holds the part; bytes when kIntQuantized, else words.
  Range file_rows_;
  Range file_columns_;
  std::vector<std::byte> packed_;
  int64_t n_groups_ = 0;                  // of the file's that the part's columns touch, in order
  std::vector<int32_t> group_of_column_;  // [n_columns]
  std::vector<float> scales_;             // [n_rows, n_groups]
  std::vector<uint8_t> zeros_;            // the same
};

// Used by the checkpoint source (checkpoint_source.cpp).
class QuantizedTensors {
 public:
  // checkpoint must outlive this.
  QuantizedTensors(const Checkpoint& checkpoint, const QuantizationConfig& config)
      : checkpoint_(checkpoint), config_(config) {}

  // Whether the file has the projection in integers; floats stand under NAME.weight as ever.
  bool has(const std::string& projection) const;
  // The projection whose weights this tensor name means, when the file has it in integers.
  std::optional<std::string> projection_of(const std::string& tensor_name) const;
  // Of a projection that it has and that was found in order.
  int64_t n_out(const std::string& projection) const;

  struct Form {
    ops::DType scale_dtype = ops::DType::kF32;
    int64_t group_size = 0;  // inputs that share a scale
    bool in_order = true;    // the group of input i is i / group_size
    bool symmetric = true;   // every zero point is half the integers' range
  };
  // Checks names, types, shapes and indices of the projection's tensors; throws Error naming the
  // file and the tensor.
  Form expect(const Projection& projection) const;

  QuantizedPart read(const Projection& projection, Range rows, Range columns) const;

  // The form of a matrix that holds the projection's integers; none when the file has it in floats,
  // or in integers that the products do not take (inputs whose groups are not in order, 8-bit zero
  // points, odd group sizes): then it is run in floats. Throws Error as expect().
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
  struct Found;
  Found find(const Projection& projection) const;
  std::vector<int32_t> group_of_inputs(const Projection& projection, const Found& found) const;
  void read_scales(const Found& found, Range groups, QuantizedPart& part) const;
  void read_zeros(const Found& found, Range groups, QuantizedPart& part) const;

  const Checkpoint& checkpoint_;
  QuantizationConfig config_;
};

}  // namespace outrider
