// Recorded traffic for `bench serve`: when requests came and how long they were. Two public forms,
// read from files that nobody vouches for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

// Tokens that one hash id of a Mooncake trace stands for.
constexpr int32_t kTraceBlockTokens = 512;

struct TraceRow {
  double arrival_s = 0;  // from the trace's first row
  int32_t input_len = 0;
  int32_t output_len = 0;
  // Mooncake: the prompt's blocks of kTraceBlockTokens tokens; equal ids are equal tokens, so equal
  // beginnings are prefixes that a server can reuse. Empty: nothing is known of the prompt.
  std::vector<int64_t> hash_ids;
};

// Azure's LLM inference trace: CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens, times
// as "2023-11-16 18:17:03.9799600"; or with arrived_at,num_prefill_tokens,num_decode_tokens, times
// in seconds. Rows must be in order of time. Throws Error naming `origin` and the line.
std::vector<TraceRow> parse_azure_trace(std::string_view text, const std::string& origin);

// Mooncake's JSON lines: {"timestamp": ms, "input_length", "output_length", "hash_ids"}. Rows must
// be in order of time, and hash_ids as many as the prompt has blocks. Throws Error naming `origin`
// and the line.
std::vector<TraceRow> parse_mooncake_trace(std::string_view text, const std::string& origin);

// Arrivals times time_scale (0.1 = ten times as fast), lengths times length_scale (at least 1).
void scale_trace(double time_scale, double length_scale, std::vector<TraceRow>* rows);

}  // namespace outrider
