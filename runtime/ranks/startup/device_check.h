// Before anything is loaded the ranks compare their GPUs: who shares one with whom, whatever number
// each knows it by, and whether the targets' are of one kind.
#pragma once

#include <string>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/loading/device_assignment.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// What a rank says of its GPU.
struct DeviceDescriptor {
  std::string problem;  // why it has none; empty when it has one or needs none
  std::string host;
  std::string uuid;  // empty: it does not compute on a GPU
  std::string name;
  int32_t ordinal = 0;
  int32_t compute_capability = 0;
  uint64_t total_bytes = 0;
  int32_t num_visible = 0;
  bool is_given = false;  // by cuda_device
};
DeviceDescriptor descriptor_of(const DeviceAssignment& assignment);
Bytes encode_descriptor(const DeviceDescriptor& descriptor);

// Every rank of the layout calls it, with an empty descriptor when it computes elsewhere. The
// answer is for settle_assignment(); rank 0 warns of what is allowed but slow.
Bytes check_devices(World& world,
                    const RankLayout& layout,
                    const Bytes& descriptor,
                    double timeout_s = 600);

// The sentence that all ranks stop with; empty when there is none.
std::string refusal_in(const Bytes& answer);
// Throws it when there is one; else says in `assignment` (when it has a
// device) who is on its GPU.
void settle_assignment(const Bytes& answer, DeviceAssignment& assignment);

}  // namespace outrider
