// Recorded traffic in Mooncake's form, for prefix replay: when requests came, how long they were,
// and which beginnings they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

// Tokens that one hash id of a Mooncake trace stands for.
constexpr int32_t kTraceBlockTokens = 512;

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

// A run of random tokens. Equal keys give equal beginnings, whatever the lengths.
struct TracePiece {
  uint64_t key = 0;
  int32_t num_tokens = 0;
};

// The pieces of a trace's prompt: its blocks by hash id, scaled, and what is left over. `salt`
// makes other content of the same structure; `row` tells prompts without hash ids apart.
std::vector<TracePiece> trace_pieces(const TraceRow& scaled_row,
                                     double length_scale,
                                     uint64_t salt,
                                     int32_t row);

}  // namespace outrider
