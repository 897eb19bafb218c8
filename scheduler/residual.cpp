// See residual.h.
#include "scheduler/residual.h"

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler/rules.h"
#include "scheduler/statistics.h"

namespace outrider {
namespace {

// A key with one bit of rank above it; the token gives up its highest bit, which is never set.
constexpr uint64_t kResidualRank = uint64_t{1} << 63;
constexpr uint64_t kTokenBits = 0x7fffffffu;

uint64_t ranked(uint64_t rank, uint64_t key) {
  return key == 0 ? 0 : rank | key >> 32 << 31 | (key & kTokenBits);
}

}  // namespace

uint64_t residual_choice(const ResidualInput& input) {
  const RowView& row = input.row;
  const std::vector<DraftCandidate> draft = draft_distribution(*input.draft);
  // The draft's tokens are masked for the common draw and looked at one by one after it.
  std::map<int32_t, float> edits;
  for (size_t i = 0; i < row.edit_index.size(); ++i) edits[row.edit_index[i]] = row.edit_value[i];
  for (const DraftCandidate& candidate : draft) {
    const int32_t index = candidate.token - row.first_token;
    if (index >= 0 && index < row.size) edits[index] = kMasked;
  }
  std::vector<int32_t> edit_index;
  std::vector<float> edit_value;
  for (const auto& [index, value] : edits) {
    edit_index.push_back(index);
    edit_value.push_back(value);
  }
  RowView others = row;
  others.edit_index = edit_index;
  others.edit_value = edit_value;
  const uint64_t common = draw_key(others, input.cut, input.noise);
  uint64_t residual_key = common;
  uint64_t target_key = common;
  for (const DraftCandidate& candidate : draft) {
    const int32_t index = candidate.token - row.first_token;
    if (index < 0 || index >= row.size) continue;
    const float scaled = row.scaled(index);
    if (scaled < input.cut || scaled == kMasked) continue;
    target_key = std::max(target_key, noisy_key(scaled, candidate.token, input.noise));
    const double below_max = static_cast<double>(scaled) - static_cast<double>(input.max);
    const double weight =
        residual_weight(exact_exp(below_max), candidate.draft_prob, input.mass, input.kept_prob);
    if (!(weight > 0.0)) continue;
    const double log_weight = static_cast<double>(input.max) + exact_log(weight);
    residual_key = std::max(residual_key, noisy_key(log_weight, candidate.token, input.noise));
  }
  const bool has_residual = residual_key >> 32 > ordered_bits(kMasked);
  return has_residual ? ranked(kResidualRank, residual_key) : target_choice(target_key);
}

uint64_t target_choice(uint64_t key) { return ranked(0, key); }

int32_t chosen_token(uint64_t choice) {
  return static_cast<int32_t>(~static_cast<uint32_t>(choice) & kTokenBits);
}

}  // namespace outrider
