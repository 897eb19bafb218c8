// The server's line about its load, every so often, in the words of vLLM's. Called by the loop that
// waits for the end of the server; one thread.
#pragma once

#include <chrono>
#include <string>

#include "http/api/serving_metrics.h"

namespace outrider {

class LogStats {
 public:
  using Clock = std::chrono::steady_clock;

  // interval_s: 0 = never a line. The metrics must outlive this.
  LogStats(const ServingMetrics& metrics, double interval_s, Clock::time_point now = Clock::now());

  // What happened since the last one, when a line is due and a round has ended since; else empty.
  std::string line_at(Clock::time_point now);

 private:
  struct Totals {
    double rounds = 0;
    double prompt_tokens = 0;
    double generation_tokens = 0;
    double prefix_queries = 0;
    double prefix_hits = 0;
    double drafts = 0;
    double draft_tokens = 0;
    double accepted_tokens = 0;
  };
  Totals totals() const;
  std::string text(const Totals& before, double seconds) const;

  const ServingMetrics& metrics_;
  const std::chrono::duration<double> interval_;
  Clock::time_point last_at_;
  Totals last_;
};

}  // namespace outrider
