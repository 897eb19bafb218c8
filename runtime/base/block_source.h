// Where the draft tokens that a round judges came from; for those who look on.
#pragma once

#include <cstdint>

namespace outrider {

enum class BlockSource : uint8_t {
  kNone,       // there were none
  kAtHand,     // prepared for the outcome of the round before
  kWaitedFor,  // drafted after it
  kOwn,        // the coordinator's own, without a draft model
};

}  // namespace outrider
