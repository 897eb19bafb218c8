// See residual.h.
#include "scheduler/residual.h"

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler/rules.h"
#include "scheduler/statistics.h"

namespace outrider {

ResidualKeys residual_keys(const ResidualInput& input) {
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
  ResidualKeys keys{common, common};
  for (const DraftCandidate& candidate : draft) {
    const int32_t index = candidate.token - row.first_token;
    if (index < 0 || index >= row.size) continue;
    const float scaled = row.scaled(index);
    if (scaled < input.cut || scaled == kMasked) continue;
    keys.target = std::max(keys.target, noisy_key(scaled, candidate.token, input.noise));
    const double below_max = static_cast<double>(scaled) - static_cast<double>(input.max);
    const double weight = residual_weight(exact_exp(below_max), candidate.draft_prob, input.mass);
    if (!(weight > 0.0)) continue;
    const double log_weight = static_cast<double>(input.max) + exact_log(weight);
    keys.residual = std::max(keys.residual, noisy_key(log_weight, candidate.token, input.noise));
  }
  return keys;
}

int32_t chosen_token(const ResidualKeys& keys) {
  const bool has_residual = keys.residual >> 32 > ordered_bits(kMasked);
  return key_token(has_residual ? keys.residual : keys.target);
}

}  // namespace outrider
