// See ready_barrier.h.
#include "runtime/ranks/startup/ready_barrier.h"

#include <algorithm>
#include <map>

#include "runtime/base/log.h"
#include "runtime/ranks/startup/rendezvous.h"

namespace outrider {
namespace {

Bytes report_of(const World& world, Readiness readiness) {
  readiness.host = world.host();
  return wire_bytes(readiness);
}

// The sentence all ranks stop with; empty when all are ready.
std::string readiness_error(const RankLayout& layout,
                            const std::map<int, Readiness>& reports,
                            const std::string& missing) {
  for (const auto& [rank, report] : reports) {
    if (!report.problem.empty()) return named_problem(layout, rank, report.host, report.problem);
  }
  return missing.empty() ? "" : "no report from " + missing + " in time";
}

// What the targets agreed on among themselves says who it was; what only some of them say does not.
std::string together(const RankLayout& layout,
                     const std::map<int, Readiness>& reports,
                     const std::string& missing) {
  const std::string& first = reports.at(0).problem;
  const bool all_say_it = std::all_of(reports.begin(), reports.end(), [&](const auto& one) {
    return one.first >= layout.num_targets || one.second.problem == first;
  });
  return all_say_it && !first.empty() ? first : readiness_error(layout, reports, missing);
}

}  // namespace

Topology ready_barrier(World& world,
                       const RankLayout& layout,
                       const Readiness& readiness,
                       double timeout_s) {
  Topology topology;
  const auto judge = [&](const Reports& reports) {
    const auto by_rank = decoded<Readiness>(reports);
    const std::string sentence = readiness_error(layout, by_rank, missing_ranks(layout, reports));
    for (const auto& [rank, report] : by_rank) {
      if (!sentence.empty()) break;
      if (rank == 0 || (report.num_kv_blocks > 0 && report.num_kv_blocks < topology.num_kv_blocks))
        topology.num_kv_blocks = report.num_kv_blocks;
      if (layout.role(rank) == Role::kDraft) {
        topology.draft_translates = report.translates;
        topology.draft_shares_gpu = report.shares_gpu;
      }
      log_info("rank {} ready: {} on {}", rank, layout.name(rank), report.host);
      topology.ranks.push_back(
          {rank, layout.name(rank), report.host, report.num_threads, report.device});
    }
    return sentence;
  };
  rendezvous_or_stop(world, layout, report_of(world, readiness), judge, timeout_s);
  if (world.rank() == 0) topology.library = world.library();
  return topology;
}

void checked_barrier(World& world,
                     const RankLayout& layout,
                     const std::string& problem,
                     double timeout_s) {
  const auto judge = [&](const Reports& reports) {
    return together(layout, decoded<Readiness>(reports), missing_ranks(layout, reports));
  };
  rendezvous_or_stop(world, layout, report_of(world, {.problem = problem}), judge, timeout_s);
}

}  // namespace outrider
