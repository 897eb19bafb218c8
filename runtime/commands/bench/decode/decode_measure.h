// The measuring part of bench decode: passes over the same prompts with each draft length in turns.
// Front ends on rank 0; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/commands/bench/bench_requests.h"
#include "runtime/commands/bench/report/bench_progress.h"
#include "runtime/commands/bench/report/bench_statistics.h"
#include "runtime/commands/bench/speedup_formulas.h"
#include "runtime/ranks/job/job.h"

namespace outrider {

struct DecodeOptions {
  std::string prompts_file;  // empty = a few of our own
  int32_t num_prompts = 8;
  int32_t max_tokens = 128;
  int32_t concurrency = 1;
  int32_t num_repeats = 3;
  double temperature = 0;
  int32_t seed = -1;                // none
  std::vector<int32_t> draft_lens;  // ascending, the first is 0; empty = 0 and the server's
  // Pairs of models beside the configuration's own, a job each.
  std::vector<double> epsilons;
  std::vector<std::string> drafts;
};

// All passes with one draft length. Lists have one entry a pass; pass i of every length belongs to
// the same turn.
struct DecodeLength {
  int32_t draft_len = 0;  // the longest
  bool is_auto = false;   // up to that; how many, the planner says
  std::vector<double> tokens_per_s;
  std::vector<double> prefill_tokens_per_s;  // prompt tokens by time to first token; one in flight
  std::vector<double> step_ms;               // mean round: plain for length 0, else a verification
  std::vector<double> draft_step_ms;
  std::vector<int64_t> drafted;  // by position in the block
  std::vector<int64_t> examined;
  std::vector<int64_t> accepted;
  int64_t num_rounds = 0;
  int64_t num_tokens = 0;
  std::vector<std::vector<int32_t>> texts;  // of all passes

  double alpha() const;  // accepted / examined
  double tokens_per_round() const;
  double mean_draft_len() const;  // of the blocks that had a token
  std::string name() const;       // "4", "auto, 3.2 on average"
};

struct DecodeMeasurement {
  std::string model;
  std::string draft;  // empty = none
  int num_target_ranks = 1;
  std::vector<DecodeLength> lengths;  // the first without speculation

  const DecodeLength& plain() const { return lengths.front(); }
  PairStepTimes step_times(const DecodeLength& length) const;  // medians, ms
  double cost_ratio(const DecodeLength& length) const;
  Interval speedup(const DecodeLength& length) const;  // over plain(), turn by turn
  int num_same_text(const DecodeLength& length) const;
};

DecodeMeasurement measure_decode(const FrontEndContext& context,
                                 const DecodeOptions& options,
                                 Progress* progress);

}  // namespace outrider
