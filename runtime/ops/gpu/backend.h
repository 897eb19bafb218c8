// Where devices come from: the CUDA shared object, found at run time, or the emulated device of the
// tests.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/ops.h"
#include "runtime/ops/gpu/peer_memory.h"

namespace outrider::gpu {

// One per process and kind; immutable.
struct Backend {
  const char* name = nullptr;      // "cuda", "emulated"
  uint32_t interface_version = 0;  // kInterfaceVersion of what it was built with
  int (*num_devices)() = nullptr;  // throws Error when the driver says no
  std::unique_ptr<Device> (*open)(int ordinal) = nullptr;
  OpTable ops{};
  PeerMemory peers{};
  void* (*native_stream)(Stream&) = nullptr;  // as the vendor's libraries call it
};
// Changes whenever device.h or ops.h does.
inline constexpr uint32_t kInterfaceVersion = 11;

// Loads liboutrider_cuda.so from beside the program, its lib folder, or where the linker looks.
// Throws Error with one sentence when it is not there, is of another build, or finds no driver or
// device. Thread-safe; the second call gives what the first one found.
const Backend& cuda_backend();

// What the driver reads when it begins. Several ranks may be threads of this process, whose kernels
// wait for each other (runtime/comm/device/exchange_group.h): a queue of its own for each of their
// streams (8 by default, shared by the streams beyond), and kernels loaded at start, since loading
// one may wait for those that run. What the user set stays. Call it before any thread begins:
// setenv races with every getenv.
inline void pin_driver_settings() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

// The one function that the shared object exports.
inline constexpr const char* kBackendSymbol = "outrider_gpu_backend";
using BackendFunction = const Backend* (*)();

}  // namespace outrider::gpu
