// The draw after a rejection on one shard: max(target_prob - draft_prob, 0), normalised (Leviathan
// section 2.3, Chen eq. 2), as a maximum of noisy keys. The draft's distribution is a short list,
// so only its tokens differ from a draw from the target. Called by verify().
#pragma once

#include <cstdint>

#include "scheduler/round.h"
#include "scheduler/row_view.h"

namespace outrider {

struct ResidualInput {
  RowView row;
  float max = 0.0f;  // over all shards
  float cut = kMasked;
  uint64_t mass = 0;  // over all shards
  const DraftToken* draft = nullptr;
  NoiseKey noise;
};

struct ResidualKeys {
  uint64_t residual = 0;  // 0 or a key of -infinity: nothing of the residual on this shard
  uint64_t target = 0;
};

ResidualKeys residual_keys(const ResidualInput& input);

// From the maxima over all shards. The target's draw stands in for a residual that rounding has
// emptied.
int32_t chosen_token(const ResidualKeys& keys);

}  // namespace outrider
