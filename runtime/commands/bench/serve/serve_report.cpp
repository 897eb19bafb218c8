// See serve_report.h.
#include "runtime/commands/bench/serve/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

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
      ++summary.failures[record.failure];
      summary.errors.emplace(record.failure, record.error);
    }
  }
  summary.duration_s = end_s - begin_s;
  const auto per_s = [&](int64_t count) {
    return summary.duration_s > 0 ? static_cast<double>(count) / summary.duration_s : 0;
  };
  summary.request_throughput = per_s(summary.completed);
  summary.output_throughput = per_s(summary.total_output);
  summary.total_token_throughput = per_s(summary.total_input + summary.total_output);
  if (goodput.ttft_ms || goodput.tpot_ms || goodput.e2el_ms)
    summary.request_goodput = per_s(num_good);
  summary.max_concurrent_requests = peak_concurrency(records);
  summary.max_output_tokens_per_s = best_second(records, begin_s, summary.duration_s);
  return summary;
}

namespace {

struct Figure {
  const char* key;
  const char* label;
  Json value;
};

std::vector<Figure> figures_of(const ServeSummary& s) {
  return {{"completed", "Successful requests", s.completed},
          {"failed", "Failed requests", s.failed},
          {"duration", "Benchmark duration (s)", s.duration_s},
          {"total_input_tokens", "Total input tokens", s.total_input},
          {"total_output_tokens", "Total generated tokens", s.total_output},
          {"request_throughput", "Request throughput (req/s)", s.request_throughput},
          {"request_goodput",
           "Request goodput (req/s)",
           s.request_goodput ? Json(*s.request_goodput) : Json()},
          {"output_throughput", "Output token throughput (tok/s)", s.output_throughput},
          {"max_output_tokens_per_s",
           "Peak output token throughput (tok/s)",
           s.max_output_tokens_per_s},
          {"total_token_throughput", "Total token throughput (tok/s)", s.total_token_throughput},
          {"max_concurrent_requests", "Peak concurrent requests", s.max_concurrent_requests}};
}

std::vector<Figure> figures_of(const SpeculationCounters& grown) {
  const auto of = [&](const std::string& name) {
    const auto found = grown.find(name);
    return found == grown.end() ? 0 : found->second;
  };
  const double num_drafts = of("drafts"), drafted = of("draft_tokens");
  const double accepted = of("accepted_tokens");
  if (num_drafts <= 0 || drafted <= 0) return {};
  std::vector<double> rates;
  for (size_t at = 0; grown.contains(fmt::format("accepted_tokens_per_pos {}", at)); ++at)
    rates.push_back(of(fmt::format("accepted_tokens_per_pos {}", at)) / num_drafts);
  return {{"spec_decode_acceptance_rate", "Acceptance rate (%)", 100 * accepted / drafted},
          {"spec_decode_acceptance_length", "Acceptance length", 1 + accepted / num_drafts},
          {"spec_decode_num_drafts", "Drafts", std::llround(num_drafts)},
          {"spec_decode_draft_tokens", "Draft tokens", std::llround(drafted)},
          {"spec_decode_accepted_tokens", "Accepted tokens", std::llround(accepted)},
          {"spec_decode_per_position_acceptance_rates", "Acceptance by position", rates}};
}

struct Latency {
  const char* key;
  const char* label;
  const char* meaning;
  std::vector<double> ServeSummary::*samples;
};

constexpr Latency kLatencies[] = {
    {"ttft", "TTFT", ": time to first token", &ServeSummary::ttft},
    {"tpot", "TPOT", ": time per output token after the first", &ServeSummary::tpot},
    {"itl", "ITL", ": inter-token latency", &ServeSummary::itl},
    {"e2el", "E2EL", ": end-to-end latency", &ServeSummary::e2el},
    {"send_lateness", "Sent late by", "", &ServeSummary::lateness}};

double deviation(const std::vector<double>& values, double middle) {
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// Mean, median, std and the percentiles; all is 0 for no values, as vLLM has it.
std::vector<std::pair<std::string, double>> statistics_of(const std::vector<double>& samples,
                                                          const std::vector<double>& percents) {
  const std::vector<double> values = samples.empty() ? std::vector<double>{0} : samples;
  std::vector<std::pair<std::string, double>> all = {
      {"mean", mean(values)}, {"median", median(values)}, {"std", deviation(values, mean(values))}};
  for (const double percent : percents)
    all.emplace_back(fmt::format("p{:g}", percent), quantile(values, percent / 100));
  return all;
}

std::string cell_of(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.2f}", value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : " ") + cell_of(item);
  return text;
}

Json request_json(const RequestRecord& record) {
  Json chunks = Json::array();
  for (const StreamChunk& chunk : record.chunks)
    chunks.push_back(Json::array({chunk.time_s, chunk.num_tokens}));
  Json json = {{"scheduled_s", record.scheduled_s},
               {"sent_s", record.sent_s},
               {"end_s", record.end_s},
               {"input_len", record.input_len},
               {"max_tokens", record.output_len},
               {"prompt_tokens", record.prompt_tokens},
               {"usage_tokens", record.usage_tokens},
               {"finish_reason", record.finish_reason},
               {"chunks", std::move(chunks)},
               {"last_choice_s", record.last_choice_s}};
  if (!record.failure.empty()) {
    json["failure"] = record.failure;
    json["error"] = record.error;
  }
  return json;
}

// JSON has no infinity; vLLM writes the word.
Json rate_json(double rate_per_s) {
  if (rate_per_s == 0) return "trace";
  return std::isinf(rate_per_s) ? Json("inf") : Json(rate_per_s);
}

void add_totals(const ServeSummary& summary,
                const SpeculationCounters& speculation,
                Json* json,
                BenchReport* report) {
  BenchTable table{"", {"", ""}, {}};
  for (const auto& figures : {figures_of(summary), figures_of(speculation)}) {
    for (const auto& [key, label, value] : figures) {
      (*json)[key] = value;
      if (!value.is_null()) table.rows.push_back({label, cell_of(value)});
    }
  }
  report->tables.push_back(std::move(table));
}

void add_latencies(const ServeSummary& summary,
                   const std::vector<double>& percents,
                   Json* json,
                   BenchReport* report) {
  BenchTable table{"Latency (ms)", {}, {}};
  for (const Latency& latency : kLatencies) {
    const std::vector<double>& samples = summary.*latency.samples;
    table.columns = {""};
    std::vector<std::string> cells = {std::string(latency.label) + latency.meaning};
    for (const auto& [name, value] : statistics_of(samples, percents)) {
      (*json)[fmt::format("{}_{}_ms", name, latency.key)] = value;
      table.columns.push_back(name);
      cells.push_back(fmt::format("{:.2f}", value));
    }
    table.rows.push_back(std::move(cells));
    report->add_series(latency.label, "ms", samples);
  }
  report->tables.push_back(std::move(table));
}

}  // namespace

void fill_serve_report(const ServeBenchOptions& options,
                       const ServeSetup& setup,
                       const ServeFindings& findings,
                       BenchReport* report) {
  const ServeSummary summary = summarize(findings.records, setup.goodput);
  report->title = fmt::format("{} at {}", findings.model, findings.server);
  Json json = {
      {"backend", options.backend},
      {"model_id", findings.model},
      {"server", findings.server},
      {"num_prompts", findings.records.size()},
      {"request_rate", rate_json(setup.rate_per_s)},
      {"burstiness", options.burstiness},
      {"max_concurrency", options.max_concurrency > 0 ? Json(options.max_concurrency) : Json()},
      {"failures", summary.failures},
      {"stopped_by_signal", findings.stopped}};
  add_totals(summary, findings.speculation, &json, report);
  add_latencies(summary, options.percents, &json, report);
  for (const auto& [name, count] : summary.failures)
    report->notes.push_back(
        fmt::format("{} failed with {}, such as: {}", count, name, summary.errors.at(name)));
  if (findings.stopped) report->notes.push_back("stopped by a signal before all was sent");
  json["requests"] = Json::array();
  for (const RequestRecord& record : findings.records)
    json["requests"].push_back(request_json(record));
  report->details = json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace outrider
