// See serve_report.h.
#include "runtime/commands/bench/serve/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "runtime/commands/bench/serve/serve_json.h"

namespace outrider {
namespace {

constexpr double kLateMs = 10;
constexpr double kMiscount = 0.05;  // chat templates and special tokens add a few

struct Entry {
  const ServeResult* result;
  ServeSummary summary;
  SpeculationCount speculation;  // per request when told, else of the counters
};

std::string load_text(const ServeLoad& load) {
  std::string text = load.rate_per_s == 0          ? "trace's times"
                     : std::isinf(load.rate_per_s) ? "all at once"
                                                   : fmt::format("{:g} req/s", load.rate_per_s);
  if (load.max_concurrency > 0) text += fmt::format(", {} in flight", load.max_concurrency);
  return text;
}

BenchX x_of(const ServeFindings& findings, const ServeLoad& load) {
  if (findings.setup.loads.size() < 2) return {};
  if (findings.setup.sweeps_rates) return {"request_rate", load.rate_per_s};
  return {"max_concurrency", static_cast<double>(load.max_concurrency)};
}

std::string name_in(const Entry& entry, const std::string& name) {
  return entry.result->variant.empty() ? name : name + ", " + entry.result->variant;
}

std::vector<const std::vector<RequestRecord>*> pointers(
    const std::vector<std::vector<RequestRecord>>& runs) {
  std::vector<const std::vector<RequestRecord>*> out;
  for (const auto& run : runs) out.push_back(&run);
  return out;
}

std::vector<Entry> entries_of(const ServeFindings& findings) {
  std::vector<Entry> entries;
  for (const ServeResult& result : findings.results) {
    Entry entry{&result, summarize(pointers(result.runs), findings.setup.summary), {}};
    entry.speculation =
        entry.summary.speculation.known() ? entry.summary.speculation : result.counters;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string fixed(double value) { return fmt::format("{:.2f}", value); }

std::string acceptance_text(const SpeculationCount& count) {
  if (!count.known() || count.num_draft_tokens == 0) return "-";
  return fmt::format("{:.1f} %",
                     100.0 * static_cast<double>(count.num_accepted_tokens) /
                         static_cast<double>(count.num_draft_tokens));
}

void add_totals(const Entry& entry, BenchReport* report) {
  const ServeSummary& s = entry.summary;
  BenchTable table{load_text(entry.result->load), {"", ""}, {}};
  const auto row = [&](const std::string& name, const std::string& value) {
    table.rows.push_back({name, value});
  };
  row("Successful requests", fmt::format("{}", s.completed));
  row("Failed requests", fmt::format("{}", s.failed));
  row("Benchmark duration (s)", fixed(s.duration_s));
  row("Total input tokens", fmt::format("{}", s.total_input));
  row("Total generated tokens", fmt::format("{}", s.total_output));
  row("Request throughput (req/s)", fixed(s.request_throughput));
  if (s.request_goodput) row("Request goodput (req/s)", fixed(*s.request_goodput));
  row("Output token throughput (tok/s)", fixed(s.output_throughput));
  row("Peak output token throughput (tok/s)", fixed(s.max_output_tokens_per_s));
  row("Total token throughput (tok/s)", fixed(s.total_token_throughput));
  row("Peak concurrent requests", fmt::format("{}", s.max_concurrent_requests));
  if (entry.speculation.known()) {
    row("Acceptance rate", acceptance_text(entry.speculation));
    if (entry.speculation.num_drafts > 0)
      row("Acceptance length",
          fixed(1 + static_cast<double>(entry.speculation.num_accepted_tokens) /
                        static_cast<double>(entry.speculation.num_drafts)));
  }
  report->tables.push_back(std::move(table));
}

void add_latencies(const Entry& entry, BenchReport* report) {
  const ServeSummary& s = entry.summary;
  BenchTable table{"Latency (ms)", {"", "mean", "median", "std"}, {}};
  for (const auto& [percent, value] : s.ttft.percentiles)
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
  if (entry.result->load.max_concurrency > 0) row("Client queue time", s.queue);
  row("Sent late by", s.lateness);
  report->tables.push_back(std::move(table));
}

// One line for each load and variant.
void add_overview(const ServeFindings& findings,
                  const std::vector<Entry>& entries,
                  BenchReport* report) {
  const bool good = findings.setup.summary.goodput.any();
  const double last = findings.setup.summary.percents.back();
  BenchTable table{"", {"load", "ok", "failed", "req/s", "tok/s"}, {}};
  if (good) table.columns.push_back("good req/s");
  for (const char* name : {"TTFT", "TPOT", "E2EL"}) {
    table.columns.push_back(fmt::format("{} median", name));
    table.columns.push_back(fmt::format("P{:g}", last));
  }
  table.columns.push_back("acceptance");
  for (const Entry& entry : entries) {
    const ServeSummary& s = entry.summary;
    std::vector<std::string> cells = {name_in(entry, load_text(entry.result->load)),
                                      fmt::format("{}", s.completed),
                                      fmt::format("{}", s.failed),
                                      fixed(s.request_throughput),
                                      fixed(s.output_throughput)};
    if (good) cells.push_back(fixed(s.request_goodput.value_or(0)));
    for (const LatencyStats* stats : {&s.ttft, &s.tpot, &s.e2el}) {
      cells.push_back(fixed(stats->median));
      cells.push_back(fixed(stats->percentiles.back().second));
    }
    cells.push_back(acceptance_text(entry.speculation));
    table.rows.push_back(std::move(cells));
  }
  report->tables.push_back(std::move(table));
}

struct Measure {
  const char* name;
  std::function<double(const ServeSummary&)> value;
};

const std::vector<Measure>& compared_measures() {
  static const std::vector<Measure> measures = {
      {"output token throughput", [](const ServeSummary& s) { return s.output_throughput; }},
      {"request throughput", [](const ServeSummary& s) { return s.request_throughput; }},
      {"median TTFT", [](const ServeSummary& s) { return s.ttft.median; }},
      {"median TPOT", [](const ServeSummary& s) { return s.tpot.median; }},
      {"mean ITL", [](const ServeSummary& s) { return s.itl.mean; }},
      {"mean ICL", [](const ServeSummary& s) { return s.icl.mean; }},
      {"median E2EL", [](const ServeSummary& s) { return s.e2el.median; }}};
  return measures;
}

// compare / base, block by block: what disturbs both of a pair cancels.
void add_ratios(const ServeFindings& findings,
                const Entry& base,
                const Entry& compare,
                BenchReport* report) {
  std::vector<ServeSummary> sums[2];
  const size_t num_blocks = std::min(base.result->runs.size(), compare.result->runs.size());
  for (size_t i = 0; i < num_blocks; ++i) {
    sums[0].push_back(summarize({&base.result->runs[i]}, findings.setup.summary));
    sums[1].push_back(summarize({&compare.result->runs[i]}, findings.setup.summary));
  }
  BenchTable table{fmt::format("compare / base, {}: median over {} pairs of blocks [95 % interval]",
                               load_text(base.result->load),
                               num_blocks),
                   {"", "ratio"},
                   {}};
  for (const Measure& measure : compared_measures()) {
    std::vector<double> values[2];
    for (size_t i = 0; i < num_blocks; ++i) {
      const double below = measure.value(sums[0][i]);
      const double above = measure.value(sums[1][i]);
      if (!(below > 0 && above > 0)) continue;  // nothing succeeded, or answers of one token
      values[0].push_back(below);
      values[1].push_back(above);
    }
    if (values[0].empty()) continue;
    const Interval ratio = report->add_figure(fmt::format("{}, compare / base", measure.name),
                                              "",
                                              bootstrap_ratio(values[1], values[0]),
                                              x_of(findings, base.result->load));
    table.rows.push_back({measure.name, interval_text(ratio, 3)});
  }
  report->tables.push_back(std::move(table));
}

void add_series_of(const ServeFindings& findings, const Entry& entry, BenchReport* report) {
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
  const BenchX x = x_of(findings, entry.result->load);
  report->add_series(name_in(entry, "TTFT"), "ms", std::move(ttft), x);
  report->add_series(name_in(entry, "TPOT"), "ms", std::move(tpot), x);
  report->add_series(name_in(entry, "E2EL"), "ms", std::move(e2el), x);
  const ServeSummary& s = entry.summary;
  report->add_figure(name_in(entry, "request throughput"), "req/s", s.request_throughput, x);
  report->add_figure(name_in(entry, "output token throughput"), "tok/s", s.output_throughput, x);
  if (s.request_goodput)
    report->add_figure(name_in(entry, "request goodput"), "req/s", *s.request_goodput, x);
}

void add_notes(const Entry& entry, BenchReport* report) {
  const ServeSummary& s = entry.summary;
  const auto note = [&](const std::string& text) {
    const std::string place = load_text(entry.result->load);
    report->notes.push_back(name_in(entry, place) + ": " + text);
  };
  for (const auto& [name, count] : s.failures)
    note(fmt::format("{} failed with {}, such as: {}", count, name, s.errors.at(name)));
  const auto asked = static_cast<double>(s.total_asked_input);
  if (asked > 0 && std::abs(static_cast<double>(s.total_input) - asked) > kMiscount * asked) {
    note(fmt::format(
        "the prompts were made for {} tokens and the server counts {}: give --tokenizer "
        "for lengths that fit",
        s.total_asked_input,
        s.total_input));
  }
  if (s.num_usage < s.completed)
    note(fmt::format("{} answers came without usage; their tokens are counted in their chunks",
                     s.completed - s.num_usage));
  const auto by_chunks = s.count_by.find(ChunkCount::kOnePerChunk);
  if (by_chunks != s.count_by.end() && s.total_output > s.num_chunk_tokens) {
    note(fmt::format(
        "{} tokens came in {} events and the server does not say how many in which: ITL "
        "takes an event for one token",
        s.total_output,
        s.num_chunk_tokens));
  }
  double last_lateness = 0;
  for (const auto& [percent, value] : s.lateness.percentiles)
    last_lateness = std::max(last_lateness, value);
  if (last_lateness > kLateMs)
    note(
        fmt::format("requests were sent late, up to {:.1f} ms at the highest percentile: this "
                    "machine was too busy to keep the schedule",
                    last_lateness));
  if (entry.result->load.max_concurrency == 0 && s.queue.mean > 0)
    note("the most connections there can be were in use; later requests waited for one");
}

// Shares of requests below a latency.
PlotPanel distribution(const Entry& entry,
                       const std::string& title,
                       std::optional<double> RequestLatency::*member) {
  std::vector<double> values;
  for (const auto& run : entry.result->runs) {
    for (const RequestRecord& record : run) {
      if (record.failure != ServeFailure::kNone) continue;
      const RequestLatency latency = latency_of(record);
      if (latency.*member) values.push_back(1e3 * *(latency.*member));
    }
  }
  std::sort(values.begin(), values.end());
  PlotSeries series;
  for (size_t i = 0; i < values.size(); ++i)
    series.points.push_back(
        {values[i], static_cast<double>(i + 1) / static_cast<double>(values.size())});
  return {title, title + " (ms)", "share of requests", {series}};
}

PlotPanel against_load(const ServeFindings& findings,
                       const std::vector<Entry>& entries,
                       const Measure& measure) {
  PlotPanel panel{
      measure.name,
      findings.setup.sweeps_rates ? "requests per second offered" : "requests in flight",
      measure.name,
      {}};
  for (const char* variant : {"", "base", "compare"}) {
    PlotSeries series{variant, PlotMark::kLine, static_cast<int>(panel.series.size()), {}};
    for (const Entry& entry : entries) {
      if (entry.result->variant != variant) continue;
      series.points.push_back(
          {x_of(findings, entry.result->load).value, measure.value(entry.summary)});
    }
    if (series.points.empty()) continue;
    PlotSeries dots = series;
    dots.name.clear();
    dots.mark = PlotMark::kDots;
    panel.series.push_back(std::move(series));
    panel.series.push_back(std::move(dots));
  }
  return panel;
}

void add_plot(const ServeFindings& findings,
              const std::vector<Entry>& entries,
              BenchReport* report) {
  report->plot.title = report->title;
  if (findings.setup.loads.size() < 2) {
    if (entries.size() != 1) return;
    report->plot.panels = {distribution(entries[0], "TTFT", &RequestLatency::ttft),
                           distribution(entries[0], "TPOT", &RequestLatency::tpot)};
    return;
  }
  const std::vector<Measure> shown = {
      {"output tokens/s", [](const ServeSummary& s) { return s.output_throughput; }},
      {"median TTFT (ms)", [](const ServeSummary& s) { return s.ttft.median; }},
      {"median TPOT (ms)", [](const ServeSummary& s) { return s.tpot.median; }}};
  for (const Measure& measure : shown)
    report->plot.panels.push_back(against_load(findings, entries, measure));
}

}  // namespace

void fill_serve_report(const ServeFindings& findings, BenchReport* report) {
  const std::vector<Entry> entries = entries_of(findings);
  report->title = fmt::format("{} at {}", findings.model, findings.server);
  if (entries.size() == 1) {
    add_totals(entries[0], report);
    add_latencies(entries[0], report);
  } else {
    add_overview(findings, entries, report);
  }
  for (size_t i = 0; i + 1 < entries.size(); ++i) {
    if (entries[i].result->variant == "base" && entries[i + 1].result->variant == "compare")
      add_ratios(findings, entries[i], entries[i + 1], report);
  }
  for (const Entry& entry : entries) {
    add_series_of(findings, entry, report);
    add_notes(entry, report);
  }
  if (findings.stopped) report->notes.push_back("stopped by a signal before all was sent");
  add_plot(findings, entries, report);
  std::vector<ServeJsonEntry> shown;
  for (const Entry& entry : entries)
    shown.push_back({entry.result, &entry.summary, entry.speculation});
  report->details = serve_details_json(findings, shown);
}

}  // namespace outrider
