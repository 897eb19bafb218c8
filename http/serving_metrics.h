// All metric families of a serving process as typed members. The coordinator updates those of the
// round, the HTTP service those of requests; names follow vLLM so that its dashboards and
// benchmarks read them unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/metrics.h"
#include "scheduler/request.h"

namespace outrider {

class ServingMetrics {
 public:
  // max_draft_len: the highest draft position with a series of its own.
  ServingMetrics(const std::string& model_name, int32_t max_model_len, int32_t max_draft_len);

  std::string render(const std::vector<std::string>& namespaces) const {
    return registry_.render(namespaces);
  }

  Counter& request_success(FinishReason reason);
  Counter& requests_refused(int status);                // requests_refused_total{status}
  Counter& accepted_tokens_at(size_t position) const {  // beyond the last series: the last
    return *accepted_per_position_[position < accepted_per_position_.size()
                                       ? position
                                       : accepted_per_position_.size() - 1];
  }

 private:
  MetricsRegistry registry_;
  std::vector<Counter*> accepted_per_position_;

 public:
  // Set by the coordinator, once a round.
  Gauge& num_requests_running;
  Gauge& num_requests_waiting;
  Gauge& kv_cache_usage_perc;  // 0..1
  Counter& num_preemptions;
  Histogram& iteration_tokens;
  Counter& spec_decode_num_drafts;
  Counter& spec_decode_num_draft_tokens;
  Counter& spec_decode_num_accepted_tokens;
  Gauge& draft_up;  // 1 up, 0 down or none
  Counter& draft_deadline_misses;
  Counter& rounds;
  Histogram& round_seconds;
  Histogram& round_draft_wait_seconds;
  Histogram& round_forward_seconds;
  Histogram& request_queue_time_seconds;
  Counter& logits_not_finite;

  // Set by the HTTP service.
  Counter& prompt_tokens;
  Counter& generation_tokens;
  Histogram& time_to_first_token_seconds;
  Histogram& inter_token_latency_seconds;
  Histogram& request_time_per_output_token_seconds;
  Histogram& e2e_request_latency_seconds;
  Histogram& request_prompt_tokens;
  Histogram& request_generation_tokens;
  Histogram& request_params_n;
  Histogram& request_params_max_tokens;
  Counter& clients_gone;
  Counter& unknown_parameters;
  Gauge& http_connections;
  Counter& http_requests_malformed;
};

}  // namespace outrider
