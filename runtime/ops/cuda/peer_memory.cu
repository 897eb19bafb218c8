// Memory of other processes through CUDA's inter-process handles, of other devices through peer
// access.
#include <cuda_runtime.h>

#include <cstring>
#include <string>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/cuda_device.h"
#include "runtime/ops/gpu/exchange.h"

namespace outrider::gpu {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryHandle));

// Few enough that eight ranks on one GPU find room for theirs at once (tests), enough to keep a
// link busy.
constexpr uint32_t kMaxWaitingBlocks = kMaxExchangeBlocks;

void check(cudaError_t result, Device& device, const char* what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // or the next call would report it again
  throw Error("GPU " + std::to_string(device.info().ordinal) + " cannot " + what + ": " +
              cudaGetErrorString(result));
}

void use(Device& device) { check(cudaSetDevice(device.info().ordinal), device, "be used"); }

MemoryHandle share(Device& device, void* memory) {
  use(device);
  cudaIpcMemHandle_t native = {};
  check(cudaIpcGetMemHandle(&native, memory), device, "share memory with other processes");
  MemoryHandle handle;
  std::memcpy(handle.data(), &native, sizeof native);
  return handle;
}

void* open(Device& device, const MemoryHandle& handle) {
  use(device);
  cudaIpcMemHandle_t native = {};
  std::memcpy(&native, handle.data(), sizeof native);
  void* memory = nullptr;
  check(cudaIpcOpenMemHandle(&memory, native, cudaIpcMemLazyEnablePeerAccess),
        device,
        "write into the memory of another rank's GPU (P2P)");
  return memory;
}

void close(Device& device, void* memory) noexcept {
  if (cudaSetDevice(device.info().ordinal) == cudaSuccess) cudaIpcCloseMemHandle(memory);
}

void reach(Device& device, int ordinal) {
  if (ordinal == device.info().ordinal) return;
  use(device);
  const cudaError_t result = cudaDeviceEnablePeerAccess(ordinal, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  check(result, device, "write into the memory of another rank's GPU (P2P)");
}

}  // namespace

PeerMemory cuda_peer_memory() {
  return {.share = share,
          .open = open,
          .close = close,
          .reach = reach,
          .max_waiting_blocks = kMaxWaitingBlocks};
}

}  // namespace outrider::gpu
