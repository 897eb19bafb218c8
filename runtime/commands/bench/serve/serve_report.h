// From the records of a run of `bench serve` to its figures, and to the report that all benchmarks
// share. Names and definitions are those of vLLM's `bench serve` and its result files; where they
// differ it is said. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/bench/serve/serve_options.h"
#include "runtime/commands/bench/serve/serve_run.h"

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

struct ServeFindings {
  std::string server;  // its address
  std::string model;
  std::vector<RequestRecord> records;
  SpeculationCounters speculation;  // what they grew by
  bool stopped = false;             // by a signal, before all was sent
};

// The JSON's own part: the figures, and "requests" with the times of each.
void fill_serve_report(const ServeBenchOptions& options,
                       const ServeSetup& setup,
                       const ServeFindings& findings,
                       BenchReport* report);

}  // namespace outrider
