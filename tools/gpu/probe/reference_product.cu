// One warp per output, all rows one after the other.
#include <cuda_bf16.h>

#include <cmath>

#include "tools/gpu/probe/cuda_util.h"
#include "tools/gpu/probe/reference_product.h"

namespace outrider::gpu_probe {
namespace {

__device__ float dot(const __nv_bfloat16* a, const __nv_bfloat16* b, int length) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < length; i += 32) {
    sum = __fmaf_rn(__bfloat162float(a[i]), __bfloat162float(b[i]), sum);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(~0u, sum, lanes);
  }
  return sum;
}

// sums[0] += squares of the differences, sums[1] += squares of the reference.
__global__ void compare_kernel(const __nv_bfloat16* output,
                               const __nv_bfloat16* weights,
                               const __nv_bfloat16* input,
                               int rows,
                               int outputs,
                               int inner,
                               double* sums) {
  const int column = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  if (column >= outputs) {
    return;
  }
  double difference = 0;
  double total = 0;
  for (int row = 0; row < rows; ++row) {
    const float expected = dot(weights + static_cast<size_t>(column) * inner,
                               input + static_cast<size_t>(row) * inner,
                               inner);
    const double off =
        static_cast<double>(__bfloat162float(output[static_cast<size_t>(row) * outputs + column])) -
        static_cast<double>(expected);
    difference += off * off;
    total += static_cast<double>(expected) * static_cast<double>(expected);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(sums, difference);
    atomicAdd(sums + 1, total);
  }
}

}  // namespace

double relative_error(const void* output,
                      const void* weights,
                      const void* input,
                      int rows,
                      int outputs,
                      int inner,
                      cudaStream_t stream) {
  const DeviceBuffer sums(2 * sizeof(double));
  check(cudaMemsetAsync(sums.as<void>(), 0, sums.bytes(), stream), "clearing sums");
  compare_kernel<<<(outputs + 7) / 8, 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(output),
                                                        static_cast<const __nv_bfloat16*>(weights),
                                                        static_cast<const __nv_bfloat16*>(input),
                                                        rows,
                                                        outputs,
                                                        inner,
                                                        sums.as<double>());
  check(cudaGetLastError(), "comparing a product");
  double host[2] = {NAN, NAN};
  check(cudaMemcpyAsync(host, sums.as<void>(), sizeof(host), cudaMemcpyDefault, stream),
        "reading sums");
  check(cudaStreamSynchronize(stream), "comparing a product");
  return std::sqrt(host[0] / host[1]);
}

}  // namespace outrider::gpu_probe
