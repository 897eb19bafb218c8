// See residual.h.
#include "scheduler/residual.h"

#include <algorithm>
#include <span>
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

struct Edits {
  std::vector<int32_t> index;
  std::vector<float> value;
};

// The row's own, and the draft's tokens masked; ascending.
Edits edits_without(const RowView& row, std::span<const DraftCandidate> draft) {
  std::vector<int32_t> masked;
  for (const DraftCandidate& candidate : draft) {
    const int32_t index = candidate.token - row.first_token;
    if (index >= 0 && index < row.size) masked.push_back(index);
  }
  std::sort(masked.begin(), masked.end());
  Edits edits;
  edits.index.reserve(row.edit_index.size() + masked.size());
  edits.value.reserve(row.edit_index.size() + masked.size());
  const auto append = [&](int32_t index, float value) {
    edits.index.push_back(index);
    edits.value.push_back(value);
  };
  size_t next = 0;
  for (const int32_t index : masked) {
    for (; next < row.edit_index.size() && row.edit_index[next] < index; ++next)
      append(row.edit_index[next], row.edit_value[next]);
    if (next < row.edit_index.size() && row.edit_index[next] == index) ++next;
    append(index, kMasked);
  }
  for (; next < row.edit_index.size(); ++next) append(row.edit_index[next], row.edit_value[next]);
  return edits;
}

}  // namespace

uint64_t residual_choice(const ResidualInput& input) {
  const RowView& row = input.row;
  const DraftCandidate certain = {input.draft->token, 1.0f};
  const std::vector<DraftCandidate>& listed = input.draft->candidates;
  const std::span<const DraftCandidate> draft = listed.empty() ? std::span(&certain, 1) : listed;
  // The draft's tokens are looked at one by one, and masked for the draw among all others.
  const Edits edits = edits_without(row, draft);
  RowView others = row;
  others.edit_index = edits.index;
  others.edit_value = edits.value;
  uint64_t residual_key = 0;
  uint64_t target_key = 0;
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
  residual_key = draw_key(others, input.cut, input.noise, residual_key);
  const bool has_residual = residual_key >> 32 > ordered_bits(kMasked);
  if (has_residual) return ranked(kResidualRank, residual_key);
  return target_choice(std::max(residual_key, target_key));
}

uint64_t target_choice(uint64_t key) { return ranked(0, key); }

int32_t chosen_token(uint64_t choice) {
  return static_cast<int32_t>(~static_cast<uint32_t>(choice) & kTokenBits);
}

}  // namespace outrider
