// See serve_metrics.h.
#include "runtime/commands/bench/serve/serve_metrics.h"

#include <algorithm>
#include <cmath>

#include "runtime/commands/bench/report/bench_statistics.h"

namespace outrider {
namespace {

constexpr double kMs = 1e3;

struct Samples {
  std::vector<double> ttft, tpot, itl, icl, e2el, queue, lateness;
};

void append_ms(const std::vector<double>& seconds, std::vector<double>* out) {
  for (const double value : seconds) out->push_back(kMs * value);
}

std::vector<StreamChunk> joined_chunks(const std::vector<StreamChunk>& events) {
  std::vector<StreamChunk> chunks;
  for (const StreamChunk& event : events) {
    if (!chunks.empty() && event.time_s - chunks.back().time_s < kSameChunkS) {
      chunks.back().num_tokens += event.num_tokens;
    } else {
      chunks.push_back(event);
    }
  }
  return chunks;
}

void take_success(const RequestRecord& record,
                  const SummaryOptions& options,
                  ServeSummary* summary,
                  Samples* samples,
                  int64_t* num_good) {
  const RequestLatency latency = latency_of(record);
  ++summary->completed;
  summary->total_input += record.prompt_tokens >= 0 ? record.prompt_tokens : record.input_len;
  summary->total_asked_input += record.input_len;
  summary->total_output += latency.output_tokens;
  summary->num_usage += record.usage_tokens >= 0 ? 1 : 0;
  ++summary->count_by[record.count_by];
  ++summary->finish_reasons[record.finish_reason.empty() ? "none" : record.finish_reason];
  summary->num_chunks += static_cast<int64_t>(joined_chunks(record.chunks).size());
  for (const StreamChunk& chunk : record.chunks) summary->num_chunk_tokens += chunk.num_tokens;
  if (latency.ttft) samples->ttft.push_back(kMs * *latency.ttft);
  if (latency.tpot) samples->tpot.push_back(kMs * *latency.tpot);
  samples->e2el.push_back(kMs * latency.e2el);
  append_ms(latency.itl, &samples->itl);
  append_ms(latency.icl, &samples->icl);
  *num_good += is_good(latency, options.goodput) ? 1 : 0;
  if (record.speculation.known()) summary->speculation.add(record.speculation);
}

struct Span {
  double begin_s = INFINITY;
  double end_s = -INFINITY;
};

Span span_of(const std::vector<RequestRecord>& records) {
  Span span;
  for (const RequestRecord& record : records) {
    span.begin_s = std::min({span.begin_s, record.scheduled_s, record.sent_s});
    span.end_s = std::max(span.end_s, record.end_s);
  }
  return span;
}

// Tokens per second of the fullest of a run's seconds. They are stretched to fill the run, so that
// the fullest is never less than the mean.
double best_second(const std::vector<RequestRecord>& records) {
  const auto [begin_s, end_s] = span_of(records);
  if (!(end_s > begin_s)) return 0;
  const double num_seconds = std::max(1.0, std::floor(end_s - begin_s));
  const double width_s = (end_s - begin_s) / num_seconds;
  std::vector<int64_t> tokens(static_cast<size_t>(num_seconds));
  for (const RequestRecord& record : records) {
    if (record.failure != ServeFailure::kNone) continue;
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
  int64_t counted = 0;
  for (const StreamChunk& chunk : record.chunks) counted += chunk.num_tokens;
  latency.output_tokens = record.usage_tokens >= 0 ? record.usage_tokens : counted;
  latency.e2el = record.last_choice_s - record.sent_s;
  if (record.chunks.empty()) return latency;
  latency.ttft = record.chunks.front().time_s - record.sent_s;
  if (latency.output_tokens > 1)
    latency.tpot = (latency.e2el - *latency.ttft) / static_cast<double>(latency.output_tokens - 1);
  const std::vector<StreamChunk> chunks = joined_chunks(record.chunks);
  for (size_t i = 1; i < chunks.size(); ++i) {
    const double gap = chunks[i].time_s - chunks[i - 1].time_s;
    const int32_t num_tokens = chunks[i].num_tokens;
    latency.icl.push_back(gap);
    latency.itl.insert(latency.itl.end(), static_cast<size_t>(num_tokens), gap / num_tokens);
  }
  return latency;
}

bool is_good(const RequestLatency& latency, const GoodputLimits& limits) {
  if (limits.ttft_ms && !(latency.ttft && kMs * *latency.ttft <= *limits.ttft_ms)) return false;
  if (limits.tpot_ms && !(kMs * latency.tpot.value_or(0) <= *limits.tpot_ms)) return false;
  return !limits.e2el_ms || kMs * latency.e2el <= *limits.e2el_ms;
}

LatencyStats latency_stats(const std::vector<double>& values, const std::vector<double>& percents) {
  LatencyStats stats;
  stats.count = static_cast<int64_t>(values.size());
  const auto at = [&](double percent) {
    return values.empty() ? 0 : quantile(values, percent / 100);
  };
  stats.mean = values.empty() ? 0 : mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - stats.mean) * (value - stats.mean);
  if (!values.empty()) stats.std = std::sqrt(squares / static_cast<double>(values.size()));
  stats.median = at(50);
  for (const double percent : percents) stats.percentiles.emplace_back(percent, at(percent));
  return stats;
}

double run_duration_s(const std::vector<RequestRecord>& records) {
  if (records.empty()) return 0;
  const auto [begin_s, end_s] = span_of(records);
  return end_s - begin_s;
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
  for (const auto& [time, step] : steps) {
    now += step;
    peak = std::max(peak, now);
  }
  return peak;
}

ServeSummary summarize(const std::vector<const std::vector<RequestRecord>*>& runs,
                       const SummaryOptions& options) {
  ServeSummary summary;
  Samples samples;
  int64_t num_good = 0;
  for (const std::vector<RequestRecord>* run : runs) {
    summary.duration_s += run_duration_s(*run);
    summary.max_concurrent_requests =
        std::max(summary.max_concurrent_requests, peak_concurrency(*run));
    summary.max_output_tokens_per_s = std::max(summary.max_output_tokens_per_s, best_second(*run));
    for (const RequestRecord& record : *run) {
      const double ready_s = std::max(record.scheduled_s, record.slot_free_s);
      samples.queue.push_back(kMs * (ready_s - record.scheduled_s));
      samples.lateness.push_back(kMs * std::max(0.0, record.sent_s - ready_s));
      if (record.failure == ServeFailure::kNone) {
        take_success(record, options, &summary, &samples, &num_good);
      } else {
        ++summary.failed;
        const std::string name = failure_name(record);
        ++summary.failures[name];
        summary.errors.emplace(name, record.error);
      }
    }
  }
  const auto per_s = [&](int64_t count) {
    return summary.duration_s > 0 ? static_cast<double>(count) / summary.duration_s : 0;
  };
  summary.request_throughput = per_s(summary.completed);
  summary.output_throughput = per_s(summary.total_output);
  summary.total_token_throughput = per_s(summary.total_input + summary.total_output);
  if (options.goodput.any()) summary.request_goodput = per_s(num_good);
  summary.ttft = latency_stats(samples.ttft, options.percents);
  summary.tpot = latency_stats(samples.tpot, options.percents);
  summary.itl = latency_stats(samples.itl, options.percents);
  summary.icl = latency_stats(samples.icl, options.percents);
  summary.e2el = latency_stats(samples.e2el, options.percents);
  summary.queue = latency_stats(samples.queue, options.percents);
  summary.lateness = latency_stats(samples.lateness, options.percents);
  return summary;
}

}  // namespace outrider
