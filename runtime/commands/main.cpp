// The program: one binary for every rank and every way in.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/comm/device/nccl_library.h"
#include "runtime/commands/bench/report/bench_environment.h"
#include "runtime/commands/commands.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {
namespace {

constexpr int kExitUsage = 2;

struct Command {
  const char* name;
  const char* help;
  int (*run)(const CommandLine&);
};

constexpr Command kCommands[] = {
    {"serve", "OpenAI-compatible server", serve_command},
    {"batch",
     "run a file of OpenAI batch lines: -i in.jsonl -o out.jsonl [--resume]",
     batch_command},
    {"bench", "measurements of many kinds; see bench --help", bench_command},
    {"check-pair",
     "whether a draft speaks a target's tokens, one line: check-pair TARGET DRAFT; code 4 = no",
     check_pair_command},
    {"verify", "check on this pair that speculation changes nothing: one table", verify_command},
    {"synth",
     "a target and a draft of random weights as model folders: --shape NAME --alpha A -o DIR",
     synth_command},
    {"quantize",
     "a model folder with 8-bit weights: MODEL -o DIR --group-size 128",
     quantize_command},
    {"tokenize", "text or ids to both, one JSON line each: --model DIR", tokenize_command},
    {"render",
     "chat messages to a prompt, one JSON line each: --model DIR or --template FILE",
     render_command},
    {"plan",
     "memory and times of a pair on a cluster of GPUs, predicted: --model M --gpus 8 --nodes 1",
     plan_command},
    {"config",
     "config dump: the effective configuration and where each value came from",
     config_command},
};

std::string usage() {
  std::string text =
      "usage: outrider COMMAND [options]\n       mpirun -np R+1 outrider COMMAND [options]\n\n";
  for (const Command& command : kCommands)
    text += fmt::format("  {:<11} {}\n", command.name, command.help);
  text += "\nOptions may also come from OUTRIDER_NAME variables and --config file.yaml:\n";
  RunConfig config;
  const std::vector<Option> options = run_config_options(&config);
  return text + help_text(option_rows(options));
}

// bench has a kind beside its name.
std::string program_of(int argc, char** argv) {
  const std::string kind = argc > 2 && std::strcmp(argv[1], "bench") == 0 ? argv[2] : "";
  return fmt::format("outrider {} ({}) {} {}", OUTRIDER_VERSION, kBuildCommit, argv[1], kind);
}

int run_command(const Command& command, const CommandLine& line) {
  try {
    return command.run(line);
  } catch (const HelpAsked& asked) {
    fmt::print("outrider {}: {}\n\n{}", command.name, command.help, asked.text);
    return 0;
  }
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(usage().c_str(), stdout);
    return argc > 1 ? 0 : kExitUsage;
  }
  if (name == "--version" || name == "version") {
    std::printf("outrider %s (%s)\n", OUTRIDER_VERSION, kBuildCommit);
    return 0;
  }
  CommandLine line{{&argc, &argv, program_of(argc, argv)}, {argv + 2, argv + argc}};
  for (const Command& command : kCommands) {
    if (name == command.name) return run_command(command, line);
  }
  throw Error(fmt::format("unknown command '{}'; see outrider --help", name));
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  outrider::pin_nccl_settings();
  outrider::gpu::pin_driver_settings();
  try {
    return outrider::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return outrider::kExitUsage;
  }
}
