// Carries planned parts of tensors from their source into memory, with several threads and a few
// buffers that stay in the cache. Used by the loader of weights.h at start; the threads live as
// long as one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/checkpoint/shard.h"
#include "runtime/ops/tensor.h"
#include "runtime/ops/thread_plan.h"

namespace outrider {

class TensorSource;  // models/weights/weights.h

// A rectangle of a tensor; a vector is one row.
struct TensorPart {
  std::string name;
  int64_t n_columns = 0;  // of the whole tensor
  Range rows;
  Range columns;
};

// A part on its way: into rows [first_row, ...) of a packed matrix, or as it is to `dense`.
struct PlannedPart {
  TensorPart part;
  ops::DType dtype = ops::DType::kF32;  // the tensor's own
  ops::PackedMatrix* packed = nullptr;
  int64_t first_row = 0;
  std::byte* dense = nullptr;
  bool as_integers = false;  // TensorSource::read_integers
  // Columns at the part's ends that the matrix does not hold: they complete its groups.
  int64_t columns_before = 0;
  int64_t columns_after = 0;

  int64_t row_bytes() const {
    if (as_integers) return (part.columns.size() * packed->quant_format().bits + 7) / 8;
    return part.columns.size() * static_cast<int64_t>(ops::dtype_bytes(dtype));
  }
  int64_t num_bytes() const { return part.rows.size() * row_bytes(); }
};

// Elements of a tensor as floats, exact.
std::vector<float> widen(std::span<const std::byte> raw, ops::DType dtype);
// And back, rounded to nearest even; returns where the next ones go.
std::byte* narrow(std::span<const float> values, ops::DType dtype, std::byte* out);

// Reads all parts; destinations must stand still meanwhile. Thread t of T carries what falls into
// the t-th of T equal runs of panels (or of rows, dense), as the kernels' threads share them, so
// that it touches the memory first, held on that thread's CPU if the plan has CPUs; who is done
// early takes over from the others. progress: bytes done, bytes in all; called on the calling
// thread. Rethrows the first failure.
void read_parts(const TensorSource& source,
                const std::vector<PlannedPart>& parts,
                const ops::ThreadPlan& threads,
                const std::function<void(size_t, size_t)>& progress);

}  // namespace outrider
