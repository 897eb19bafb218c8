// The order in which a filter takes tokens of a row: by the distance of the scaled value from a
// reference, in units of 2^-26 nats, as a 32-bit number whose first radix digit is a band of a
// quarter nat. Tokens at one distance are kept or cut together; those 64 nats and more away tie.
// top-k and top-p count from the row's maximum downwards, typical_p from the mean surprisal both
// ways. Whatever way a selection is made (radix_selection.h, or by sorting values that were
// gathered), the same numbers decide, so the kept set is the same. Used by the truncation only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/exact_math.h"
#include "scheduler/row_view.h"

namespace outrider {

struct KeepOrder {
  float max = 0.0f;     // of the row, over all shards
  double center = 0.0;  // how far below it the reference lies

  uint32_t distance(float scaled) const {
    return keep_distance(max, center, scaled);
  }

  // The interval of the values at distance <= farthest, exactly: both ends are searched with
  // distance() itself, which rises to both sides of the reference.
  float lowest(uint32_t farthest) const {
    if (farthest == kFarthest) return kMasked;
    const uint32_t pivot = last_at_or_below_reference();
    return first_where(
        ordered_bits(kMasked), pivot, [&](float value) { return distance(value) <= farthest; });
  }
  float highest(uint32_t farthest) const {
    if (farthest == kFarthest) return kNoCeiling;
    const uint32_t pivot = last_at_or_below_reference();
    const float above = first_where(
        pivot + 1, ordered_bits(max), [&](float value) { return distance(value) > farthest; });
    return from_ordered_bits(ordered_bits(above) - 1);
  }

 private:
  double below_max(float scaled) const {
    return static_cast<double>(max) - static_cast<double>(scaled);
  }

  uint32_t last_at_or_below_reference() const {
    const float above = first_where(ordered_bits(kMasked), ordered_bits(max), [&](float value) {
      return below_max(value) < center;
    });
    return ordered_bits(above) - 1;
  }

  // The first float of [first, last], in ordered bits, that fulfils a condition which once true
  // stays true; the one after last when none does.
  template <typename Condition>
  static float first_where(uint32_t first, uint32_t last, Condition&& condition) {
    uint32_t end = last + 1;
    while (first < end) {
      const uint32_t middle = first + (end - first) / 2;
      if (condition(from_ordered_bits(middle))) {
        end = middle;
      } else {
        first = middle + 1;
      }
    }
    return from_ordered_bits(first);
  }
};

// The least fixed-point mass that is at least share * mass; at least one unit.
inline uint64_t mass_target(float share, uint64_t mass) {
  const double wanted = exact_mul(static_cast<double>(share), static_cast<double>(mass));
  const auto target = static_cast<uint64_t>(wanted > 0.0 ? wanted : 0.0);
  return std::clamp<uint64_t>(
      target + (static_cast<double>(target) < wanted ? 1 : 0), 1, std::max<uint64_t>(mass, 1));
}

}  // namespace outrider
