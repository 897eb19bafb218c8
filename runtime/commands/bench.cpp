// bench: measurements, one kind each; the table below is all that knows them all.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/commands/bench/comm/comm_bench.h"
#include "runtime/commands/bench/decode/decode_bench.h"
#include "runtime/commands/bench/load_bench.h"
#include "runtime/commands/bench/prefill_bench.h"
#include "runtime/commands/bench/report/bench_kind.h"
#include "runtime/commands/bench/serve/serve_bench.h"
#include "runtime/commands/bench/sim/sim_bench.h"
#include "runtime/commands/bench/throughput_bench.h"
#include "runtime/commands/bench/verify_curve_bench.h"
#include "runtime/commands/commands.h"

namespace outrider {
namespace {

std::vector<BenchKind> bench_kinds() {
  return {
      decode_bench(),
      verify_curve_bench(),
      prefill_bench(),
      throughput_bench(),
      comm_bench(),
      serve_bench(),
      load_bench(),
      sim_bench(),
  };
}

std::string names_of_kinds(const char* between) {
  std::string names;
  for (const BenchKind& kind : bench_kinds()) {
    if (!names.empty()) names += between;
    names += kind.name;
  }
  return names;
}

// Of one kind of benchmark, or of all when there is none of this name.
std::string bench_help(const std::string& name) {
  const std::vector<BenchKind> kinds = bench_kinds();
  const bool known = std::any_of(
      kinds.begin(), kinds.end(), [&](const BenchKind& kind) { return name == kind.name; });
  std::string text = "usage: outrider bench KIND [options]\n";
  for (const BenchKind& kind : kinds) {
    if (known && name != kind.name) continue;
    text += fmt::format("\n{}: {}\n{}", kind.name, kind.help, kind.options_help());
  }
  return text + "\nand the options of all commands, see outrider --help\n";
}

}  // namespace

int bench_command(const CommandLine& line) {
  if (line.arguments.empty())
    throw Error(fmt::format("usage: outrider bench {} [options]", names_of_kinds("|")));
  const std::string& name = line.arguments[0];
  for (const std::string& argument : line.arguments) {
    if (argument == "--help" || argument == "-h") throw HelpAsked{bench_help(name)};
  }
  const CommandLine rest{line.launch, {line.arguments.begin() + 1, line.arguments.end()}};
  for (const BenchKind& kind : bench_kinds()) {
    if (name == kind.name) return kind.run(rest);
  }
  throw Error(fmt::format("unknown benchmark '{}'; there are {}", name, names_of_kinds(", ")));
}

}  // namespace outrider
