// The draw after a rejection on one shard: max(target_prob - draft_prob, 0), normalised (Leviathan
// section 2.3, Chen eq. 2; Sun et al. with kept_prob * target_prob), as a maximum of noisy keys.
// The draft's distribution is a short list, so only its tokens differ from a draw from the target.
// Called by verify().
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
  double kept_prob = 1.0;  // in (0, 1]; below 1 only under the block rule
  NoiseKey noise;
};

// The last draw of a row on this shard, for one MAX over the shards: the residual's best token, or
// with lower rank the target's own, which stands in for a residual that rounding has emptied
// everywhere. 0 on an empty shard.
uint64_t residual_choice(const ResidualInput& input);
// A draw from the target alone (bonus, plain), from its draw_key, in the same form.
uint64_t target_choice(uint64_t key);
// From the maximum over all shards.
int32_t chosen_token(uint64_t choice);

}  // namespace outrider
