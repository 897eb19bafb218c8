// The plainest product there is, to check others against.
#pragma once

#include <cuda_runtime.h>

namespace outrider::gpu_probe {

// ||output - input * weights^T|| / ||input * weights^T|| over all rows x outputs, all three in bf16
// and row-major, sums in fp32. NaN when the output has one.
double relative_error(const void* output,
                      const void* weights,
                      const void* input,
                      int rows,
                      int outputs,
                      int inner,
                      cudaStream_t stream);

}  // namespace outrider::gpu_probe
