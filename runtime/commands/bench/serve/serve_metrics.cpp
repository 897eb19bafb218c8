// See serve_metrics.h.
#include "runtime/commands/bench/serve/serve_metrics.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kMs = 1e3;

void take_success(const RequestRecord& record, const RequestLatency& latency, ServeSummary* out) {
  ++out->completed;
  out->total_input += record.prompt_tokens >= 0 ? record.prompt_tokens : record.input_len;
  out->total_output += latency.output_tokens;
  if (latency.ttft) out->ttft.push_back(*latency.ttft);
  if (latency.tpot) out->tpot.push_back(*latency.tpot);
  out->itl.insert(out->itl.end(), latency.itl.begin(), latency.itl.end());
  out->e2el.push_back(latency.e2el);
}

// Tokens per second of the fullest of a run's seconds. They are stretched to fill the run, so that
// the fullest is never less than the mean.
double best_second(const std::vector<RequestRecord>& records, double begin_s, double duration_s) {
  if (!(duration_s > 0)) return 0;
  const double num_seconds = std::max(1.0, std::floor(duration_s));
  const double width_s = duration_s / num_seconds;
  std::vector<int64_t> tokens(static_cast<size_t>(num_seconds));
  for (const RequestRecord& record : records) {
    if (!record.failure.empty()) continue;
    for (const StreamChunk& chunk : record.chunks) {
      const auto second = static_cast<size_t>((chunk.time_s - begin_s) / width_s);
      tokens[std::min(second, tokens.size() - 1)] += chunk.num_tokens;
    }
  }
  return static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) / width_s;
}

}  // namespace

RequestLatency latency_of(const RequestRecord& record) {
  RequestLatency latency;
  const std::vector<StreamChunk>& chunks = record.chunks;
  int64_t counted = 0;
  for (const StreamChunk& chunk : chunks) counted += chunk.num_tokens;
  latency.output_tokens = record.usage_tokens >= 0 ? record.usage_tokens : counted;
  latency.e2el = kMs * (record.last_choice_s - record.sent_s);
  if (chunks.empty()) return latency;
  latency.ttft = kMs * (chunks.front().time_s - record.sent_s);
  if (latency.output_tokens > 1)
    latency.tpot = (latency.e2el - *latency.ttft) / static_cast<double>(latency.output_tokens - 1);
  for (size_t i = 1; i < chunks.size(); ++i) {
    const double gap = kMs * (chunks[i].time_s - chunks[i - 1].time_s);
    const int32_t num_tokens = chunks[i].num_tokens;
    latency.itl.insert(latency.itl.end(), static_cast<size_t>(num_tokens), gap / num_tokens);
  }
  return latency;
}

bool is_good(const RequestLatency& latency, const GoodputLimits& limits) {
  if (limits.ttft_ms && !(latency.ttft && *latency.ttft <= *limits.ttft_ms)) return false;
  if (limits.tpot_ms && !(latency.tpot.value_or(0) <= *limits.tpot_ms)) return false;
  return !limits.e2el_ms || latency.e2el <= *limits.e2el_ms;
}

int64_t peak_concurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> steps;
  for (const RequestRecord& record : records) {
    steps.emplace_back(record.sent_s, 1);
    steps.emplace_back(record.end_s, -1);
  }
  std::sort(steps.begin(), steps.end());  // at one instant ends come first
  int64_t now = 0;
  int64_t peak = 0;
  for (const auto& [time, step] : steps) peak = std::max(peak, now += step);
  return peak;
}

ServeSummary summarize(const std::vector<RequestRecord>& records, const GoodputLimits& goodput) {
  ServeSummary summary;
  if (records.empty()) return summary;
  int64_t num_good = 0;
  double begin_s = INFINITY, end_s = -INFINITY;
  for (const RequestRecord& record : records) {
    begin_s = std::min({begin_s, record.scheduled_s, record.sent_s});
    end_s = std::max(end_s, record.end_s);
    summary.lateness.push_back(kMs * std::max(0.0, record.sent_s - record.scheduled_s));
    if (record.failure.empty()) {
      const RequestLatency latency = latency_of(record);
      take_success(record, latency, &summary);
      num_good += is_good(latency, goodput) ? 1 : 0;
    } else {
      ++summary.failed;
      const std::string name = record.failure;
      ++summary.failures[name];
      summary.errors.emplace(name, record.error);
    }
  }
  summary.duration_s = end_s - begin_s;
  const auto per_s = [&](int64_t count) {
    return summary.duration_s > 0 ? static_cast<double>(count) / summary.duration_s : 0;
  };
  summary.request_throughput = per_s(summary.completed);
  summary.output_throughput = per_s(summary.total_output);
  summary.total_token_throughput = per_s(summary.total_input + summary.total_output);
  if (goodput.any()) summary.request_goodput = per_s(num_good);
  summary.max_concurrent_requests = peak_concurrency(records);
  summary.max_output_tokens_per_s = best_second(records, begin_s, summary.duration_s);
  return summary;
}

}  // namespace outrider
