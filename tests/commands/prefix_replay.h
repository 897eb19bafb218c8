// A recorded trace through the scheduler alone: real planner, KV blocks and prefix index, ranks
// that take a fixed time for a round and answer anything. What comes out is how much of the
// prompts' KV was there already, and how much could have been. Virtual time, so the same on every
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scheduler/batching/planner.h"

namespace outrider {

// Tokens that one hash id of a Mooncake trace stands for.
constexpr int32_t kTraceBlockTokens = 512;

// A row of a Mooncake trace: when a request came, how long it was, and which beginnings it shares.
struct TraceRow {
  double arrival_s = 0;  // from the trace's first row
  int32_t input_len = 0;
  int32_t output_len = 0;
  // The prompt's blocks of kTraceBlockTokens tokens; equal ids are equal tokens, so equal
  // beginnings are prefixes that a server can reuse. Empty: nothing is known of the prompt.
  std::vector<int64_t> hash_ids;
};

// JSON lines: {"timestamp": ms, "input_length", "output_length", "hash_ids"}. Throws on others.
std::vector<TraceRow> parse_mooncake_trace(const std::string& text);

// Arrivals times time_scale (0.1 = ten times as fast), lengths times length_scale (at least 1).
void scale_trace(double time_scale, double length_scale, std::vector<TraceRow>* rows);

struct ReplayRequest {
  double arrival_s = 0;  // ascending over the requests
  std::vector<int32_t> prompt;
  int32_t output_len = 1;
};

// The requests of a scaled Mooncake trace: equal hash ids are equal tokens. Rows without an answer
// get one token.
std::vector<ReplayRequest> replay_requests(const std::vector<TraceRow>& scaled_rows,
                                           double length_scale,
                                           int32_t vocab_size);

struct ReplaySettings {
  PlannerConfig planner;
  double round_s = 0.03;
  // What the target ranks decide; made up when empty.
  std::function<RoundDecision(const RoundPlan&)> execute;
};

struct ReplayResult {
  std::vector<int32_t> num_cached;  // of each prompt's tokens, whose KV was there
  double seconds = 0;
  int64_t num_rounds = 0;
  int32_t most_running = 0;
  double mean_running = 0;  // over the rounds
  uint64_t num_preemptions = 0;
};

// Runs every request to its end. Throws Error naming a request that can never run.
ReplayResult replay(const std::vector<ReplayRequest>& requests, const ReplaySettings& settings);

// With endless memory and prompts computed the moment they arrive: of each prompt, the tokens in
// leading full blocks that an earlier prompt begins with too. The last token is always computed.
std::vector<int32_t> reusable_tokens(const std::vector<ReplayRequest>& requests,
                                     int32_t block_size);

// Blocks that would hold all prompts and answers at once.
int32_t blocks_for_all(const std::vector<ReplayRequest>& requests, int32_t block_size);

}  // namespace outrider
