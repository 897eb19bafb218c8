// From the records of a run of `bench serve` to its figures. Pure. Names and definitions are those
// of vLLM's `bench serve`; where they differ it is said.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/commands/bench/serve/serve_stream.h"

namespace outrider {

constexpr double kSameChunkS = 1e-4;

// Latencies of one request that succeeded, in seconds.
struct RequestLatency {
  int64_t output_tokens = 0;   // of usage when told, else as counted in the chunks
  std::optional<double> ttft;  // first chunk with tokens - sent; none without tokens
  std::optional<double> tpot;  // (e2el - ttft) / (output_tokens - 1); none below two tokens
  double e2el = 0;             // last event that had a choice - sent
  // Events less than kSameChunkS after the first of their chunk belong to it: a round's tokens are
  // one event with some servers and one event each, in one packet, with others (llama.cpp).
  // Inter-token latency: a chunk of m tokens that comes a gap g after the one before it stands for
  // m latencies of g / m. (vLLM takes every chunk for one token.) The first chunk gives none.
  std::vector<double> itl;
  std::vector<double> icl;  // inter-chunk latency: the gaps themselves
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

struct LatencyStats {
  int64_t count = 0;
  double mean = 0;
  double std = 0;  // of the population
  double median = 0;
  std::vector<std::pair<double, double>> percentiles;  // (percent, value)
};

// values in any order and unit; all is 0 for none. Percentiles are those of quantile().
LatencyStats latency_stats(const std::vector<double>& values, const std::vector<double>& percents);

// The figures of one run, or of the runs of one variant taken together. Latencies in milliseconds.
struct ServeSummary {
  double duration_s = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  std::map<std::string, int64_t> failures;    // by failure_name
  std::map<std::string, std::string> errors;  // one sentence of each kind
  int64_t total_input = 0;                    // of requests that succeeded
  int64_t total_asked_input = 0;              // what their prompts were made for
  int64_t total_output = 0;
  double request_throughput = 0;
  std::optional<double> request_goodput;
  double output_throughput = 0;
  double total_token_throughput = 0;
  int64_t max_concurrent_requests = 0;
  double max_output_tokens_per_s = 0;  // in the best of a run's seconds
  LatencyStats ttft, tpot, itl, icl, e2el;
  LatencyStats queue;     // waiting for a place under max_concurrency
  LatencyStats lateness;  // sent later than scheduled, or than a place was free: the client's fault
  int64_t num_chunks = 0;
  int64_t num_chunk_tokens = 0;
  std::map<ChunkCount, int64_t> count_by;  // requests that succeeded
  int64_t num_usage = 0;                   // of those, how many told their usage
  std::map<std::string, int64_t> finish_reasons;
  SpeculationCount speculation;  // summed over requests that told
};

struct SummaryOptions {
  std::vector<double> percents = {50, 95, 99};
  GoodputLimits goodput;
};

// Records of runs that did not overlap, each with times from its own start.
ServeSummary summarize(const std::vector<const std::vector<RequestRecord>*>& runs,
                       const SummaryOptions& options);

// From the first request's scheduled time (or sending, when that is earlier) to the last end.
double run_duration_s(const std::vector<RequestRecord>& records);

// The most requests in flight at once; a request that ends when another begins is not counted
// beside it.
int64_t peak_concurrency(const std::vector<RequestRecord>& records);

}  // namespace outrider
