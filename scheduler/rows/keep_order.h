// The order in which a filter takes tokens of a row: by the distance of the scaled value from a
// reference, in units of 2^-26 nats, as a 32-bit number whose first radix digit is a band of a
// quarter nat. Tokens at one distance are kept or cut together; those 64 nats and more away tie.
// top-k and top-p count from the row's maximum downwards, typical_p from the mean surprisal both
// ways. Whatever way a selection is made (digit by digit, or by sorting values that were
// gathered), the same numbers decide, so the kept set is the same. Used by the truncation only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/numbers/exact_math.h"
#include "scheduler/rows/row_view.h"

namespace outrider {

struct KeepOrder {
  float max = 0.0f;     // of the row, over all shards
  double center = 0.0;  // how far below it the reference lies

  uint32_t distance(float scaled) const { return keep_distance(max, center, scaled); }

  // The interval of the values at distance <= farthest, exactly: both ends are searched with
  // distance() itself, which rises to both sides of the reference.
  float lowest(uint32_t farthest) const {
    if (farthest == kFarthest) return kMasked;
    return first_where(ordered_bits(kMasked),
                       last_at_or_below_reference(),
                       value_at(center + nats(farthest)),
                       [&](float value) { return distance(value) <= farthest; });
  }
  float highest(uint32_t farthest) const {
    if (farthest == kFarthest) return kNoCeiling;
    const float above = first_where(last_at_or_below_reference() + 1,
                                    ordered_bits(max),
                                    value_at(center - nats(farthest)),
                                    [&](float value) { return distance(value) > farthest; });
    return from_ordered_bits(ordered_bits(above) - 1);
  }

 private:
  double below_max(float scaled) const {
    return static_cast<double>(max) - static_cast<double>(scaled);
  }
  float value_at(double distance_below_max) const {
    return static_cast<float>(static_cast<double>(max) - distance_below_max);
  }
  static double nats(uint32_t distance) { return static_cast<double>(distance) / 67108864.0; }

  uint32_t last_at_or_below_reference() const {
    const float above =
        first_where(ordered_bits(kMasked), ordered_bits(max), value_at(center), [&](float value) {
          return below_max(value) < center;
        });
    return ordered_bits(above) - 1;
  }

  // The first float of [first, last], in ordered bits, that fulfils a condition which once true
  // stays true; the one after last when none does. Wherever `guess` lies, but the sooner the nearer
  // it is: looked for from there in growing steps, then by halving.
  template <typename Condition>
  static float first_where(uint32_t first, uint32_t last, float guess, Condition&& condition) {
    if (first > last) return from_ordered_bits(first);
    uint32_t end = last + 1;  // the answer lies in [first, end]
    const auto look = [&](uint32_t at) {
      const bool holds = condition(from_ordered_bits(at));
      if (holds) {
        end = at;
      } else {
        first = at + 1;
      }
      return holds;
    };
    const bool goes_down = look(std::clamp(ordered_bits(guess), first, last));
    for (uint32_t step = 4; first < end; step = std::min(step, 1u << 28) * 4) {
      const uint32_t leap = std::min(step, end - first);
      if (look(goes_down ? end - leap : first + leap - 1) != goes_down) break;
    }
    while (first < end) look(first + (end - first) / 2);
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
