// See residual.h.
#include "scheduler/verification/residual.h"

#include <algorithm>

#include "scheduler/rows/row_sums.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

// A key with one bit of rank above it; the token gives up its highest bit, which is never set.
constexpr uint64_t kResidualRank = uint64_t{1} << 63;
constexpr uint64_t kTokenBits = 0x7fffffffu;

uint64_t ranked(uint64_t rank, uint64_t key) {
  return key == 0 ? 0 : rank | key >> 32 << 31 | (key & kTokenBits);
}

}  // namespace

ListedKeys listed_keys(const ResidualInput& input) {
  ListedKeys keys;
  const std::span<const DraftCandidate> draft = input.listed->draft();
  for (size_t c = 0; c < draft.size(); ++c) {
    const DraftCandidate& candidate = draft[c];
    const float scaled = input.listed->scaled_of(c);
    if (scaled < input.cut || scaled == kMasked) continue;
    keys.target = std::max(keys.target, noisy_key(scaled, candidate.token, input.noise));
    const double below_max = static_cast<double>(scaled) - static_cast<double>(input.max);
    const double weight =
        residual_weight(exact_exp(below_max), candidate.draft_prob, input.mass, input.kept_prob);
    if (!(weight > 0.0)) continue;
    const double log_weight = static_cast<double>(input.max) + exact_log(weight);
    keys.residual = std::max(keys.residual, noisy_key(log_weight, candidate.token, input.noise));
  }
  return keys;
}

uint64_t residual_choice(const ListedKeys& listed, uint64_t best_key) {
  const bool has_residual = best_key >> 32 > ordered_bits(kMasked);
  if (has_residual) return ranked(kResidualRank, best_key);
  return target_choice(std::max(best_key, listed.target));
}

uint64_t target_choice(uint64_t key) { return ranked(0, key); }

int32_t chosen_token(uint64_t choice) {
  return static_cast<int32_t>(~static_cast<uint32_t>(choice) & kTokenBits);
}

}  // namespace outrider
