// Which CPUs and memory nodes this machine has, read from the system's files under a given root,
// and the choice of CPUs for a rank's threads as a function of them. Used by thread_plan.h and
// tests.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/ops/thread_plan.h"

namespace outrider::ops::cpu {

inline constexpr int kMostCpus = 1 << 16;  // more are not believed

struct CpuTopology {
  // CPU by CPU, all that are online: its memory node, and the first of the CPUs that share its
  // core.
  struct Place {
    int node = 0;
    int core = 0;
  };
  std::map<int, Place> cpus;
  std::vector<int> allowed;  // to this process; ordered by node, then core

  bool has_several_nodes() const;
  // Ascending and once each.
  std::vector<int> nodes_of(const std::vector<int>& some_cpus) const;
};

// "0-3,8,10-11" ascending as written. Throws Error quoting what is no number, range or known size.
std::vector<int> parse_cpu_list(std::string_view text);

// From root/node/node*/cpulist and root/cpu/cpu*/topology/thread_siblings_list, where root is
// /sys/devices/system. Files that are missing, damaged or contradict each other make it one node.
CpuTopology read_topology(const std::filesystem::path& root, const std::vector<int>& allowed);

// What plan_threads(request) does for a given machine.
ThreadPlan plan_threads(const ThreadRequest& request, const CpuTopology& topology);

// Asks that the pages of [begin, begin + num_bytes), none of them touched yet, come from these
// nodes in turn. begin: start of a page. False, with a debug line, when the system does not; fewer
// than two nodes: nothing is asked, false.
bool lay_over_nodes(std::byte* begin, size_t num_bytes, std::span<const int> nodes);

// The CPUs this thread may run on, ascending; those of the process before any thread was pinned.
std::vector<int> current_cpus();
const std::vector<int>& given_cpus();

}  // namespace outrider::ops::cpu
