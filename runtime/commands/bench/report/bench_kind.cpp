// See bench_kind.h.
#include "runtime/commands/bench/report/bench_kind.h"

#include <algorithm>

namespace outrider {
namespace {

// "--key", "--key=value" or with dashes.
bool is_flag_of(const Option& option, const std::string& argument) {
  std::string key = argument.substr(0, argument.find('='));
  std::replace(key.begin(), key.end(), '-', '_');
  return key == "__" + option.key;
}

// As it may be typed again; keys are nobody's business.
std::string command_text(const std::string& kind,
                         const std::vector<std::string>& arguments,
                         const std::vector<Option>& secrets) {
  std::string text = "outrider bench " + kind;
  bool is_secret = false;
  for (const std::string& argument : arguments) {
    const bool names_key = std::ranges::any_of(
        secrets, [&](const Option& option) { return is_flag_of(option, argument); });
    const size_t equals = argument.find('=');
    std::string shown = argument;
    if (is_secret) shown = "...";
    if (names_key && equals != std::string::npos) shown = argument.substr(0, equals) + "=...";
    is_secret = names_key && equals == std::string::npos;
    const bool plain = !shown.empty() && shown.find_first_of(" \t\"'\\$") == std::string::npos;
    text += plain ? " " + shown : " '" + shown + "'";
  }
  return text;
}

std::vector<Option> with_outputs(std::vector<Option> own, BenchOutputs* outputs) {
  for (Option& option : output_options(outputs)) own.push_back(std::move(option));
  return own;
}

}  // namespace

BenchRun::BenchRun(std::string kind,
                   const CommandLine& line,
                   std::vector<Option> own,
                   const Words& words)
    : kind_(std::move(kind)),
      arguments_(line.arguments),
      own_(with_outputs(std::move(own), &outputs_)),
      loaded_(load_config(line.arguments, option_rows(own_), words)) {
  check_outputs(outputs_);
}

BenchReport BenchRun::new_report(const Topology& topology) const {
  BenchReport report;
  report.kind = kind_;
  report.environment = look_around(loaded_.config.isa, topology);
  RunConfig config = loaded_.config;
  std::vector<Option> options = run_config_options(&config);
  options.insert(options.end(), own_.begin(), own_.end());
  std::vector<Option> secrets;
  for (const Option& option : options) {
    if (option.is_secret) {
      secrets.push_back(option);
    } else {
      report.options.emplace_back(option.key, option.get());
    }
  }
  report.command = command_text(kind_, arguments_, secrets);
  return report;
}

void BenchRun::finish(BenchReport report) const {
  report.environment.load_at_end = load_average();
  print_tables(report, stdout);
  write_report(report, outputs_);
}

}  // namespace outrider
