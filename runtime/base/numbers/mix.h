// The finaliser of SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators",
// OOPSLA 2014): spreads every bit of a number over all of them. For seeds and fingerprints; the
// draws of tokens have rng.h.
#pragma once

#include <cstdint>

namespace outrider {

constexpr uint64_t mix64(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
  return bits ^ (bits >> 31);
}

}  // namespace outrider
