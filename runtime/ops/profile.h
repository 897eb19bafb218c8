// Where the time of a forward pass goes, by kind of op: a Context that was given an OpProfile adds
// every op's wall time to it. For measurements (`outrider bench forward --profile`); the thread
// that calls the ops writes it. Costs one branch per op when there is none.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "runtime/ops/ops.h"

namespace outrider::ops {

enum class OpKind { kLinear, kAttention, kKvWrite, kRope, kNorm, kActivation, kCopy };
inline constexpr std::array<const char*, 7> kOpKindNames = {
    "products", "attention", "kv write", "rope", "norm", "silu", "embed, gather"};

struct OpProfile {
  struct Total {
    double seconds = 0.0;
    int64_t calls = 0;
  };
  std::array<Total, kOpKindNames.size()> of_kind = {};
};

// The first line of every op.
class OpTimer {
 public:
  OpTimer(const Context& ctx, OpKind kind) : profile_(ctx.profile()), kind_(kind) {
    if (profile_ != nullptr) begin_ = std::chrono::steady_clock::now();
  }
  ~OpTimer() {
    if (profile_ == nullptr) return;
    OpProfile::Total& total = profile_->of_kind[static_cast<size_t>(kind_)];
    const auto spent = std::chrono::steady_clock::now() - begin_;
    total.seconds += std::chrono::duration<double>(spent).count();
    ++total.calls;
  }
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  OpProfile* profile_;
  OpKind kind_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace outrider::ops
