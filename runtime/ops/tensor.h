// Element types and packed weights: the only tensor notions the models need. Activations are plain
// float arrays [rows, n], row-major, owned by whoever allocated them; weights are PackedMatrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace outrider::ops {

enum class DType { kF32, kBF16, kF16 };

inline size_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Frees what the ops library allocated (64-byte aligned, huge pages where the system gives them).
struct AlignedFree {
  void operator()(void* memory) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;
// Zeroed memory, 64-byte aligned; throws Error naming the size when there is none.
AlignedBytes allocate_bytes(size_t num_bytes);

// A weight matrix [n_out, n_in] in the order the kernels read it: panels of output features, the
// inner dimension running within a panel, so that one product streams the memory once, front to
// back. The element type stays what the file has. Filled in pieces (one per fused projection, one
// per shard slice), then constant.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(int64_t n_out, int64_t n_in, DType dtype);  // zeros; throws Error when too large

  // Copies rows [out_begin, out_begin + num_rows) from a row-major source: row i starts at source +
  // i * source_stride elements and has n_in of them, of type source_dtype (converted when it
  // differs).
  void fill_rows(int64_t out_begin,
                 const void* source,
                 int64_t num_rows,
                 int64_t source_stride,
                 DType source_dtype);

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  DType dtype() const { return dtype_; }
  size_t num_bytes() const { return num_bytes_; }
  const std::byte* data() const { return data_.get(); }

 private:
  int64_t n_out_ = 0;
  int64_t n_in_ = 0;
  DType dtype_ = DType::kF32;
  size_t num_bytes_ = 0;
  AlignedBytes data_;
};

}  // namespace outrider::ops
