// See serving_metrics.h. Names, kinds and bucket bounds of the shared families are vLLM's.
#include "http/serving_metrics.h"

#include <algorithm>

namespace outrider {
namespace {

const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                                0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                                20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenSeconds = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kRoundSeconds = {
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5};
const std::vector<double> kIterationTokens = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// 1, 2, 5, 10, 20, 50, ... up to the given maximum.
std::vector<double> one_two_five(int32_t maximum) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= maximum; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= maximum) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

MetricName shared(std::string name, std::string help) {
  return {std::move(name), std::move(help), MetricScope::kShared};
}
MetricName own(std::string name, std::string help) {
  return {std::move(name), std::move(help), MetricScope::kOwn};
}

const char* reason_label(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kNone:
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace

ServingMetrics::ServingMetrics(const std::string& model_name,
                               int32_t max_model_len,
                               int32_t max_draft_len)
    : registry_({{"model_name", model_name}, {"engine", "0"}}),
      num_requests_running(
          registry_.gauge(shared("num_requests_running", "Requests in the running batch."))),
      num_requests_waiting(
          registry_.gauge(shared("num_requests_waiting", "Requests that wait to be run."))),
      kv_cache_usage_perc(registry_.gauge(
          shared("kv_cache_usage_perc", "Share of the KV blocks in use, 1 means all."))),
      num_preemptions(registry_.counter(shared(
          "num_preemptions_total", "Sequences put back to the queue for want of KV blocks."))),
      iteration_tokens(registry_.histogram(
          shared("iteration_tokens_total", "Rows computed per round."), kIterationTokens)),
      spec_decode_num_drafts(
          registry_.counter(shared("spec_decode_num_drafts_total", "Draft blocks verified."))),
      spec_decode_num_draft_tokens(registry_.counter(
          shared("spec_decode_num_draft_tokens_total", "Draft tokens verified."))),
      spec_decode_num_accepted_tokens(registry_.counter(
          shared("spec_decode_num_accepted_tokens_total", "Draft tokens accepted."))),
      draft_up(registry_.gauge(own("draft_up", "1 while the draft worker answers."))),
      draft_deadline_misses(registry_.counter(
          own("draft_deadline_misses_total", "Rounds that went on without a draft that was due."))),
      rounds(registry_.counter(own("rounds_total", "Rounds decided."))),
      round_seconds(registry_.histogram(own("round_seconds", "Length of a round."), kRoundSeconds)),
      round_draft_wait_seconds(registry_.histogram(
          own("round_draft_wait_seconds", "Time a round waited for the draft."), kRoundSeconds)),
      round_forward_seconds(registry_.histogram(
          own("round_forward_seconds", "Forward pass and verification of a round."),
          kRoundSeconds)),
      request_queue_time_seconds(registry_.histogram(
          shared("request_queue_time_seconds", "Time from arrival to the first round."),
          kRequestSeconds)),
      logits_not_finite(registry_.counter(
          own("logits_not_finite_total", "Requests ended because of NaN or infinite logits."))),
      prompt_tokens(registry_.counter(shared("prompt_tokens_total", "Prompt tokens processed."))),
      generation_tokens(registry_.counter(shared("generation_tokens_total", "Tokens generated."))),
      time_to_first_token_seconds(registry_.histogram(
          shared("time_to_first_token_seconds", "Time to the first token."), kFirstTokenSeconds)),
      inter_token_latency_seconds(registry_.histogram(
          shared("inter_token_latency_seconds", "Time between tokens; a round's tokens share it."),
          kTokenSeconds)),
      request_time_per_output_token_seconds(registry_.histogram(
          shared("request_time_per_output_token_seconds", "Mean time per token of a request."),
          kTokenSeconds)),
      e2e_request_latency_seconds(registry_.histogram(
          shared("e2e_request_latency_seconds", "Time from arrival to the end."), kRequestSeconds)),
      request_prompt_tokens(
          registry_.histogram(shared("request_prompt_tokens", "Prompt tokens of a request."),
                              one_two_five(max_model_len))),
      request_generation_tokens(
          registry_.histogram(shared("request_generation_tokens", "Generated tokens of a request."),
                              one_two_five(max_model_len))),
      request_params_n(registry_.histogram(
          shared("request_params_n", "The n parameter of requests."), {1, 2, 5, 10, 20})),
      request_params_max_tokens(registry_.histogram(
          shared("request_params_max_tokens", "The max_tokens parameter of requests."),
          one_two_five(max_model_len))),
      clients_gone(registry_.counter(
          own("clients_gone_total", "Calls cancelled because the client went away."))),
      unknown_parameters(registry_.counter(
          own("unknown_parameters_total", "Request fields that are not known and were ignored."))),
      http_connections(registry_.gauge(own("http_connections", "Open HTTP connections."))),
      http_requests_malformed(registry_.counter(
          own("http_requests_malformed_total", "Requests refused before they were routed."))) {
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAborted, FinishReason::kError}) {
    request_success(reason);
  }
  for (int32_t position = 0; position < std::max(1, max_draft_len); ++position) {
    accepted_per_position_.push_back(
        &registry_.counter(shared("spec_decode_num_accepted_tokens_per_pos_total",
                                  "Draft tokens accepted, by position in the draft."),
                           {{"position", std::to_string(position)}}));
  }
}

Counter& ServingMetrics::request_success(FinishReason reason) {
  return registry_.counter(shared("request_success_total", "Requests ended, by reason."),
                           {{"finished_reason", reason_label(reason)}});
}

Counter& ServingMetrics::requests_refused(int status) {
  return registry_.counter(own("requests_refused_total", "Calls answered with an error."),
                           {{"status", std::to_string(status)}});
}

}  // namespace outrider
