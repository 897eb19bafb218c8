// The program: one binary for every rank and every way in.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/comm/device/nccl_library.h"
#include "runtime/commands/build_info.h"
#include "runtime/commands/commands.h"
#include "runtime/commands/help.h"
#include "runtime/ops/gpu/backend.h"

namespace outrider {

std::vector<Command> commands() {
  return {
      {"serve", "OpenAI-compatible server", serve_command},
      {"chat",
       "talk to a server in the terminal, tokens coloured by their origin: --url URL",
       chat_command},
      {"batch",
       "run a file of OpenAI batch lines: -i in.jsonl -o out.jsonl [--resume]",
       batch_command},
      {"draft",
       "a draft for a running job, over TCP: --connect HOST:PORT --model DRAFT",
       draft_command},
      {"bench", "measurements of many kinds; see bench --help", bench_command},
      {"check-pair",
       "whether a draft speaks a target's tokens, one line: check-pair TARGET DRAFT; code 4 = no",
       check_pair_command},
      {"verify", "check on this pair that speculation changes nothing: one table", verify_command},
      {"synth",
       "a target and a draft of random weights as model folders: --shape NAME --alpha A -o DIR",
       synth_command},
      {"quantize",
       "a model folder with weights of 8 or 4 bits: MODEL -o DIR [--format int4]",
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
      {"help",
       "the help of a command, or of all of them as a page, a man page or bash's completion",
       help_command},
  };
}

namespace {

constexpr int kExitUsage = 2;

// bench has a kind beside its name.
std::string program_of(int argc, char** argv) {
  const std::string kind = argc > 2 && std::strcmp(argv[1], "bench") == 0 ? argv[2] : "";
  return fmt::format("outrider {} ({}) {} {}", kBuildVersion, kBuildCommit, argv[1], kind);
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h") {
    std::fputs(usage().c_str(), stdout);
    return argc > 1 ? 0 : kExitUsage;
  }
  if (name == "--version" || name == "version") {
    for (const auto& [what, value] : build_info())
      fmt::print("{:<9} {}\n", what == "version" ? "outrider" : what, value);
    return 0;
  }
  const CommandLine line{{&argc, &argv, program_of(argc, argv)}, {argv + 2, argv + argc}};
  for (const Command& command : commands()) {
    if (name == command.name) return run_or_help("", command, line);
  }
  throw Error(fmt::format("unknown command '{}'; see outrider --help", name));
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  outrider::pin_nccl_settings();
  outrider::gpu::pin_driver_settings();
  try {
    const int code = outrider::run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw outrider::Error("what was printed could not be written");
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outrider: %s\n", error.what());
    return outrider::kExitUsage;
  }
}
