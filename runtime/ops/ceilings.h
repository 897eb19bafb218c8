// What bounds a step on this machine: a plain read of as many bytes as it reads, by the same
// threads, and multiplications when nothing has to be fetched. Used by the benchmarks, on the
// thread that runs the steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/ops.h"

namespace outrider::ops {

// What a step's time is compared with on a machine whose memory is not always equally fast.
class ReadLoop {
 public:
  // Memory of its own, of about num_bytes, at most 2 GiB. ctx must outlive this.
  ReadLoop(Context& ctx, size_t num_bytes);

  size_t num_bytes() const { return num_bytes_; }
  // Reads it once, one long stream a thread, and says how long that took.
  double run_ms();

 private:
  Context& ctx_;
  size_t num_bytes_;
  AlignedBytes memory_;
  uint32_t mix_ = 0;
};

// Multiplications and additions per second (both counted), in 1e9, of all threads in the best of
// some short bursts: of the bf16 dot products when the context rounds its activations, else of fp32
// fma. The ceiling of a prefill.
double peak_gflops(Context& ctx);

}  // namespace outrider::ops
