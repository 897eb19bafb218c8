// Which GPU a rank computes on, and who of the job computes there too.
#pragma once

#include <memory>

#include "runtime/base/settings/run_config.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

// A rank's place on its host: the draft comes after the targets.
struct HostPlace {
  int index = 0;
  int num_targets = 1;     // on this host
  bool has_draft = false;  // on this host
};

// Where GPUs come from: gpu::cuda_backend, unless a test puts an emulated device there.
using GpuProvider = const gpu::Backend& (*)();
void set_gpu_provider(GpuProvider provider);

// An open GPU.
struct DeviceAssignment {
  const gpu::Backend* backend = nullptr;
  std::unique_ptr<gpu::Device> device;
  int num_visible = 0;    // GPUs that this rank sees
  bool is_given = false;  // by cuda_device, not by its place
  // Who is on it, this rank included: by place until the ranks have compared their GPUs
  // (device_check.h).
  int num_targets = 0;
  bool has_draft = false;
};
// Throws Error with one sentence when there is no such GPU.
DeviceAssignment assign_device(const RunConfig& config, const HostPlace& place, bool draft_on_gpu);

}  // namespace outrider
