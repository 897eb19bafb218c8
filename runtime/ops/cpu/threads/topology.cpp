// See topology.h and thread_plan.h.
#include "runtime/ops/cpu/threads/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "runtime/base/error.h"

namespace outrider::ops::cpu {
namespace {

int parse_cpu(std::string_view text, std::string_view whole) {
  int cpu = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  if (problem != std::errc() || end != text.data() + text.size() || cpu < 0 || cpu >= kMostCpus) {
    throw Error(fmt::format("\"{}\" in \"{}\" is no CPU number", text, whole.substr(0, 100)));
  }
  return cpu;
}

// The pieces between marks; "a,,b" has an empty one.
std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t at = text.find(mark);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

// The list in a file of the system; nothing when it cannot be read as one. An empty list is one: a
// node that has memory only.
std::optional<std::vector<int>> read_cpu_list(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!in) return std::nullopt;
  std::getline(in, line);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (line.empty()) return std::vector<int>();
  try {
    return parse_cpu_list(line);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The number in "node12"; -1 for other names.
int node_number(const std::string& name) {
  constexpr std::string_view kPrefix = "node";
  if (!name.starts_with(kPrefix)) return -1;
  int number = -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, number);
  return result.ec == std::errc() && result.ptr == end && number < kMostCpus ? number : -1;
}

// False when the files cannot be trusted.
bool read_nodes(const std::filesystem::path& folder, std::map<int, CpuTopology::Place>* cpus) {
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    const int node = node_number(entry.path().filename().string());
    if (node < 0) continue;
    const auto list = read_cpu_list(entry.path() / "cpulist");
    if (!list) return false;
    for (const int cpu : *list) {
      if (!cpus->insert({cpu, {node, cpu}}).second) return false;
    }
  }
  return !problem && !cpus->empty();
}

// The part of the CPUs that one of `count` ranks gets.
std::vector<int> share_of(const std::vector<int>& cpus, const RankShare& share) {
  const size_t count = static_cast<size_t>(std::max(1, share.count));
  const size_t index =
      static_cast<size_t>(share.index) < count ? static_cast<size_t>(share.index) : 0;
  const size_t begin = cpus.size() * index / count;
  const size_t end = cpus.size() * (index + 1) / count;
  return {cpus.begin() + static_cast<std::ptrdiff_t>(begin),
          cpus.begin() + static_cast<std::ptrdiff_t>(end)};
}

// num of the CPUs, evenly over their nodes; one a core where there are enough cores.
std::vector<int> spread(const std::vector<int>& cpus, int num, const CpuTopology& topology) {
  std::vector<int> one_a_core;
  std::set<int> cores;
  for (const int cpu : cpus) {
    if (cores.insert(topology.cpus.at(cpu).core).second) one_a_core.push_back(cpu);
  }
  const auto wanted = static_cast<size_t>(num);
  const std::vector<int>& from = one_a_core.size() >= wanted ? one_a_core : cpus;
  std::vector<int> chosen;
  for (size_t t = 0; t < wanted; ++t) chosen.push_back(from[from.size() * t / wanted]);
  return chosen;
}

// What an explicit cpu_bind gives this rank, in the order written.
std::vector<int> listed_cpus(const ThreadRequest& request, const CpuTopology& topology) {
  const std::vector<std::string_view> parts = split(request.cpu_bind, '|');
  std::vector<std::vector<int>> lists;
  std::set<int> seen;
  for (const std::string_view part : parts) {
    try {
      lists.push_back(parse_cpu_list(part));
    } catch (const Error& error) {
      throw Error(fmt::format("cpu_bind: {}; give auto, none or CPUs like 0-3,8", error.what()));
    }
    for (const int cpu : lists.back()) {
      if (!topology.cpus.contains(cpu))
        throw Error(fmt::format("cpu_bind: this host has no CPU {}", cpu));
      if (std::ranges::find(topology.allowed, cpu) == topology.allowed.end())
        throw Error(fmt::format("cpu_bind: CPU {} is not among those this process may use", cpu));
      if (!seen.insert(cpu).second)
        throw Error(fmt::format("cpu_bind: CPU {} is there twice", cpu));
    }
  }
  const int count = std::max(1, request.on_host.count);
  const bool is_one_list = lists.size() == 1;
  const size_t num_given = is_one_list ? lists.front().size() : lists.size();
  if (num_given < static_cast<size_t>(count)) {
    throw Error(fmt::format("cpu_bind: {} {} for {} target ranks on this host",
                            num_given,
                            is_one_list ? "CPU(s)" : "lists",
                            count));
  }
  if (is_one_list) return share_of(lists.front(), request.on_host);
  const auto index = static_cast<size_t>(request.on_host.index);
  return index < lists.size() ? lists[index] : lists.front();
}

ThreadPlan plan_listed(const ThreadRequest& request, const CpuTopology& topology) {
  std::vector<int> cpus = listed_cpus(request, topology);
  const auto num = request.num_threads > 0 ? static_cast<size_t>(request.num_threads) : cpus.size();
  if (num > cpus.size()) {
    throw Error(fmt::format("cpu_bind: {} CPU(s), {}, for a rank of {} threads",
                            cpus.size(),
                            fmt::join(cpus, ","),
                            num));
  }
  cpus.resize(num);
  ThreadPlan plan(static_cast<int>(num));
  plan.nodes = topology.nodes_of(cpus);
  plan.cpus = std::move(cpus);
  return plan;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  for (const std::string_view piece : split(text, ',')) {
    const size_t dash = piece.find('-');
    const int first = parse_cpu(piece.substr(0, dash), text);
    const int last =
        dash == std::string_view::npos ? first : parse_cpu(piece.substr(dash + 1), text);
    if (last < first) throw Error(fmt::format("\"{}\" counts backwards", piece));
    if (cpus.size() + static_cast<size_t>(last - first) >= static_cast<size_t>(kMostCpus))
      throw Error(fmt::format("\"{}\" are too many CPUs", text.substr(0, 100)));
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

bool CpuTopology::has_several_nodes() const {
  return std::ranges::any_of(
      cpus, [&](const auto& entry) { return entry.second.node != cpus.begin()->second.node; });
}

std::vector<int> CpuTopology::nodes_of(const std::vector<int>& some_cpus) const {
  std::set<int> nodes;
  for (const int cpu : some_cpus) nodes.insert(cpus.at(cpu).node);
  return {nodes.begin(), nodes.end()};
}

CpuTopology read_topology(const std::filesystem::path& root, const std::vector<int>& allowed) {
  CpuTopology topology;
  const bool trusted =
      read_nodes(root / "node", &topology.cpus) &&
      std::ranges::all_of(allowed, [&](int cpu) { return topology.cpus.contains(cpu); });
  if (!trusted) {
    topology.cpus.clear();
    const auto online = read_cpu_list(root / "cpu" / "online");
    if (online) {
      for (const int cpu : *online) topology.cpus[cpu] = {0, cpu};
    }
    for (const int cpu : allowed) topology.cpus[cpu] = {0, cpu};
  }
  for (auto& [cpu, place] : topology.cpus) {
    const auto siblings = read_cpu_list(root / "cpu" / fmt::format("cpu{}", cpu) / "topology" /
                                        "thread_siblings_list");
    if (siblings && !siblings->empty()) place.core = siblings->front();
  }
  topology.allowed = allowed;
  std::ranges::sort(topology.allowed, {}, [&](int cpu) {
    const CpuTopology::Place& place = topology.cpus.at(cpu);
    return std::tuple(place.node, place.core, cpu);
  });
  return topology;
}

ThreadPlan plan_threads(const ThreadRequest& request, const CpuTopology& topology) {
  const bool leave = request.cpu_bind == "none";
  if (!leave && request.cpu_bind != "auto") return plan_listed(request, topology);
  const int num_sharing = std::max(1, request.on_cpus.count);
  const auto num_allowed = static_cast<int>(topology.allowed.size());
  ThreadPlan plan(request.num_threads > 0 ? request.num_threads
                                          : std::max(1, num_allowed / num_sharing));
  plan.nodes = topology.nodes_of(topology.allowed);
  const bool has_all = request.takes_turns && plan.nodes.size() == 1 &&
                       int64_t{plan.num_threads} * (num_sharing + 1) > num_allowed;
  if (has_all) {
    const int64_t of_all = int64_t{plan.num_threads} * num_sharing;
    plan.num_threads = std::max(plan.num_threads, static_cast<int>(std::min<int64_t>(of_all, num_allowed)));
  }
  plan.crowded = int64_t{plan.num_threads} * (has_all ? 1 : num_sharing) > num_allowed;
  // Ranks that compute in step and fill their CPUs: the system may wake two of them on one CPU, all
  // wait for the second, and there is no CPU free to move out of another program's way.
  const bool fills = num_sharing > 1 && request.on_cpus.index < num_sharing &&
                     int64_t{plan.num_threads} * num_sharing == num_allowed;
  // The whole of a machine with one node: the system moves threads out of others' way.
  const bool nothing_to_gain =
      topology.allowed.size() == topology.cpus.size() && !topology.has_several_nodes() && !fills;
  const std::vector<int> share = share_of(topology.allowed, request.on_cpus);
  if (leave || nothing_to_gain || static_cast<size_t>(plan.num_threads) > share.size()) return plan;
  plan.cpus = spread(share, plan.num_threads, topology);
  plan.nodes = topology.nodes_of(plan.cpus);
  return plan;
}

}  // namespace outrider::ops::cpu
