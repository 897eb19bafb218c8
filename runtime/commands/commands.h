// The program's commands, one function each; main.cpp chooses. They throw Error for what the user
// can mend, and HelpAsked for --help before they do anything else.
#pragma once

#include <string>
#include <vector>

#include "runtime/ranks/job/launch.h"

namespace outrider {

struct CommandLine {
  Launch launch;
  std::vector<std::string> arguments;  // the words after the command's name
};

struct Command {
  const char* name;
  const char* help;                     // one line
  int (*run)(const CommandLine& line);  // every rank of the job calls it; returns the exit code
};

// All that there are, as help lists them.
std::vector<Command> commands();
// What may stand behind "bench": of each kind a NAME_bench.cpp under bench/.
std::vector<Command> bench_kinds();
int decode_bench(const CommandLine& line);
int verify_curve_bench(const CommandLine& line);
int prefill_bench(const CommandLine& line);
int throughput_bench(const CommandLine& line);
int comm_bench(const CommandLine& line);
int serve_bench(const CommandLine& line);
int load_bench(const CommandLine& line);
int sim_bench(const CommandLine& line);

int serve_command(const CommandLine& line);
int chat_command(const CommandLine& line);
int draft_command(const CommandLine& line);
int batch_command(const CommandLine& line);
int bench_command(const CommandLine& line);
int check_pair_command(const CommandLine& line);
int verify_command(const CommandLine& line);
int synth_command(const CommandLine& line);
int quantize_command(const CommandLine& line);
int tokenize_command(const CommandLine& line);
int render_command(const CommandLine& line);
int plan_command(const CommandLine& line);
int config_command(const CommandLine& line);
int help_command(const CommandLine& line);

}  // namespace outrider
