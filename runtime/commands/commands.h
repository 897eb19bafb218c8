// The program's commands, one function each; main.cpp chooses. They throw Error for what the user
// can mend.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// The process's own argc and argv (for MPI) and the words after the command's name.
struct CommandLine {
  int* argc = nullptr;
  char*** argv = nullptr;
  std::vector<std::string> arguments;
};

int serve_command(const CommandLine& line);
int batch_command(const CommandLine& line);
int bench_command(const CommandLine& line);
// Of one kind of benchmark, or of all when there is none of this name.
std::string bench_help(const std::string& kind);
int check_pair_command(const CommandLine& line);
int verify_command(const CommandLine& line);
int synth_command(const CommandLine& line);
int export_gguf_command(const CommandLine& line);
int quantize_command(const CommandLine& line);
int tokenize_command(const CommandLine& line);
int render_command(const CommandLine& line);
int plan_command(const CommandLine& line);
int plot_rounds_command(const CommandLine& line);
int config_command(const CommandLine& line);

}  // namespace outrider
