// See device_assignment.h.
#include "runtime/ranks/loading/device_assignment.h"

#include <fmt/format.h>

#include "runtime/base/error.h"

namespace outrider {
namespace {

GpuProvider provider = gpu::cuda_backend;

}  // namespace

void set_gpu_provider(GpuProvider new_provider) { provider = new_provider; }

DeviceAssignment assign_device(const RunConfig& config, const HostPlace& place, bool draft_on_gpu) {
  DeviceAssignment assignment;
  assignment.backend = &provider();
  const int num_devices = assignment.num_visible = assignment.backend->num_devices();
  // Told which one, all ranks of the host were told the same.
  const bool is_given = assignment.is_given = config.cuda_device >= 0;
  const auto ordinal_of = [&](int index) {
    return is_given ? config.cuda_device : index % num_devices;
  };
  const int ordinal = ordinal_of(place.index);
  if (ordinal >= num_devices) {
    throw Error(fmt::format(
        "cuda_device {} does not exist; this machine shows {} GPU(s)", ordinal, num_devices));
  }
  for (int target = 0; target < place.num_targets; ++target) {
    assignment.num_targets += ordinal_of(target) == ordinal ? 1 : 0;
  }
  assignment.has_draft =
      draft_on_gpu && place.has_draft && ordinal_of(place.num_targets) == ordinal;
  assignment.device = assignment.backend->open(ordinal);
  return assignment;
}

}  // namespace outrider
