// The device group of GPUs that can write into each other's memory: threads of one process, or
// processes of one host over CUDA's inter-process handles. Its sums are launches of our own
// (runtime/ops/gpu/exchange.h), so they can be recorded and joined with the norm.
#pragma once

#include <functional>
#include <memory>

#include "runtime/comm/device/device_group.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

struct ExchangeOptions {
  // Floats of the largest sum that goes in one piece; device memory for 3 (size + 1) times as many
  // is taken.
  size_t max_count = 0;
  // A sum of so many bytes, counting the rows there are, goes in two shots: every rank folds a
  // share for all (3 and more ranks). The bits are the same. Not measured yet.
  size_t two_shot_bytes = 48 << 10;
  // A wait for a peer ends after it. Below what the job takes to notice a dead rank.
  double limit_s = 4.0;
  // Called by the thread that waited in vain: throws, naming the rank, when one is known to be
  // gone.
  std::function<void()> check_alive;
  int first_rank = 0;  // what errors call the first member; the others follow
};

// All members of over_host call it. Throws the same Error on every member when one of them cannot
// take part. `device` must outlive the group.
std::unique_ptr<DeviceGroup> make_exchange_group(gpu::Device& device,
                                                 const gpu::Backend& backend,
                                                 TargetGroup& over_host,
                                                 const ExchangeOptions& options);

}  // namespace outrider
