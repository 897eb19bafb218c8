// What the messages of the draft link leave in a trace, on both ends; nothing when none is
// recorded.
#pragma once

#include "scheduler/drafting/packed_block.h"
#include "scheduler/round.h"

namespace outrider {

// The draft's rank, as it sends; the coordinator's, as it takes the blocks.
void trace_reply_out(const DraftReply& reply);
void trace_reply_in(const PackedReply& reply);

}  // namespace outrider
