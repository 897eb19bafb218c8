// gpu_probe [PROBE...] [--out FOLDER] [--nccl FILE] [--cublaslt FILE] [--list]
// The questions about a GPU that must be answered before kernels are written for it. Each probe is
// a process of its own with a time limit, so that one that fails or hangs is a line in the report
// and no more. Results: FOLDER/ gpu_probe.json and gpu_probe.md, the latter also on standard
// output. Exit code 0: all probes ran; 1: some failed; 2: not understood; 3: no GPU. Nothing here
// includes CUDA: the process that forks must not have touched the driver.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/gpu/probe/probes.h"
#include "tools/gpu/probe/process.h"

namespace outrider::gpu_probe {
namespace {

constexpr int kNoGpu = 3;

struct Probe {
  const char* name;
  const char* question;
  void (*run)(const ProbeOptions&, Report&);
  double limit_s;
};

// In the order of importance, but bandwidth first, whose ceiling the next one quotes.
constexpr Probe kProbes[] = {
    {"device", "Which device?", probe_device, 20},
    {"bandwidth", "How fast is reading?", probe_bandwidth, 60},
    {"cublaslt", "How good is cuBLASLt with few rows, and with those of prompts?", probe_cublaslt, 120},
    {"launch_gap", "What does a kernel in a graph cost besides its work?", probe_launch_gap, 30},
    {"latency", "What does hearing from the device cost?", probe_latency, 30},
    {"ipc", "Can two processes share memory of one device?", probe_ipc, 30},
    {"nccl", "Can two NCCL ranks share one device?", probe_nccl, 75},
};

struct CommandLine {
  ProbeOptions options;
  std::vector<std::string> names;  // empty: all
  std::string run;                 // this process is one probe
  std::string peer;                // this process is the second one of a probe
  bool list = false;
};

const Probe& probe_named(const std::string& name) {
  for (const Probe& probe : kProbes) {
    if (name == probe.name) {
      return probe;
    }
  }
  throw std::invalid_argument("no probe is called '" + name + "'; --list names them");
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  ProbeOptions& options = line.options;
  options.folder = "gpu_probe_results";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--list") {
      line.list = true;
    } else if (word.rfind("--", 0) != 0) {
      line.names.push_back(probe_named(word).name);
    } else if (i + 1 == argc) {
      throw std::invalid_argument(
          word +
          " is no option, or wants a value; usage: gpu_probe [PROBE...] [--out FOLDER] "
          "[--nccl FILE] [--cublaslt FILE] [--list]");
    } else {
      const std::string value = argv[++i];
      if (word == "--out") {
        options.folder = value;
      } else if (word == "--nccl") {
        options.nccl_library = value;
      } else if (word == "--cublaslt") {
        options.cublaslt_library = value;
      } else if (word == "--run") {
        line.run = value;
      } else if (word == "--peer") {
        line.peer = value;
      } else if (word == "--ceiling") {
        options.read_ceiling_gb_s = std::atof(value.c_str());
      } else if (word == "--rank") {
        options.rank = std::atoi(value.c_str());
      } else if (word == "--read") {
        options.read_file = std::atoi(value.c_str());
      } else if (word == "--write") {
        options.write_file = std::atoi(value.c_str());
      } else if (word == "--answer") {
        options.answer_file = std::atoi(value.c_str());
      } else {
        throw std::invalid_argument(word + " is no option of gpu_probe");
      }
    }
  }
  return line;
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// This process is the probe.
int run_probe(const Probe& probe, const ProbeOptions& options) {
  const std::string missing =
      std::strcmp(probe.name, "ipc") == 0 || std::strcmp(probe.name, "nccl") == 0
          ? ""  // these start others first
          : no_device_sentence();
  if (!missing.empty()) {
    std::fprintf(stderr, "gpu_probe: %s\n", missing.c_str());
    return kNoGpu;
  }
  Report report(probe.name, probe.question, options.folder);
  report.save("running");
  try {
    probe.run(options, report);
    return report.save("ok") ? 0 : 1;
  } catch (const std::exception& error) {
    report.save(error.what());
    return 1;
  }
}

int run_peer(const std::string& name, const ProbeOptions& options) {
  return name == "ipc" ? ipc_peer(options) : nccl_rank(options);
}

// The first number behind "read_ceiling_gb_s" in the bandwidth probe's results; 0 when there is
// none.
double read_ceiling(const std::string& folder) {
  const std::string text = text_of(folder + "/bandwidth.json");
  const std::string key = "\"read_ceiling_gb_s\": ";
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::atof(text.c_str() + at + key.size());
}

// Runs one probe as a process and sees to it that its report exists. The process's exit code.
int run_as_process(const Probe& probe, const ProbeOptions& options) {
  std::vector<std::string> arguments{"--run",
                                     probe.name,
                                     "--out",
                                     options.folder,
                                     "--ceiling",
                                     std::to_string(read_ceiling(options.folder))};
  if (!options.nccl_library.empty()) {
    arguments.insert(arguments.end(), {"--nccl", options.nccl_library});
  }
  if (!options.cublaslt_library.empty()) {
    arguments.insert(arguments.end(), {"--cublaslt", options.cublaslt_library});
  }
  const std::string log = options.folder + "/" + probe.name + ".log";
  const Ended ended = wait_for(start_self(arguments, {{}, log, true}), probe.limit_s, true);
  const std::string said = last_lines(log, 3);
  if (ended.timed_out || (ended.code > 1 && ended.code != kNoGpu)) {
    const std::string how = ended.timed_out ? "not done within " + number(probe.limit_s, 0) + " s"
                            : ended.code > 128
                                ? "ended by signal " + std::to_string(ended.code - 128)
                                : said;
    Report(std::string(probe.name) + "_end",
           std::string(probe.question) + " (how it ended)",
           options.folder)
        .save(how + (ended.code > 128 && !said.empty() ? "; it said: " + said : ""));
  }
  if (ended.code != kNoGpu) {
    std::fprintf(stderr,
                 "gpu_probe: %s: %s, %.1f s\n",
                 probe.name,
                 ended.code == 0 ? "done" : "failed",
                 ended.seconds);
  }
  return ended.timed_out ? 1 : ended.code;
}

void write_whole(const std::vector<const Probe*>& probes, const std::string& folder) {
  std::string json;
  std::string markdown = "# GPU probe\n\nWritten by `gpu_probe`.\n\n";
  for (const Probe* probe : probes) {
    for (const char* ending : {"", "_end"}) {
      const std::string path = folder + "/" + probe->name + ending;
      const std::string part = text_of(path + ".json");
      if (!part.empty()) {
        json += (json.empty() ? "" : ",\n") + part;
        markdown += text_of(path + ".md");
      }
      for (const char* kind : {".json", ".md"}) {
        std::filesystem::remove(path + kind);
      }
    }
    if (std::filesystem::exists(folder + "/" + probe->name + ".log") &&
        std::filesystem::file_size(folder + "/" + probe->name + ".log") == 0) {
      std::filesystem::remove(folder + "/" + probe->name + ".log");
    }
  }
  std::ofstream(folder + "/gpu_probe.json") << "{\"probes\": [\n" << json << "]}\n";
  std::ofstream(folder + "/gpu_probe.md") << markdown;
  std::fputs(markdown.c_str(), stdout);
}

int run_all(const CommandLine& line) {
  const std::string& folder = line.options.folder;
  std::filesystem::create_directories(folder);
  std::vector<const Probe*> probes;
  for (const Probe& probe : kProbes) {
    bool wanted = line.names.empty();
    for (const std::string& name : line.names) {
      wanted = wanted || name == probe.name;
    }
    if (wanted) {
      probes.push_back(&probe);
    }
  }
  // Which device, and whether there is one, is asked first, whatever was wanted.
  if (probes.front() != kProbes) {
    probes.insert(probes.begin(), kProbes);
  }
  bool all_done = true;
  for (const Probe* probe : probes) {
    const int code = run_as_process(*probe, line.options);
    if (probe == kProbes && code == kNoGpu) {
      std::fprintf(stderr, "%s\n", last_lines(folder + "/device.log", 1).c_str());
      std::filesystem::remove(folder + "/device.log");
      return kNoGpu;
    }
    all_done = all_done && code == 0;
  }
  write_whole(probes, folder);
  return all_done ? 0 : 1;
}

}  // namespace
}  // namespace outrider::gpu_probe

int main(int argc, char** argv) {
  using namespace outrider::gpu_probe;
  try {
    const CommandLine line = parse(argc, argv);
    if (line.list) {
      for (const Probe& probe : kProbes) {
        std::printf("%-12s %s (at most %.0f s)\n", probe.name, probe.question, probe.limit_s);
      }
      return 0;
    }
    if (!line.peer.empty()) {
      return run_peer(line.peer, line.options);
    }
    return line.run.empty() ? run_all(line) : run_probe(probe_named(line.run), line.options);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "gpu_probe: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_probe: %s\n", error.what());
    return 1;
  }
}
