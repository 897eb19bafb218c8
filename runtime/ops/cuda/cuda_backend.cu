// What the shared object exports, and what stands between asking for a GPU and having one: a
// driver, a device, and machine code for it in this build. Each that is missing is one sentence.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/cuda_device.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/cuda/platform.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider::gpu {
namespace {

struct NoArgs {};
// Asked for, never launched: is there machine code for this device?
OUTRIDER_KERNEL(32) void is_there_code(NoArgs) {}

int count_devices() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return count;
  if (result == cudaErrorNoDevice) return 0;
  if (result == cudaErrorInsufficientDriver) {
    throw Error(
        "device 'cuda': there is no NVIDIA driver on this machine, or one too old for CUDA " +
        std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) +
        " (CUDA error 35)");
  }
  throw Error(std::string("device 'cuda': the NVIDIA driver says no: ") +
              cudaGetErrorString(result) + " (CUDA error " +
              std::to_string(static_cast<int>(result)) + ")");
}

// Overlapping launches need compute capability 9.0; OUTRIDER_GPU_OVERLAP=0 turns them off.
bool overlap_wanted(int compute_capability_major) {
  const char* asked = std::getenv("OUTRIDER_GPU_OVERLAP");
  return compute_capability_major >= 9 && (asked == nullptr || std::strcmp(asked, "0") != 0);
}

std::unique_ptr<Device> open_device(int ordinal) {
  const int count = count_devices();
  if (ordinal < 0 || ordinal >= count) {
    throw Error("device 'cuda': there is no GPU " + std::to_string(ordinal) +
                ", this machine has " + std::to_string(count));
  }
  check_cuda(cudaSetDevice(ordinal), "choosing the device");
  int major = 0;
  int minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
             "asking what it is");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
             "asking what it is");
  cudaFuncAttributes attributes = {};
  const cudaError_t code =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(is_there_code));
  if (code == cudaErrorNoKernelImageForDevice) {
    cudaGetLastError();
    throw Error("device 'cuda': GPU " + std::to_string(ordinal) + " has compute capability " +
                std::to_string(major) + "." + std::to_string(minor) +
                ", for which this build has no code");
  }
  check_cuda(code, "loading the kernels");
  // Code for 8.0 is loaded by 8.6 and 8.9 too, whose blocks have 99 KiB.
  constexpr int kLeastSharedBytes = 163 << 10;  // that kernels for sm_80 may ask for
  int shared_bytes = 0;
  check_cuda(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
      "asking for its shared memory");
  if (shared_bytes < kLeastSharedBytes) {
    throw Error("device 'cuda': GPU " + std::to_string(ordinal) + " has compute capability " +
                std::to_string(major) + "." + std::to_string(minor) + ", whose blocks have " +
                std::to_string(shared_bytes >> 10) + " KiB of shared memory; the kernels need " +
                std::to_string(kLeastSharedBytes >> 10));
  }
  return make_cuda_device(ordinal, overlap_wanted(major));
}

}  // namespace
}  // namespace outrider::gpu

extern "C" const outrider::gpu::Backend* outrider_gpu_backend() {
  using namespace outrider::gpu;
  pin_driver_settings();  // changes nothing where the program did so in main
  static const Backend backend = {
      .name = "cuda",
      .interface_version = kInterfaceVersion,
      .num_devices = count_devices,
      .open = open_device,
      .ops = op_table(),
      .peers = cuda_peer_memory(),
      .native_stream = [](Stream& stream) -> void* { return native_stream(stream); }};
  return &backend;
}
