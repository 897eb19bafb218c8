// See bench_report.h.
#include "runtime/commands/bench/report/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/commands/build_info.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Topology& topology) {
  Json ranks = Json::array();
  std::set<std::string> hosts;
  for (const RankPlace& place : topology.ranks) {
    hosts.insert(place.host);
    ranks.push_back({{"rank", place.rank},
                     {"role", place.role},
                     {"host", place.host},
                     {"threads", place.num_threads},
                     {"device", place.device}});
  }
  return {{"num_ranks", topology.ranks.size()},
          {"hosts", hosts},
          {"ranks", ranks},
          {"library", topology.library}};
}

Json json_of(const BenchEnvironment& around) {
  Json json = {{"date", around.date}};
  for (const auto& [name, value] : build_info()) json[name] = value;
  json.update({{"host", around.host},
               {"cpu", around.cpu},
               {"cpu_features", around.cpu_features},
               {"isa", around.isa},
               {"num_cores", around.num_cores},
               {"memory_bytes", around.memory_bytes},
               {"num_numa_nodes", around.num_numa_nodes},
               {"topology", json_of(around.topology)},
               {"load_average_at_start", around.load_at_start},
               {"load_average_at_end", around.load_at_end}});
  return json;
}

void put_x(const BenchX& x, Json* json) {
  if (x.name.empty()) return;
  (*json)["x_name"] = x.name;
  (*json)["x"] = x.value;
}

Json json_of(const BenchSeries& series) {
  Json json = {{"name", series.name}};
  put_x(series.x, &json);
  json["unit"] = series.unit;
  const Interval middle = bootstrap_median(series.samples);
  json["median"] = middle.value;
  json["median_low"] = middle.low;
  json["median_high"] = middle.high;
  json["mean"] = mean(series.samples);
  json["p95"] = quantile(series.samples, 0.95);
  json["p99"] = quantile(series.samples, 0.99);
  json["samples"] = series.samples;
  return json;
}

Json json_of(const BenchFigure& figure) {
  Json json = {{"name", figure.name}};
  put_x(figure.x, &json);
  json["unit"] = figure.unit;
  json["value"] = figure.interval.value;
  json["low"] = figure.interval.low;
  json["high"] = figure.interval.high;
  return json;
}

Json json_of(const Plot& plot) {
  constexpr const char* kMarks[] = {"line", "dashed line", "dots", "rings", "squares"};
  Json panels = Json::array();
  for (const PlotPanel& panel : plot.panels) {
    Json all = Json::array();
    for (const PlotSeries& series : panel.series) {
      Json points = Json::array();
      for (const PlotPoint& point : series.points)
        points.push_back({point.x, point.y, point.error});
      all.push_back({{"name", series.name},
                     {"mark", kMarks[static_cast<size_t>(series.mark)]},
                     {"color", series.color},
                     {"points", std::move(points)}});
    }
    panels.push_back({{"title", panel.title},
                      {"x_label", panel.x_label},
                      {"y_label", panel.y_label},
                      {"series", std::move(all)}});
  }
  return {{"title", plot.title}, {"panels", std::move(panels)}};
}

// Options are given as YAML; what is JSON as well keeps its type.
Json json_of_option(const std::string& yaml) {
  const Json value = Json::parse(yaml, nullptr, false);
  return value.is_discarded() ? Json(yaml) : value;
}

// Columns counted in code points, so that a name in UTF-8 does not shift its row.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

void print_row(const std::vector<std::string>& cells,
               const std::vector<size_t>& widths,
               std::FILE* out) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string gap(widths[i] - width_of(cells[i]), ' ');
    if (i > 0) line += "  ";
    line += i == 0 ? cells[i] + gap : gap + cells[i];
  }
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print(out, "{}\n", line);
}

void print_table(const BenchTable& table, std::FILE* out) {
  if (!table.title.empty()) fmt::print(out, "{}\n", table.title);
  std::vector<size_t> widths(table.columns.size());
  for (size_t i = 0; i < widths.size(); ++i) widths[i] = width_of(table.columns[i]);
  for (const auto& row : table.rows) {
    OUTRIDER_CHECK(row.size() == widths.size());
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  const bool has_heads = std::any_of(
      table.columns.begin(), table.columns.end(), [](const auto& c) { return !c.empty(); });
  if (has_heads) print_row(table.columns, widths, out);
  for (const auto& row : table.rows) print_row(row, widths, out);
  fmt::print(out, "\n");
}

}  // namespace

void BenchReport::add_series(std::string name,
                             std::string unit,
                             std::vector<double> samples,
                             BenchX x) {
  series.push_back({std::move(name), std::move(x), std::move(unit), std::move(samples)});
}

Interval BenchReport::add_samples(const std::string& name,
                                  const std::string& unit,
                                  const std::vector<double>& samples,
                                  const BenchX& x) {
  add_series(name, unit, samples, x);
  return add_figure(name, unit, bootstrap_median(samples), x);
}

Interval BenchReport::add_figure(std::string name, std::string unit, Interval interval, BenchX x) {
  figures.push_back({std::move(name), std::move(x), std::move(unit), interval});
  return interval;
}

double BenchReport::add_figure(std::string name, std::string unit, double value, BenchX x) {
  const double none = std::nan("");
  return add_figure(std::move(name), std::move(unit), Interval{value, none, none}, std::move(x))
      .value;
}

void print_tables(const BenchReport& report, std::FILE* out) {
  if (!report.tables.empty()) fmt::print(out, "{}\n\n", report.title);
  for (const BenchTable& table : report.tables) print_table(table, out);
  for (const std::string& note : report.notes) fmt::print(out, "{}\n", note);
  std::fflush(out);
}

std::string report_json(const BenchReport& report) {
  Json json = {{"kind", report.kind}, {"title", report.title}, {"command", report.command}};
  json["environment"] = json_of(report.environment);
  json["options"] = Json::object();
  for (const auto& [key, value] : report.options) json["options"][key] = json_of_option(value);
  json["figures"] = Json::array();
  for (const BenchFigure& figure : report.figures) json["figures"].push_back(json_of(figure));
  json["series"] = Json::array();
  for (const BenchSeries& series : report.series) json["series"].push_back(json_of(series));
  json["plot"] = json_of(report.plot);
  if (!report.details.empty()) {
    const Json details = Json::parse(report.details);
    for (const auto& [key, value] : details.items()) {
      OUTRIDER_CHECK(!json.contains(key));
      json[key] = value;
    }
  }
  // Names of files and models may hold anything; JSON holds UTF-8.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string report_csv(const BenchReport& report) {
  std::string text = "kind,series,x_name,x,sample,value,unit\r\n";
  for (const BenchSeries& series : report.series) {
    const std::string x = series.x.name.empty() ? "" : fmt::format("{}", series.x.value);
    for (size_t i = 0; i < series.samples.size(); ++i) {
      text += fmt::format("{},{},{},{},{},{},{}\r\n",
                          csv_field(report.kind),
                          csv_field(series.name),
                          csv_field(series.x.name),
                          x,
                          i,
                          series.samples[i],
                          csv_field(series.unit));
    }
  }
  return text;
}

PlotPoint plot_point(double x, const Interval& interval) {
  const double half = (interval.high - interval.low) / 2;
  return {x, interval.value, std::isfinite(half) ? half : 0};
}

std::string interval_text(const Interval& interval, int num_decimals) {
  if (!std::isfinite(interval.value)) return "-";
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high))
    return fmt::format("{:.{}f}", interval.value, num_decimals);
  return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]",
                     interval.value,
                     num_decimals,
                     interval.low,
                     num_decimals,
                     interval.high,
                     num_decimals);
}

std::vector<Option> output_options(BenchOutputs* outputs) {
  return {path_option("json",
                      &outputs->json_file,
                      "write environment, options, figures and every sample as JSON to this file"),
          path_option("csv", &outputs->csv_file, "write one row a sample as CSV to this file")};
}

void check_outputs(const BenchOutputs& outputs) {
  for (const std::string& file : {outputs.json_file, outputs.csv_file}) {
    const auto folder = std::filesystem::path(file).parent_path();
    if (folder.empty() || std::filesystem::is_directory(folder)) continue;
    throw Error(fmt::format("there is no folder {} to write {} into", folder.string(), file));
  }
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(fmt::format("cannot write {}", path));
}

void write_report(const BenchReport& report, const BenchOutputs& outputs) {
  if (!outputs.json_file.empty()) write_text(outputs.json_file, report_json(report));
  if (!outputs.csv_file.empty()) write_text(outputs.csv_file, report_csv(report));
}

}  // namespace outrider
