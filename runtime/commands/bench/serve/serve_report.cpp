// See serve_report.h.
#include "runtime/commands/bench/serve/serve_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

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
  if (!value.is_array()) {
    return value.is_number_float() ? fmt::format("{:.2f}", value.get<double>()) : value.dump();
  }
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
  const int32_t most = options.max_concurrency;
  report->title = fmt::format("{} at {}", findings.model, findings.server);
  Json json = {{"backend", options.backend},
               {"model_id", findings.model},
               {"server", findings.server},
               {"num_prompts", findings.records.size()},
               {"request_rate", rate_json(setup.rate_per_s)},
               {"burstiness", options.burstiness},
               {"max_concurrency", most > 0 ? Json(most) : Json()},
               {"failures", summary.failures},
               {"stopped_by_signal", findings.stopped}};
  add_totals(summary, findings.speculation, &json, report);
  add_latencies(summary, setup.percents, &json, report);
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
