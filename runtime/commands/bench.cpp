// bench: measurements, one kind each; the table below is all that knows them all.
#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/base/settings/config.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/help.h"

namespace outrider {

std::vector<Command> bench_kinds() {
  return {
      {"decode", "the same prompts with speculation off and on", decode_bench},
      {"verify-curve", "time of a step by its rows, without a draft", verify_curve_bench},
      {"prefill", "prompt tokens per second by prompt length", prefill_bench},
      {"throughput",
       "many requests at once, by how many are in flight, with and without speculation",
       throughput_bench},
      {"comm", "each message of a round between the ranks: time, size, right or wrong", comm_bench},
      {"serve",
       "open-loop load on a running server, ours or any OpenAI-compatible one",
       serve_bench},
      {"load", "a model's folder: until it can be run, against reading it", load_bench},
      {"sim",
       "simulated models: speed-up against the formulas, overhead of a round, many requests",
       sim_bench},
  };
}

int bench_command(const CommandLine& line) {
  const std::string name = line.arguments.empty() ? "" : line.arguments[0];
  std::string names;
  CommandLine rest = line;
  if (!name.empty()) rest.arguments.erase(rest.arguments.begin());
  for (const Command& kind : bench_kinds()) {
    if (name == kind.name) return run_or_help("bench ", kind, rest);
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  if (asks_for_help(line.arguments)) throw HelpAsked{.own = help_of(bench_kinds()), .common = {}};
  if (name.empty())
    throw Error(fmt::format("usage: outrider bench KIND [options]; kinds: {}", names));
  throw Error(fmt::format("unknown benchmark '{}'; there are {}", name, names));
}

}  // namespace outrider
