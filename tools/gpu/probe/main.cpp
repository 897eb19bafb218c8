// gpu_probe [PROBE...] [--out FOLDER] [--list]
// What must be known of a GPU to judge kernels on it. Of each probe FOLDER/NAME.json and NAME.md,
// the latter also on standard output; written as it goes, so that who ends it keeps what there was.
// Exit code 0: all probes ran; 1: some failed; 2: not understood; 3: no GPU.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/probes.h"

namespace outrider::gpu_probe {
namespace {

constexpr int kNoGpu = 3;

struct Probe {
  const char* name;
  const char* question;
  void (*run)(Report&);
};
constexpr Probe kProbes[] = {
    {"device", "Which device?", probe_device},
    {"bandwidth", "How fast is reading?", probe_bandwidth},
    {"launch_gap", "What does a kernel in a graph cost besides its work?", probe_launch_gap},
};

struct CommandLine {
  std::string folder = "gpu_probe_results";
  std::vector<std::string> names;  // empty: all
  bool list = false;
  bool wants(const Probe& probe) const {
    return names.empty() || std::find(names.begin(), names.end(), probe.name) != names.end();
  }
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--list") {
      line.list = true;
    } else if (word == "--out" && i + 1 < argc) {
      line.folder = argv[++i];
    } else if (word.rfind("--", 0) == 0) {
      throw std::invalid_argument(word +
                                  " is no option, or wants a value; usage: gpu_probe [PROBE...] "
                                  "[--out FOLDER] [--list]");
    } else if (std::none_of(std::begin(kProbes), std::end(kProbes), [&](const Probe& probe) {
                 return word == probe.name;
               })) {
      throw std::invalid_argument("no probe is called '" + word + "'; --list names them");
    } else {
      line.names.push_back(word);
    }
  }
  return line;
}

// Whether it could go on to its end.
bool run(const Probe& probe, const std::string& folder) {
  Report report(probe.name, probe.question, folder);
  std::string status = "ok";
  report.save("running");
  try {
    probe.run(report);
  } catch (const std::exception& error) {
    status = error.what();
    std::fprintf(stderr, "gpu_probe: %s: %s\n", probe.name, error.what());
  }
  std::fputs(report.markdown(status).c_str(), stdout);
  return report.save(status) && status == "ok";
}

int run_all(const CommandLine& line) {
  if (const std::string missing = why_no_device(); !missing.empty()) {
    std::fprintf(stderr, "gpu_probe: %s\n", missing.c_str());
    return kNoGpu;
  }
  std::filesystem::create_directories(line.folder);
  bool all_done = true;
  for (const Probe& probe : kProbes) {
    if (line.wants(probe)) all_done = run(probe, line.folder) && all_done;
  }
  return all_done ? 0 : 1;
}

}  // namespace
}  // namespace outrider::gpu_probe

int main(int argc, char** argv) {
  using namespace outrider::gpu_probe;
  try {
    const CommandLine line = parse(argc, argv);
    if (!line.list) return run_all(line);
    for (const Probe& probe : kProbes) std::printf("%-12s %s\n", probe.name, probe.question);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "gpu_probe: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_probe: %s\n", error.what());
    return 1;
  }
}
