// The device group over NCCL: GPUs of any number of hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/device/device_group.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

struct NcclOptions {
  std::string library;   // path; empty: see NcclLibrary::load
  size_t max_count = 0;  // floats of the largest sum in a tree that goes in one piece; device
                         // memory for `size` times as many is taken
  double limit_s = 4.0;  // of one DeviceGroup::wait(), and of a call that does not get queued
  double init_limit_s = 60.0;
  // Called by the thread that waits, when it waits for long or has waited in vain: throws, naming
  // the rank, when one is known to be gone.
  std::function<void()> check_alive;
};

// Sums with Fold::kTree are gathered and folded here. Those with Fold::kRankOrder are NCCL's own:
// the same bits on all members and from run to run, but in an order of NCCL's (two members: any
// order is the same). No memory is registered with NCCL, so its symmetric kernels, which are wrong
// before 2.30.7, are never used.
//
// All members of over_host call it. Throws an Error on every member when one of them cannot take
// part. A watch looks after every wait(): when NCCL reports an error or the limit passes it ends
// what is under way, and wait() throws.
std::unique_ptr<DeviceGroup> make_nccl_group(gpu::Device& device,
                                             const gpu::Backend& backend,
                                             TargetGroup& over_host,
                                             const NcclOptions& options);

}  // namespace outrider
