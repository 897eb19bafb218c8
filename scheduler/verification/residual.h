// The draw after a rejection on one shard: max(target_prob - draft_prob, 0), normalised (Leviathan
// section 2.3, Chen eq. 2; Sun et al. with kept_prob * target_prob), as a maximum of noisy keys.
// The draft's distribution is a short list, so only its tokens differ from a draw from the target.
// Called by verify().
#pragma once

#include <cstdint>

#include "scheduler/verification/listed_tokens.h"

namespace outrider {

struct ResidualInput {
  const ListedTokens* listed = nullptr;  // the draft's, scaled in the row
  float max = 0.0f;                      // of the row, over all shards
  float cut = kMasked;
  uint64_t mass = 0;       // over all shards
  double kept_prob = 1.0;  // in (0, 1]; below 1 only under the block rule
  NoiseKey noise;
};

// The draft's tokens are looked at one by one, and masked for the draw among all others.
struct ListedKeys {
  uint64_t residual = 0;  // the best of them in the residual: what the others have to beat
  uint64_t target = 0;    // the best of them in the target's own distribution
};
ListedKeys listed_keys(const ResidualInput& input);

// The last draw of a row on this shard, for one MAX over the shards: the residual's best token, or
// with lower rank the target's own, which stands in for a residual that rounding has freed
// everywhere. best_key: of the draw among the others, with listed.residual to beat. 0 on an empty
// shard.
uint64_t residual_choice(const ListedKeys& listed, uint64_t best_key);
// A draw from the target alone (bonus, plain), from its draw_key, in the same form.
uint64_t target_choice(uint64_t key);
// From the maximum over all shards.
int32_t chosen_token(uint64_t choice);

}  // namespace outrider
