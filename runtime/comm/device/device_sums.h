// Which DeviceGroup the target ranks of a job sum with: what the option `device_sums` asks for, or
// the best that all of them can have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/device/device_group.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

// kAuto: the exchange where every rank reaches every GPU's memory (one host); on several hosts the
// hierarchical group where they have as many ranks each; else NCCL where each rank has a GPU to
// itself; else staged.
enum class DeviceSums : uint8_t { kAuto, kExchange, kHierarchical, kNccl, kStaged };
// Of "auto", "exchange", "hierarchical", "nccl", "staged"; throws Error for anything else.
DeviceSums device_sums_from_name(const std::string& name);

struct DeviceSumsOptions {
  DeviceSums wanted = DeviceSums::kAuto;  // the same on all members
  size_t max_count = 0;                   // floats of a sum that goes in one piece
  double limit_s = 4.0;                   // of a wait for another member
  std::string nccl_library;               // path; empty: as NcclLibrary::load finds it
  int host = -1;                          // this member counts as on; -1: the one it is on
  // Throws, naming the rank, when one is known to be gone. Called by the thread that waits.
  std::function<void()> check_alive;
};

// Device memory that the group of a member takes at most; what NCCL takes for itself is not in it.
size_t device_sums_bytes(DeviceSums wanted, int num_members, size_t max_count);

// All members of over_host call it, together and once each of them has a device: it is set up for
// all, in the same form, or throws the same Error on all. The exchange is tried with one sum before
// it is taken. Member 0 logs what was taken and why. `device` and `over_host` must outlive it.
std::unique_ptr<DeviceGroup> make_device_group(gpu::Device& device,
                                               const gpu::Backend& backend,
                                               TargetGroup& over_host,
                                               const DeviceSumsOptions& options);

}  // namespace outrider
