// See serve_report.h.
#include "runtime/commands/bench/serve/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLateMs = 10;
constexpr double kMiscount = 0.05;  // chat templates and special tokens add a few

struct Entry {
  const ServeResult* result;
  ServeSummary summary;
  SpeculationCount speculation;  // per request when told, else of the counters
};

std::vector<Entry> entries_of(const ServeFindings& findings) {
  std::vector<Entry> entries;
  for (const ServeResult& result : findings.results) {
    std::vector<const std::vector<RequestRecord>*> runs;
    for (const auto& run : result.runs) runs.push_back(&run);
    Entry entry{&result, summarize(runs, findings.setup.summary), {}};
    const SpeculationCount& told = entry.summary.speculation;
    entry.speculation = told.known() ? told : result.counters;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string load_text(const ServeLoad& load) {
  std::string text = load.rate_per_s == 0          ? "trace's times"
                     : std::isinf(load.rate_per_s) ? "all at once"
                                                   : fmt::format("{:g} req/s", load.rate_per_s);
  if (load.max_concurrency > 0) text += fmt::format(", {} in flight", load.max_concurrency);
  return text;
}

std::string name_in(const Entry& entry, const std::string& name) {
  return entry.result->variant.empty() ? name : name + ", " + entry.result->variant;
}

std::string fixed(double value) { return fmt::format("{:.2f}", value); }

double acceptance_percent(const SpeculationCount& count) {
  if (count.num_draft_tokens <= 0) return 0;
  return 100.0 * static_cast<double>(count.num_accepted_tokens) /
         static_cast<double>(count.num_draft_tokens);
}

double acceptance_length(const SpeculationCount& count) {
  if (count.num_drafts <= 0) return 1;
  return 1 + static_cast<double>(count.num_accepted_tokens) / static_cast<double>(count.num_drafts);
}

// One column for each variant.
void add_totals(const ServeFindings& findings,
                const std::vector<Entry>& entries,
                BenchReport* report) {
  BenchTable table{load_text(findings.setup.load), {""}, {}};
  for (const Entry& entry : entries) table.columns.push_back(entry.result->variant);
  const auto row = [&](const char* name, const auto& text_of) {
    std::vector<std::string> cells = {name};
    for (const Entry& entry : entries) cells.push_back(text_of(entry.summary, entry.speculation));
    const auto said = [](const std::string& cell) { return cell != "-"; };
    if (std::any_of(cells.begin() + 1, cells.end(), said)) table.rows.push_back(std::move(cells));
  };
  using Summary = const ServeSummary&;
  using Count = const SpeculationCount&;
  row("Successful requests", [](Summary s, Count) { return std::to_string(s.completed); });
  row("Failed requests", [](Summary s, Count) { return std::to_string(s.failed); });
  row("Benchmark duration (s)", [](Summary s, Count) { return fixed(s.duration_s); });
  row("Total input tokens", [](Summary s, Count) { return std::to_string(s.total_input); });
  row("Total generated tokens", [](Summary s, Count) { return std::to_string(s.total_output); });
  row("Request throughput (req/s)", [](Summary s, Count) { return fixed(s.request_throughput); });
  row("Request goodput (req/s)",
      [](Summary s, Count) { return s.request_goodput ? fixed(*s.request_goodput) : "-"; });
  row("Output token throughput (tok/s)",
      [](Summary s, Count) { return fixed(s.output_throughput); });
  row("Peak output token throughput (tok/s)",
      [](Summary s, Count) { return fixed(s.max_output_tokens_per_s); });
  row("Total token throughput (tok/s)",
      [](Summary s, Count) { return fixed(s.total_token_throughput); });
  row("Peak concurrent requests",
      [](Summary s, Count) { return std::to_string(s.max_concurrent_requests); });
  row("Acceptance rate", [](Summary, Count count) {
    return count.num_draft_tokens > 0 ? fmt::format("{:.1f} %", acceptance_percent(count)) : "-";
  });
  row("Acceptance length", [](Summary, Count count) {
    return count.num_drafts > 0 ? fixed(acceptance_length(count)) : "-";
  });
  report->tables.push_back(std::move(table));
}

void add_latencies(const ServeFindings& findings, const Entry& entry, BenchReport* report) {
  const ServeSummary& s = entry.summary;
  BenchTable table{name_in(entry, "Latency (ms)"), {"", "mean", "median", "std"}, {}};
  for (const double percent : findings.setup.summary.percents)
    table.columns.push_back(fmt::format("P{:g}", percent));
  const auto row = [&](const std::string& name, const LatencyStats& stats) {
    std::vector<std::string> cells = {
        name, fixed(stats.mean), fixed(stats.median), fixed(stats.std)};
    for (const auto& [percent, value] : stats.percentiles) cells.push_back(fixed(value));
    table.rows.push_back(std::move(cells));
  };
  row("TTFT: time to first token", s.ttft);
  row("TPOT: time per output token after the first", s.tpot);
  row("ITL: inter-token latency", s.itl);
  row("ICL: inter-chunk latency", s.icl);
  row("E2EL: end-to-end latency", s.e2el);
  if (findings.setup.load.max_concurrency > 0) row("Client queue time", s.queue);
  row("Sent late by", s.lateness);
  report->tables.push_back(std::move(table));
}

struct Measure {
  const char* name;
  double (*value)(const ServeSummary&);
};

constexpr Measure kCompared[] = {
    {"output token throughput", [](const ServeSummary& s) { return s.output_throughput; }},
    {"request throughput", [](const ServeSummary& s) { return s.request_throughput; }},
    {"median TTFT", [](const ServeSummary& s) { return s.ttft.median; }},
    {"median TPOT", [](const ServeSummary& s) { return s.tpot.median; }},
    {"mean ITL", [](const ServeSummary& s) { return s.itl.mean; }},
    {"mean ICL", [](const ServeSummary& s) { return s.icl.mean; }},
    {"median E2EL", [](const ServeSummary& s) { return s.e2el.median; }}};

// compare / base, block by block: what disturbs both of a pair cancels.
void add_ratios(const ServeFindings& findings, BenchReport* report) {
  const auto& base = findings.results[0].runs;
  const auto& compare = findings.results[1].runs;
  const size_t num_blocks = std::min(base.size(), compare.size());
  std::vector<std::pair<ServeSummary, ServeSummary>> blocks;
  for (size_t i = 0; i < num_blocks; ++i)
    blocks.emplace_back(summarize({&base[i]}, findings.setup.summary),
                        summarize({&compare[i]}, findings.setup.summary));
  BenchTable table{fmt::format("compare / base, {}: median over {} pairs of blocks [95 % interval]",
                               load_text(findings.setup.load),
                               num_blocks),
                   {"", "ratio"},
                   {}};
  for (const Measure& measure : kCompared) {
    std::vector<double> below, above;
    for (const auto& [base_block, compare_block] : blocks) {
      const double values[] = {measure.value(base_block), measure.value(compare_block)};
      if (!(values[0] > 0 && values[1] > 0)) continue;  // no success, or answers of one token
      below.push_back(values[0]);
      above.push_back(values[1]);
    }
    if (below.empty()) continue;
    const Interval ratio = report->add_figure(
        fmt::format("{}, compare / base", measure.name), "", bootstrap_ratio(above, below));
    table.rows.push_back({measure.name, interval_text(ratio, 3)});
  }
  report->tables.push_back(std::move(table));
}

void add_series_of(const Entry& entry, BenchReport* report) {
  std::vector<double> ttft, tpot, e2el;
  for (const auto& run : entry.result->runs) {
    for (const RequestRecord& record : run) {
      if (record.failure != ServeFailure::kNone) continue;
      const RequestLatency latency = latency_of(record);
      if (latency.ttft) ttft.push_back(1e3 * *latency.ttft);
      if (latency.tpot) tpot.push_back(1e3 * *latency.tpot);
      e2el.push_back(1e3 * latency.e2el);
    }
  }
  report->add_series(name_in(entry, "TTFT"), "ms", std::move(ttft));
  report->add_series(name_in(entry, "TPOT"), "ms", std::move(tpot));
  report->add_series(name_in(entry, "E2EL"), "ms", std::move(e2el));
  const ServeSummary& s = entry.summary;
  report->add_figure(name_in(entry, "request throughput"), "req/s", s.request_throughput);
  report->add_figure(name_in(entry, "output token throughput"), "tok/s", s.output_throughput);
  if (s.request_goodput)
    report->add_figure(name_in(entry, "request goodput"), "req/s", *s.request_goodput);
}

void add_notes(const ServeFindings& findings, const Entry& entry, BenchReport* report) {
  const ServeSummary& s = entry.summary;
  const std::string place = name_in(entry, load_text(findings.setup.load));
  const auto note = [&](const std::string& text) { report->notes.push_back(place + ": " + text); };
  for (const auto& [name, count] : s.failures)
    note(fmt::format("{} failed with {}, such as: {}", count, name, s.errors.at(name)));
  const auto asked = static_cast<double>(s.total_asked_input);
  if (asked > 0 && std::abs(static_cast<double>(s.total_input) - asked) > kMiscount * asked)
    note(
        fmt::format("the prompts were made for {} tokens and the server counts {}: give "
                    "--tokenizer for lengths that fit",
                    s.total_asked_input,
                    s.total_input));
  if (s.num_usage < s.completed)
    note(fmt::format("{} answers came without usage; their tokens are counted in their chunks",
                     s.completed - s.num_usage));
  if (s.count_by.contains(ChunkCount::kOnePerChunk) && s.total_output > s.num_chunk_tokens)
    note(
        fmt::format("{} tokens came in {} events and the server does not say how many in which: "
                    "ITL takes an event for one token",
                    s.total_output,
                    s.num_chunk_tokens));
  double last_lateness = 0;
  for (const auto& [percent, value] : s.lateness.percentiles)
    last_lateness = std::max(last_lateness, value);
  if (last_lateness > kLateMs)
    note(
        fmt::format("requests were sent late, up to {:.1f} ms at the highest percentile: this "
                    "machine was too busy to keep the schedule",
                    last_lateness));
  if (findings.setup.load.max_concurrency == 0 && s.queue.mean > 0)
    note("the most connections there can be were in use; later requests waited for one");
}

void put_latency(const char* name, const LatencyStats& stats, Json* out) {
  (*out)[fmt::format("mean_{}_ms", name)] = stats.mean;
  (*out)[fmt::format("median_{}_ms", name)] = stats.median;
  (*out)[fmt::format("std_{}_ms", name)] = stats.std;
  for (const auto& [percent, value] : stats.percentiles)
    (*out)[fmt::format("p{:g}_{}_ms", percent, name)] = value;
}

void put_speculation(const SpeculationCount& count, Json* out) {
  if (!count.known()) return;
  (*out)["spec_decode_acceptance_rate"] = acceptance_percent(count);
  if (count.num_drafts >= 0) {
    (*out)["spec_decode_num_drafts"] = count.num_drafts;
    (*out)["spec_decode_acceptance_length"] = acceptance_length(count);
  }
  (*out)["spec_decode_draft_tokens"] = count.num_draft_tokens;
  (*out)["spec_decode_accepted_tokens"] = count.num_accepted_tokens;
}

Json figures_json(const ServeFindings& findings, const Entry& entry) {
  const ServeSummary& s = entry.summary;
  const ServeLoad& load = findings.setup.load;
  Json json;
  // JSON has no infinity; vLLM writes the word.
  json["request_rate"] = load.rate_per_s == 0          ? Json("trace")
                         : std::isinf(load.rate_per_s) ? Json("inf")
                                                       : Json(load.rate_per_s);
  json["max_concurrency"] = load.max_concurrency > 0 ? Json(load.max_concurrency) : Json();
  json["burstiness"] = findings.burstiness;
  if (!entry.result->variant.empty()) json["variant"] = entry.result->variant;
  json["num_prompts"] = s.completed + s.failed;
  json["duration"] = s.duration_s;
  json["completed"] = s.completed;
  json["failed"] = s.failed;
  json["failures"] = s.failures;
  json["total_input_tokens"] = s.total_input;
  json["total_output_tokens"] = s.total_output;
  json["request_throughput"] = s.request_throughput;
  json["request_goodput"] = s.request_goodput ? Json(*s.request_goodput) : Json();
  json["output_throughput"] = s.output_throughput;
  json["total_token_throughput"] = s.total_token_throughput;
  json["max_output_tokens_per_s"] = s.max_output_tokens_per_s;
  json["max_concurrent_requests"] = s.max_concurrent_requests;
  put_latency("ttft", s.ttft, &json);
  put_latency("tpot", s.tpot, &json);
  put_latency("itl", s.itl, &json);
  put_latency("icl", s.icl, &json);
  put_latency("e2el", s.e2el, &json);
  put_latency("client_queue_time", s.queue, &json);
  put_latency("send_lateness", s.lateness, &json);
  json["finish_reasons"] = s.finish_reasons;
  json["num_chunks"] = s.num_chunks;
  json["num_answers_with_usage"] = s.num_usage;
  Json counts = Json::object();
  constexpr const char* kCountNames[] = {"token_ids", "continuous_usage", "one_per_chunk"};
  for (const auto& [count, number] : s.count_by)
    counts[kCountNames[static_cast<size_t>(count)]] = number;
  json["tokens_of_chunks_counted_by"] = counts;
  put_speculation(entry.speculation, &json);
  return json;
}

Json request_json(const RequestRecord& record, size_t block) {
  Json json = {{"block", block},
               {"scheduled_s", record.scheduled_s},
               {"sent_s", record.sent_s},
               {"end_s", record.end_s},
               {"input_len", record.input_len},
               {"max_tokens", record.output_len},
               {"prompt_tokens", record.prompt_tokens},
               {"usage_tokens", record.usage_tokens},
               {"finish_reason", record.finish_reason}};
  if (record.slot_free_s > record.scheduled_s) json["slot_free_s"] = record.slot_free_s;
  Json chunks = Json::array();
  for (const StreamChunk& chunk : record.chunks)
    chunks.push_back(Json::array({chunk.time_s, chunk.num_tokens}));
  json["chunks"] = std::move(chunks);
  json["last_choice_s"] = record.last_choice_s;
  if (record.speculation.known()) {
    json["num_draft_tokens"] = record.speculation.num_draft_tokens;
    json["num_accepted_tokens"] = record.speculation.num_accepted_tokens;
  }
  if (record.failure != ServeFailure::kNone) {
    json["failure"] = failure_name(record);
    json["error"] = record.error;
  }
  return json;
}

std::string details_json(const ServeFindings& findings, const std::vector<Entry>& entries) {
  Json json = {{"backend", "openai"}, {"model_id", findings.model}, {"server", findings.server}};
  if (entries.size() == 1) json.update(figures_json(findings, entries[0]));
  json["stopped_by_signal"] = findings.stopped;
  Json results = Json::array();
  for (const Entry& entry : entries) {
    Json result = figures_json(findings, entry);
    Json requests = Json::array();
    for (size_t block = 0; block < entry.result->runs.size(); ++block) {
      for (const RequestRecord& record : entry.result->runs[block])
        requests.push_back(request_json(record, block));
    }
    result["requests"] = std::move(requests);
    results.push_back(std::move(result));
  }
  json["results"] = std::move(results);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void fill_serve_report(const ServeFindings& findings, BenchReport* report) {
  const std::vector<Entry> entries = entries_of(findings);
  report->title = fmt::format("{} at {}", findings.model, findings.server);
  add_totals(findings, entries, report);
  for (const Entry& entry : entries) add_latencies(findings, entry, report);
  if (entries.size() == 2) add_ratios(findings, report);
  for (const Entry& entry : entries) {
    add_series_of(entry, report);
    add_notes(findings, entry, report);
  }
  if (findings.stopped) report->notes.push_back("stopped by a signal before all was sent");
  report->details = details_json(findings, entries);
}

}  // namespace outrider
