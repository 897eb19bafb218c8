// Sums over the ranks that share the target, of arrays that lie in their GPUs' memory: what
// TargetGroup is for host memory. All members must queue the same calls with the same sizes in the
// same order. A member that fails must end the job; the others then leave their waits with an
// Error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/comm/group/target_group.h"
#include "runtime/ops/gpu/device.h"
#include "runtime/ops/gpu/ops.h"

namespace outrider {

// What the norm before a product wants of the ranks' parts.
struct SumAndNorm {
  gpu::NormArgs norm;     // norm.part is not looked at
  float* part = nullptr;  // [norm.max_rows, norm.out.n], this rank's; undefined afterwards
  Fold fold = Fold::kRankOrder;
  // What the launches that follow read first, if known: may be fetched while this one waits.
  const void* next = nullptr;
  size_t next_bytes = 0;
};

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;           // "exchange", "nccl 2.28.9"; for logs and reports
  virtual size_t num_bytes() const { return 0; }  // of device memory that it holds
  // True when the calls below may stand between Stream::begin_recording() and end_recording().
  virtual bool is_capturable() const = 0;

  // Element-wise sum over the members, in place: the same bits on every member. Queued on `stream`;
  // always the same stream for a group.
  virtual void all_reduce_sum(gpu::Stream& stream, float* values, size_t count, Fold fold) = 0;
  // norm.x += the sum over the members of `part`, then the norm, as the op `norm` does with that
  // sum as its part: with the same bits as all_reduce_sum() and norm().
  virtual void sum_and_norm(gpu::Stream& stream, const SumAndNorm& args);

  // Until all work on `stream` is done, in place of stream.wait(). Throws Error, naming the rank
  // that was waited for where that is known, when the group broke off: within the group's time
  // limit however many members are dead.
  virtual void wait(gpu::Stream& stream) { stream.wait(); }

 protected:
  explicit DeviceGroup(const gpu::OpTable& ops) : ops_(ops) {}
  const gpu::OpTable& ops_;
};

// A group of one: sums are what they are.
std::unique_ptr<DeviceGroup> make_solo_device_group(const gpu::OpTable& ops);

// Rank 0 of `size` of which the others say nothing: sums leave values as they are. For measuring
// one rank's share of a step; it can be recorded as the groups of real jobs can.
std::unique_ptr<DeviceGroup> make_silent_device_group(const gpu::OpTable& ops, int size);

// Through the host: download, group.all_reduce_sum(), upload. Works wherever `group` does, also
// between machines without anything of NVIDIA's; waits for the stream, so it cannot be recorded.
// Longer arrays than max_count go in pieces. `device` and `group` must outlive it.
std::unique_ptr<DeviceGroup> make_staged_device_group(gpu::Device& device,
                                                      const gpu::OpTable& ops,
                                                      TargetGroup& group,
                                                      size_t max_count);

}  // namespace outrider
