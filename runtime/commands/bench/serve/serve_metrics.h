// From the records of a run of `bench serve` to its figures. Pure. Names and definitions are those
// of vLLM's `bench serve`; where they differ it is said.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/bench/serve/serve_stream.h"

namespace outrider {

// Latencies of one request that succeeded, in milliseconds.
struct RequestLatency {
  int64_t output_tokens = 0;   // of usage when told, else as counted in the chunks
  std::optional<double> ttft;  // first chunk with tokens - sent; none without tokens
  std::optional<double> tpot;  // (e2el - ttft) / (output_tokens - 1); none below two tokens
  double e2el = 0;             // last event that had a choice - sent
  // A chunk of m tokens that comes a gap g after the one before it stands for m latencies of g / m.
  // (vLLM takes every chunk for one token.) The first chunk gives none.
  std::vector<double> itl;
};

RequestLatency latency_of(const RequestRecord& record);

// Limits for goodput (DistServe, arXiv 2401.09670), milliseconds.
struct GoodputLimits {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// Whether a request that succeeded keeps all limits; one without a tpot keeps that limit, as in
// vLLM; one without a first token fails that of ttft.
bool is_good(const RequestLatency& latency, const GoodputLimits& limits);

// The figures of one run. Vectors: milliseconds, one for each sample.
struct ServeSummary {
  double duration_s = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  std::map<std::string, int64_t> failures;    // by their name
  std::map<std::string, std::string> errors;  // one sentence of each kind
  int64_t total_input = 0;                    // of requests that succeeded
  int64_t total_output = 0;
  double request_throughput = 0;
  std::optional<double> request_goodput;
  double output_throughput = 0;
  double total_token_throughput = 0;
  int64_t max_concurrent_requests = 0;
  double max_output_tokens_per_s = 0;  // in the best of a run's seconds
  std::vector<double> ttft, tpot, itl, e2el;
  std::vector<double> lateness;  // sent - scheduled, failed requests too
};

ServeSummary summarize(const std::vector<RequestRecord>& records, const GoodputLimits& goodput);

// The most requests in flight at once; a request that ends when another begins is not counted
// beside it.
int64_t peak_concurrency(const std::vector<RequestRecord>& records);

}  // namespace outrider
