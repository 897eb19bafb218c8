// Element types and packed weights: the only tensor notions the models need. Activations are plain
// float arrays [rows, n], row-major, owned by whoever allocated them; weights are PackedMatrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/ops/quantized.h"

namespace outrider::ops {

enum class DType { kF32, kBF16, kF16 };

// Of a feed-forward layer; GELU (Hendrycks and Gimpel 2016) exact or by its formula with tanh.
enum class ActivationKind { kSilu, kGelu, kGeluTanh, kRelu };

// The gated activation of gpt-oss (ops::clamped_swiglu); limit 0: none.
struct ClampedSwiglu {
  float alpha = 1.0f;
  float limit = 0.0f;
};

inline size_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
// Elements as floats, exact. source need not be aligned.
void widen(const void* source, int64_t count, DType dtype, float* to);

// Frees what the ops library allocated (64-byte aligned, huge pages where the system gives them).
struct AlignedFree {
  void operator()(void* memory) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;
// Zeroed memory, 64-byte aligned; throws Error naming the size when there is none. From
// kHugePageBytes on it is taken page by page by who touches it first; with several memory nodes
// pages are laid over them in turn instead, for what every thread uses.
AlignedBytes allocate_bytes(size_t num_bytes, std::span<const int> nodes = {});

// Rows of floating-point numbers that are to be quantised. The source may hold columns beyond the
// matrix' own, which complete the groups a shard's ends cut: then every shard gets the integers and
// scales the whole matrix has.
struct FloatRows {
  const void* source = nullptr;  // the matrix' first column of the first row
  int64_t num_rows = 0;
  int64_t stride = 0;  // elements from row to row
  DType dtype = DType::kF32;
  int64_t columns_before = 0;  // readable elements of each row before the matrix' first column
  int64_t columns_after = 0;   // and after its last
};

// Outputs of one panel: a matrix is cut over threads, and filled by several, at multiples of this.
inline constexpr int64_t kRowsPerPanel = 64;

// A weight matrix [n_out, n_in] in the order the kernels read it: panels of output features, the
// inner dimension running within a panel, so that one product streams the memory once, front to
// back. The element type stays what the file has. Filled in pieces (one per fused projection, one
// per shard slice), then constant.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int64_t n_out, int64_t n_in, DType dtype);  // zeros; throws Error when too large
  // Quantised, zeros. in_begin: the input of the whole matrix this shard begins with, which says
  // where its groups begin. Throws Error when too large, or for a format or begin that cannot be.
  PackedMatrix(int64_t n_out, int64_t n_in, const QuantFormat& format, int64_t in_begin = 0);

  // Copies rows [out_begin, out_begin + num_rows) from a row-major source: row i starts at source +
  // i * source_stride elements and has n_in of them, of type source_dtype (converted when it
  // differs). A quantised matrix quantises them (quantize_group).
  void fill_rows(int64_t out_begin,
                 const void* source,
                 int64_t num_rows,
                 int64_t source_stride,
                 DType source_dtype);
  // The same for a quantised matrix and a source with more columns than the matrix.
  void quantize_rows(int64_t out_begin, const FloatRows& rows);
  // Integers as they are. Throws Error for one that the format's bits cannot hold.
  void fill_integers(int64_t out_begin, int64_t num_rows, const IntegerRows& rows);

  // What the row of a quantised matrix stands for: n_in floats.
  void dequantize_row(int64_t out, float* to) const;

  // The n_in() elements of one row as the file had them, widened (exact), or what the integers of a
  // quantised matrix stand for; for reading single rows.
  void read_row(int64_t row, float* out) const;

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  DType dtype() const { return dtype_; }  // of a matrix that is not quantised
  bool is_quantized() const { return format_.bits != 0; }
  const QuantFormat& quant_format() const { return format_; }
  const QuantLayout& quant_layout() const { return layout_; }
  const QuantGroups& quant_groups() const { return layout_.groups; }
  int64_t in_begin() const { return in_begin_; }
  size_t num_bytes() const { return num_bytes_; }
  const std::byte* data() const { return data_.get(); }

 private:
  int64_t n_out_ = 0;
  int64_t n_in_ = 0;
  DType dtype_ = DType::kF32;
  QuantFormat format_;
  QuantLayout layout_;
  int64_t in_begin_ = 0;
  size_t num_bytes_ = 0;
  AlignedBytes data_;
};

}  // namespace outrider::ops
