// See serving_metrics.h. Names, kinds and bucket bounds of the shared families are vLLM's.
#include "http/api/serving_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/telemetry/process_memory.h"

namespace outrider {
namespace {

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

const std::vector<double> ServingMetrics::kFirstTokenSeconds = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> ServingMetrics::kTokenSeconds = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> ServingMetrics::kRequestSeconds = {
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> ServingMetrics::kRoundSeconds = {
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5};
const std::vector<double> ServingMetrics::kIterationTokens = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

ServingMetrics::ServingMetrics(const std::string& model_name,
                               int32_t max_model_len,
                               int32_t max_draft_len)
    : registry_({{"model_name", model_name}, {"engine", "0"}}),
      num_tokens_bounds_(one_two_five(max_model_len)) {
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

Counter& ServingMetrics::request_success(FinishReason reason) {
  return registry_.counter({"request_success_total", "Requests ended, by reason."},
                           {{"finished_reason", reason_label(reason)}});
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

Counter& ServingMetrics::shared_counter(const char* name, const char* help) {
  return registry_.counter({name, help, MetricScope::kShared});
}

Gauge& ServingMetrics::shared_gauge(const char* name, const char* help) {
  return registry_.gauge({name, help, MetricScope::kShared});
}

Histogram& ServingMetrics::shared_histogram(const char* name,
                                            const char* help,
                                            std::vector<double> bounds) {
  return registry_.histogram({name, help, MetricScope::kShared}, std::move(bounds));
}

Counter& ServingMetrics::own_counter(const char* name, const char* help, const char* old_name) {
  return registry_.counter({name, help, MetricScope::kOwn, old_name});
}

Gauge& ServingMetrics::own_gauge(const char* name, const char* help, const char* old_name) {
  return registry_.gauge({name, help, MetricScope::kOwn, old_name});
}

Histogram& ServingMetrics::own_histogram(const char* name,
                                         const char* help,
                                         std::vector<double> bounds) {
  return registry_.histogram({name, help, MetricScope::kOwn}, std::move(bounds));
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
