// Times of what a rank does in a round besides its models, on made-up logits and without a job:
// judging, proposing, and turning plans and replies into bytes and back. Called by `bench round`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/ops/thread_plan.h"
#include "scheduler/request.h"

namespace outrider {

struct RoundShape {
  int32_t num_sequences = 1;
  int32_t draft_len = 4;
  int32_t num_candidates = 16;
  int32_t vocab_size = 32000;
  int32_t num_shards = 1;  // the logits' columns are one shard's
  SamplingParams params;
};

struct RoundCost {
  std::string name;
  std::vector<double> microseconds;  // of each repeat
};

// threads: those of one rank, which judge and propose. Throws Error when a message does not come
// back as it went.
std::vector<RoundCost> round_costs(const RoundShape& shape,
                                   const ops::ThreadPlan& threads,
                                   int32_t num_repeats);

}  // namespace outrider
