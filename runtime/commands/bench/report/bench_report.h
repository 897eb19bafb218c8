// What a benchmark found, in the one form that all of them print and write: a terminal table, JSON
// (environment, options, every sample, figures with intervals), CSV (one row a sample) and a plot.
// Filled on rank 0; pure but for write_report().
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/settings/options.h"
#include "runtime/commands/bench/report/bench_environment.h"
#include "runtime/commands/bench/report/bench_statistics.h"
#include "runtime/commands/bench/report/plot.h"

namespace outrider {

// Where a measured or derived value stands on the benchmark's axis, if it has one: rows, length,
// requests in flight.
struct BenchX {
  std::string name;  // empty = no axis
  double value = 0;
};

struct BenchSeries {
  std::string name;  // "step", "plain read"
  BenchX x;
  std::string unit;  // "ms", "tokens/s"
  std::vector<double> samples;
};

struct BenchFigure {
  std::string name;  // "step / step of one row"
  BenchX x;
  std::string unit;   // empty = a ratio
  Interval interval;  // low and high NaN where there is none
};

struct BenchTable {
  std::string title;  // may be empty
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct BenchReport {
  std::string kind;   // "decode"
  std::string title;  // one line: what was measured on what
  std::string command;
  std::vector<std::pair<std::string, std::string>> options;  // in effect
  BenchEnvironment environment;
  std::vector<BenchSeries> series;
  std::vector<BenchFigure> figures;
  std::string details;  // text of a JSON object whose members stand beside the above; may be empty
  std::vector<BenchTable> tables;
  std::vector<std::string> notes;  // lines under the tables
  Plot plot;                       // for tools/plot.py

  void add_series(std::string name, std::string unit, std::vector<double> samples, BenchX x = {});
  // The series, and its median as a figure of that name, which it gives back.
  Interval add_samples(const std::string& name,
                       const std::string& unit,
                       const std::vector<double>& samples,
                       const BenchX& x = {});
  // Adds the figure and gives it back for a table.
  Interval add_figure(std::string name, std::string unit, Interval interval, BenchX x = {});
  // A figure without an interval.
  double add_figure(std::string name, std::string unit, double value, BenchX x = {});
};

void print_tables(const BenchReport& report, std::FILE* out);
std::string report_json(const BenchReport& report);
// kind,series,x_name,x,sample,value,unit; RFC 4180.
std::string report_csv(const BenchReport& report);
// A field as CSV wants it: in quotes where it holds a comma, a quote or a line end.
std::string csv_field(const std::string& text);

// "1.05 [1.03, 1.08]"; without brackets where there is no interval.
std::string interval_text(const Interval& interval, int num_decimals);
// With half the interval as its error bar; without one where a single sample gave no interval.
PlotPoint plot_point(double x, const Interval& interval);

struct BenchOutputs {
  std::string json_file;
  std::string csv_file;
};

std::vector<Option> output_options(BenchOutputs* outputs);
// Throws Error when a file's folder does not exist: said before minutes of measurement, not after.
void check_outputs(const BenchOutputs& outputs);
// These throw Error naming the file.
void write_text(const std::string& path, const std::string& text);
void write_report(const BenchReport& report, const BenchOutputs& outputs);

}  // namespace outrider
