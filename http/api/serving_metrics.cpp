// See serving_metrics.h. Names, kinds and bucket bounds of the shared families are vLLM's.
#include "http/api/serving_metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/telemetry/process_memory.h"

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
    : registry_({{"model_name", model_name}, {"engine", "0"}}), max_model_len_(max_model_len) {
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAborted, FinishReason::kError}) {
    request_success(reason);
  }
  for (const int status : {400, 401, 404, 413, 429, 500, 503}) requests_refused(status);
  waiting_for("deferred");  // vLLM's other reason: for adapters and transfers, which are not here
  for (int32_t position = 0; position < std::max(1, max_draft_len); ++position) {
    accepted_per_position_.push_back(
        &registry_.counter({"spec_decode_num_accepted_tokens_per_pos_total",
                            "Draft tokens accepted, by position in the draft."},
                           {{"position", std::to_string(position)}}));
  }
  for (const char* source : kBlockSourceNames) {
    drafted_by_source_.push_back(&registry_.counter({"spec_decode_num_draft_tokens_by_source_total",
                                                     "Draft tokens verified, by who proposed them.",
                                                     MetricScope::kOwn},
                                                    {{"source", source}}));
    accepted_by_source_.push_back(
        &registry_.counter({"spec_decode_num_accepted_tokens_by_source_total",
                            "Draft tokens accepted, by who proposed them.",
                            MetricScope::kOwn},
                           {{"source", source}}));
  }
}

void ServingMetrics::count_draft(BlockSource source, size_t num_drafted, int32_t num_accepted) {
  if (num_drafted == 0) return;
  drafted_by_source_[static_cast<size_t>(source)]->add(static_cast<double>(num_drafted));
  accepted_by_source_[static_cast<size_t>(source)]->add(num_accepted);
}

Histogram& ServingMetrics::histogram(const MetricName& name, Buckets buckets) {
  switch (buckets) {
    case Buckets::kFirstTokenSeconds:
      return registry_.histogram(name, kFirstTokenSeconds);
    case Buckets::kTokenSeconds:
      return registry_.histogram(name, kTokenSeconds);
    case Buckets::kRequestSeconds:
      return registry_.histogram(name, kRequestSeconds);
    case Buckets::kRoundSeconds:
      return registry_.histogram(name, kRoundSeconds);
    case Buckets::kIterationTokens:
      return registry_.histogram(name, kIterationTokens);
    case Buckets::kTokens:
      return registry_.histogram(name, one_two_five(max_model_len_));
    case Buckets::kChoices:
      return registry_.histogram(name, {1, 2, 5, 10, 20});
    case Buckets::kPreemptions:
      return registry_.histogram(name, {0, 1, 2, 5, 10, 20});
  }
  return registry_.histogram(name, {1});
}

Counter& ServingMetrics::request_success(FinishReason reason) {
  return registry_.counter({"request_success_total", "Requests ended, by reason."},
                           {{"finished_reason", reason_label(reason)}});
}

Histogram& ServingMetrics::request_seconds(const char* name, const char* help) {
  return histogram({name, help, MetricScope::kShared}, Buckets::kRequestSeconds);
}

Gauge& ServingMetrics::waiting_for(const char* reason) {
  return registry_.gauge({"num_requests_waiting_by_reason",
                          "Requests that wait to be run, by what they wait for.",
                          MetricScope::kShared},
                         {{"reason", reason}});
}

void ServingMetrics::set_cache_config(const MetricLabels& config) {
  registry_
      .gauge({"cache_config_info", "The KV cache, in its labels.", MetricScope::kShared}, config)
      .set(1);
}

Counter& ServingMetrics::link_bytes(const std::string& link) {
  return registry_.counter({"link_bytes_total", "Bytes over a link.", MetricScope::kOwn},
                           {{"link", link}});
}

Counter& ServingMetrics::own_counter(const char* name, const char* help, const char* old_name) {
  return registry_.counter({name, help, MetricScope::kOwn, old_name});
}

Gauge& ServingMetrics::own_gauge(const char* name, const char* help, const char* old_name) {
  return registry_.gauge({name, help, MetricScope::kOwn, old_name});
}

Counter& ServingMetrics::requests_refused(int status) {
  return registry_.counter(
      {"requests_refused_total", "Calls answered with an error.", MetricScope::kOwn},
      {{"status", std::to_string(status)}});
}

std::string ServingMetrics::render(const std::vector<std::string>& namespaces) const {
  return registry_.render(namespaces) +
         fmt::format(
             "# HELP process_resident_memory_bytes Resident memory size in bytes.\n"
             "# TYPE process_resident_memory_bytes gauge\n"
             "process_resident_memory_bytes {}\n",
             process_memory().resident_bytes);
}

}  // namespace outrider
