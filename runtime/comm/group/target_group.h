// The data plane: what the ranks that share the target do together inside one step. All members
// must call the same verb with the same sizes in the same order; the plan alone decides whether
// that happens. A member that fails must abort the group, never leave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace outrider {

// How a sum of floats is folded. kRankOrder: ((0 + 1) + 2) + ...; kTree: the tree of
// runtime/base/numbers/fold_tree.h over the members.
enum class Fold : uint8_t { kRankOrder, kTree };

class TargetGroup {
 public:
  virtual ~TargetGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Element-wise sum over the members, in place: the same bits on every member.
  virtual void all_reduce_sum(std::span<float> values, Fold fold) = 0;
  virtual void all_reduce_sum(std::span<uint64_t> values) = 0;
  virtual void all_reduce_max(std::span<uint64_t> values) = 0;
  // all: [size(), mine.size()], member r's bytes at r * mine.size().
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
};

// A group of one: every verb is the identity.
std::unique_ptr<TargetGroup> make_solo_group();

}  // namespace outrider
