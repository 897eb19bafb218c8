// See bench_environment.h.
#include "runtime/commands/bench/report/bench_environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/ops/ops.h"

namespace outrider {
namespace {

constexpr const char* kFeatures[] = {"avx2",
                                     "fma",
                                     "f16c",
                                     "avx_vnni",
                                     "avx512f",
                                     "avx512bw",
                                     "avx512_vnni",
                                     "avx512_bf16",
                                     "avx512_fp16",
                                     "amx_tile",
                                     "amx_bf16",
                                     "amx_int8"};

// "name : value" of the first processor; empty when there is no such line.
std::string cpuinfo_value(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name)) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::vector<std::string> cpu_features() {
  std::istringstream flags(cpuinfo_value("flags"));
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    if (std::find(std::begin(kFeatures), std::end(kFeatures), flag) != std::end(kFeatures))
      found.push_back(flag);
  }
  return found;
}

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

int num_numa_nodes() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_node = name.starts_with("node") && name.size() > 4 &&
                         name.find_first_not_of("0123456789", 4) == std::string::npos;
    count += is_node ? 1 : 0;
  }
  return std::max(1, count);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

std::array<double, 3> load_average() {
  std::array<double, 3> load = {};
  if (getloadavg(load.data(), static_cast<int>(load.size())) < 0) load.fill(-1);
  return load;
}

BenchEnvironment look_around(const std::string& isa, const Topology& topology) {
  BenchEnvironment around;
  around.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  around.host = host_name();
  around.cpu = cpuinfo_value("model name");
  around.cpu_features = cpu_features();
  around.isa = ops::isa_name(ops::isa_from_name(isa));
  around.num_cores = num_usable_cores();
  around.memory_bytes =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  around.num_numa_nodes = num_numa_nodes();
  around.topology = topology;
  around.load_at_start = load_average();
  around.load_at_end = around.load_at_start;
  return around;
}

}  // namespace outrider
