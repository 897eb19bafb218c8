// What the ranks' GPUs say to each other in a round, as comm_cases.h has it for the host: sums of a
// step's partial results by a group, alone and with the norm that follows, and the sampling keys'
// way through the host. Used by `bench comm --device cuda` on every target rank, and by its tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/device/device_group.h"
#include "runtime/commands/bench/comm/comm_cases.h"

namespace outrider {

// One rank's memory and stream for all cases. Cases queue their exchange in run() and wait in
// finish(); nothing is allocated or freed in between, since ranks may share a GPU, where that would
// wait for the others' launches.
class DeviceCommBench {
 public:
  // All must outlive it.
  DeviceCommBench(gpu::Device& device,
                  const gpu::OpTable& ops,
                  TargetGroup& over_host,
                  const CommSizes& sizes);
  ~DeviceCommBench();

  // The floats of the largest sum.
  size_t max_count() const;
  // "sums, NAME" and "sums and norm, NAME" by rows. Values are small integers, so that sums are
  // exact in any order and all groups are held to the same. Both must outlive the cases.
  std::vector<CommCase> sums_of(DeviceGroup& group, const std::string& name);
  // "row maxima, from the GPU": keys in device memory, downloaded and reduced over the host, as
  // sampling does.
  std::vector<CommCase> keys();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace outrider
