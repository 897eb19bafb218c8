// What all kinds of benchmarks do alike: options, the empty report, the files at the end.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/settings/config.h"
#include "runtime/commands/bench/report/bench_report.h"
#include "runtime/commands/commands.h"

namespace outrider {

// One run of a benchmark, from its arguments to its files.
class BenchRun {
 public:
  // own: the kind's options; --json and --csv are added. Throws Error for what cannot be
  // understood and for a file whose folder does not exist.
  BenchRun(std::string kind,
           const CommandLine& line,
           std::vector<Option> own,
           const Words& words = {});
  // The options point into this object.
  BenchRun(const BenchRun&) = delete;
  BenchRun& operator=(const BenchRun&) = delete;

  RunConfig& config() { return loaded_.config; }
  const RunConfig& config() const { return loaded_.config; }
  const std::vector<std::string>& positional() const { return loaded_.positional; }
  bool is_given(const std::string& key) const { return loaded_.is_given(key); }

  // Kind, command, environment and the options in effect; the caller adds the rest.
  BenchReport new_report(const Topology& topology) const;
  // Prints the tables, notes the load average, writes the files.
  void finish(BenchReport report) const;

 private:
  std::string kind_;
  std::vector<std::string> arguments_;
  BenchOutputs outputs_;
  std::vector<Option> own_;
  LoadedConfig loaded_;
};

}  // namespace outrider
