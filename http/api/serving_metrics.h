// All metric families of a serving process as typed members. The coordinator updates those of the
// round, the HTTP service those of requests; names follow vLLM so that its dashboards and
// benchmarks read them unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/block_source.h"
#include "runtime/base/telemetry/metrics.h"
#include "scheduler/request.h"

namespace outrider {

class ServingMetrics {
 public:
  // max_draft_len: the highest draft position with a series of its own.
  ServingMetrics(const std::string& model_name, int32_t max_model_len, int32_t max_draft_len);

  // With what the process itself says, under the name all Prometheus clients use.
  std::string render(const std::vector<std::string>& namespaces) const;

  Counter& request_success(FinishReason reason);
  Counter& requests_refused(int status);                // requests_refused_total{status}
  void set_cache_config(const MetricLabels& config);    // cache_config_info, once
  Counter& accepted_tokens_at(size_t position) const {  // beyond the last series: the last
    return *accepted_per_position_[position < accepted_per_position_.size()
                                       ? position
                                       : accepted_per_position_.size() - 1];
  }

  // spec_decode_num_{draft,accepted}_tokens_by_source_total{source}
  void count_draft(BlockSource source, size_t num_drafted, int32_t num_accepted);

 private:
  // Shared families are shown under vLLM's namespace too; their names and bounds are vLLM's.
  Counter& shared_counter(const char* name, const char* help);
  Gauge& shared_gauge(const char* name, const char* help);
  Histogram& shared_histogram(const char* name, const char* help, std::vector<double> bounds);
  Counter& own_counter(const char* name, const char* help, const char* old_name = "");
  Gauge& own_gauge(const char* name, const char* help, const char* old_name = "");
  Histogram& own_histogram(const char* name, const char* help, std::vector<double> bounds);
  Gauge& waiting_for(const char* reason);
  Counter& link_bytes(const std::string& link);

  static const std::vector<double> kFirstTokenSeconds;
  static const std::vector<double> kTokenSeconds;
  static const std::vector<double> kRequestSeconds;
  static const std::vector<double> kRoundSeconds;
  static const std::vector<double> kIterationTokens;

  MetricsRegistry registry_;
  std::vector<double> num_tokens_bounds_;  // up to max_model_len
  std::vector<Counter*> accepted_per_position_;
  std::vector<Counter*> drafted_by_source_;
  std::vector<Counter*> accepted_by_source_;

 public:
  // Set by the coordinator, once a round.
  Gauge& num_requests_running =
      shared_gauge("num_requests_running", "Requests in the running batch.");
  Gauge& num_requests_waiting =
      shared_gauge("num_requests_waiting", "Requests that wait to be run.");
  Gauge& num_requests_waiting_for_capacity = waiting_for("capacity");
  Gauge& kv_cache_usage_perc =
      shared_gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 1 means all.");
  Counter& num_preemptions = shared_counter(
      "num_preemptions_total", "Sequences put back to the queue for want of KV blocks.");
  Counter& prefix_cache_queries =
      shared_counter("prefix_cache_queries_total",
                     "Prompt tokens that were looked up in the KV of earlier requests.");
  Counter& prefix_cache_hits = shared_counter(
      "prefix_cache_hits_total", "Prompt tokens whose KV was there and was not computed again.");
  Histogram& iteration_tokens =
      shared_histogram("iteration_tokens_total", "Rows computed per round.", kIterationTokens);
  Counter& spec_decode_num_drafts =
      shared_counter("spec_decode_num_drafts_total", "Draft blocks verified.");
  Counter& spec_decode_num_draft_tokens =
      shared_counter("spec_decode_num_draft_tokens_total", "Draft tokens verified.");
  Counter& spec_decode_num_accepted_tokens =
      shared_counter("spec_decode_num_accepted_tokens_total", "Draft tokens accepted.");
  // Rank 0's; set once. KV and buffers are taken from the system when they are first used.
  Gauge& weight_bytes = own_gauge("weight_bytes", "Memory of rank 0's weights.");
  Gauge& kv_cache_bytes = own_gauge("kv_cache_bytes", "Memory of all of rank 0's KV blocks.");
  Gauge& buffer_bytes = own_gauge("buffer_bytes", "Memory of what a step of rank 0 may write.");
  Gauge& draft_up = own_gauge("draft_up", "1 while the draft worker answers.");
  Counter& draft_restarts = own_counter(
      "draft_restarts_total", "Times a draft took over: started again, attached, or another one.");
  Gauge& draft_standbys =
      own_gauge("draft_standbys", "Drafts that could take over from the one that serves.");
  Counter& draft_deadline_misses = own_counter("draft_deadline_misses_total",
                                               "Rounds that went on without a draft that was due.");
  Counter& draft_dropped_frames = own_counter(
      "draft_dropped_frames_total", "Messages of the draft that were damaged or of another job.");
  // Bytes that crossed a link, by link (docs/round.md, Bytes): to_draft and from_draft (frames),
  // plan (to all target ranks), sampling (what one target rank hands over).
  Counter& link_bytes_to_draft = link_bytes("to_draft");
  Counter& link_bytes_from_draft = link_bytes("from_draft");
  Counter& link_bytes_plan = link_bytes("plan");
  Counter& link_bytes_partial_sums = link_bytes("partial_sums");
  Counter& link_bytes_sampling = link_bytes("sampling");
  Counter& sampling_collectives = own_counter(
      "sampling_collectives_total", "Collectives of the sampling path between target ranks.");
  Counter& rounds = own_counter("rounds_total", "Rounds decided.");
  Histogram& round_seconds = own_histogram("round_seconds", "Length of a round.", kRoundSeconds);
  Histogram& round_draft_wait_seconds = own_histogram(
      "round_draft_wait_seconds", "Time a round waited for the draft.", kRoundSeconds);
  Histogram& round_forward_seconds = own_histogram(
      "round_forward_seconds", "Forward pass and verification of a round.", kRoundSeconds);
  // What speculation brought and cost (scheduler/pacing/speedup_account.h, docs/metrics.md).
  Counter& target_wait_seconds = own_counter(
      "target_wait_seconds_total", "Time the targets were idle, waiting for draft tokens.");
  Counter& target_busy_seconds = own_counter(
      "target_busy_seconds_total", "Forward passes, verifications and agreements together.");
  Counter& draft_busy_seconds =
      own_counter("draft_busy_seconds_total", "Forward passes of the draft together.");
  Counter& draft_idle_seconds =
      own_counter("draft_idle_seconds_total", "Time the draft had nothing to do.");
  Counter& draft_rest_rounds = own_counter(
      "draft_rest_rounds_total", "Rounds that left the draft idle because it did not pay.");
  Counter& verified_rows =
      own_counter("verified_rows_total", "Rows the targets computed, of prompts and drafts too.");
  Counter& wasted_rows = own_counter("wasted_rows_total", "Draft tokens verified and rejected.");
  Counter& speculation_cache_queries = own_counter("speculation_cache_queries_total",
                                                   "Outcomes looked up in the speculation cache.",
                                                   "outcome_cache_queries_total");
  Counter& speculation_cache_hits = own_counter("speculation_cache_hits_total",
                                                "Outcomes whose next draft was ready.",
                                                "outcome_cache_hits_total");
  Counter& draft_blocks_stale = own_counter("draft_blocks_stale_total",
                                            "Blocks dropped because the text went on differently.");
  Counter& prepared_tokens =
      own_counter("prepared_tokens_total", "Draft tokens kept for outcomes that may come.");
  Counter& prepared_tokens_dropped =
      own_counter("prepared_tokens_dropped_total", "Of these, for outcomes that did not come.");
  Counter& compared_seconds = own_counter(
      "speedup_compared_seconds_total", "Length of the rounds that the speed-up is counted over.");
  Counter& compared_tokens =
      own_counter("speedup_compared_tokens_total", "Tokens that came out of those rounds.");
  Counter& without_speculation_seconds =
      own_counter("speedup_without_speculation_seconds_total",
                  "What those tokens would have taken with one row per sequence and step.");
  Gauge& target_bubble_ratio = own_gauge(
      "target_bubble_ratio", "Share of the rounds' time the targets waited for the draft.");
  Gauge& speculation_cache_hit_rate = own_gauge("speculation_cache_hit_rate",
                                                "Hits of the speculation cache by queries.",
                                                "outcome_cache_hit_rate");
  Gauge& acceptance =
      own_gauge("acceptance_ratio", "Chance that an examined draft token is accepted.");
  Gauge& draft_cost_ratio =
      own_gauge("draft_cost_ratio", "A draft step by a target step of one row per sequence.");
  Gauge& speedup_measured =
      own_gauge("speedup_measured", "Tokens per second by those without speculation.");
  Gauge& speedup_predicted =
      own_gauge("speedup_predicted", "The same by the formula, from what was measured.");
  Gauge& tokens_per_second_without_speculation =
      own_gauge("tokens_per_second_without_speculation",
                "The counterfactual, from the measured cost of plain steps.");
  Counter& kv_accounting_faults = own_counter(
      "kv_accounting_faults_total",
      "Times the scheduler's KV block accounting was found wrong; 0 unless the program is.");
  Counter& logits_not_finite =
      own_counter("logits_not_finite_total", "Requests ended because of NaN or infinite logits.");

  // Set by the HTTP service.
  Counter& prompt_tokens = shared_counter("prompt_tokens_total", "Prompt tokens processed.");
  Counter& prompt_tokens_cached =
      shared_counter("prompt_tokens_cached_total", "Of these, tokens whose KV was there already.");
  Counter& generation_tokens = shared_counter("generation_tokens_total", "Tokens generated.");
  Histogram& time_to_first_token_seconds = shared_histogram(
      "time_to_first_token_seconds", "Time to the first token.", kFirstTokenSeconds);
  Histogram& inter_token_latency_seconds =
      shared_histogram("inter_token_latency_seconds",
                       "Time between tokens; a round's tokens share it.",
                       kTokenSeconds);
  Histogram& request_time_per_output_token_seconds = shared_histogram(
      "request_time_per_output_token_seconds", "Mean time per token of a request.", kTokenSeconds);
  Histogram& e2e_request_latency_seconds = shared_histogram(
      "e2e_request_latency_seconds", "Time from arrival to the end.", kRequestSeconds);
  // Of the engine's own times, which a slow client does not lengthen.
  Histogram& request_queue_time_seconds = shared_histogram(
      "request_queue_time_seconds", "Time from arrival to the first round.", kRequestSeconds);
  Histogram& request_prefill_time_seconds =
      shared_histogram("request_prefill_time_seconds",
                       "Time from the first round to the first token.",
                       kRequestSeconds);
  Histogram& request_decode_time_seconds = shared_histogram(
      "request_decode_time_seconds", "Time from the first token to the last.", kRequestSeconds);
  Histogram& request_inference_time_seconds =
      shared_histogram("request_inference_time_seconds",
                       "Time from the first round to the last token.",
                       kRequestSeconds);
  Histogram& request_num_preemptions = shared_histogram(
      "request_num_preemptions", "How often a request was preempted.", {0, 1, 2, 5, 10, 20});
  Histogram& request_prompt_tokens =
      shared_histogram("request_prompt_tokens", "Prompt tokens of a request.", num_tokens_bounds_);
  Histogram& request_generation_tokens = shared_histogram(
      "request_generation_tokens", "Generated tokens of a request.", num_tokens_bounds_);
  Histogram& request_params_n =
      shared_histogram("request_params_n", "The n parameter of requests.", {1, 2, 5, 10, 20});
  Histogram& request_params_max_tokens = shared_histogram(
      "request_params_max_tokens", "The max_tokens parameter of requests.", num_tokens_bounds_);
  Counter& clients_gone =
      own_counter("clients_gone_total", "Calls cancelled because the client went away.");
  Counter& unknown_parameters = own_counter("unknown_parameters_total",
                                            "Request fields that are not known and were ignored.");
  Gauge& http_connections = own_gauge("http_connections", "Open HTTP connections.");
  Counter& http_requests_malformed =
      own_counter("http_requests_malformed_total", "Requests refused before they were routed.");
};

}  // namespace outrider
