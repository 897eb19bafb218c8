// See ready_barrier.h.
#include "runtime/ranks/startup/ready_barrier.h"

#include <algorithm>
#include <map>

#include "runtime/base/log.h"
#include "runtime/ranks/startup/rendezvous.h"

namespace outrider {
namespace {

struct Report {
  std::string host;
  std::string problem;
  int32_t num_threads = 0;
  int32_t num_kv_blocks = 0;
  bool translates = false;
  bool shares_gpu = false;
};

Bytes encode_report(const Report& report) {
  WireWriter out;
  out.put_string(report.host);
  out.put_string(report.problem);
  out.put(report.num_threads);
  out.put(report.num_kv_blocks);
  out.put_bool(report.translates);
  out.put_bool(report.shares_gpu);
  return out.take();
}

Report decode_report(const Bytes& bytes) {
  WireReader in(bytes);
  Report report;
  report.host = in.get_string();
  report.problem = in.get_string();
  report.num_threads = in.get<int32_t>();
  report.num_kv_blocks = in.get<int32_t>();
  report.translates = in.get_bool();
  report.shares_gpu = in.get_bool();
  return report;
}

// The sentence all ranks stop with; empty when all are ready.
std::string readiness_error(const RankLayout& layout,
                            const std::map<int, Report>& reports,
                            const std::string& missing) {
  for (const auto& [rank, report] : reports) {
    if (!report.problem.empty()) return named_problem(layout, rank, report.host, report.problem);
  }
  return missing.empty() ? "" : "no report from " + missing + " in time";
}

// What the targets agreed on among themselves says who it was; what only some of them say does not.
std::string together(const RankLayout& layout,
                     const std::map<int, Report>& reports,
                     const std::string& missing) {
  const std::string& first = reports.at(0).problem;
  const bool all_say_it = std::all_of(reports.begin(), reports.end(), [&](const auto& one) {
    return one.first >= layout.num_targets || one.second.problem == first;
  });
  if (all_say_it && !first.empty()) return first;
  for (const auto& [rank, report] : reports) {
    if (!report.problem.empty()) return named_problem(layout, rank, report.host, report.problem);
  }
  return missing.empty() ? "" : "no report from " + missing + " in time";
}

Bytes encode_sentence(const std::string& sentence) {
  WireWriter out;
  out.put_string(sentence);
  return out.take();
}

void stop_for(const Bytes& answer) {
  const std::string sentence = WireReader(answer).get_string();
  if (!sentence.empty()) throw Error(sentence);
}

}  // namespace

Topology ready_barrier(World& world,
                       const RankLayout& layout,
                       const Readiness& readiness,
                       double timeout_s) {
  Topology topology;
  const auto judge = [&](const Reports& reports) {
    std::map<int, Report> decoded;
    for (const auto& [rank, bytes] : reports) decoded[rank] = decode_report(bytes);
    const std::string sentence = readiness_error(layout, decoded, missing_ranks(layout, reports));
    for (const auto& [rank, report] : decoded) {
      if (!sentence.empty()) break;
      if (rank == 0 || (report.num_kv_blocks > 0 && report.num_kv_blocks < topology.num_kv_blocks))
        topology.num_kv_blocks = report.num_kv_blocks;
      if (layout.role(rank) == Role::kDraft) {
        topology.draft_translates = report.translates;
        topology.draft_shares_gpu = report.shares_gpu;
      }
      log_info("rank {} ready: {} on {}", rank, layout.name(rank), report.host);
      topology.ranks.push_back({rank, layout.name(rank), report.host, report.num_threads});
    }
    return encode_sentence(sentence);
  };
  const Report own{.host = world.host(),
                   .problem = readiness.problem,
                   .num_threads = readiness.num_threads,
                   .num_kv_blocks = readiness.num_kv_blocks,
                   .translates = readiness.translates,
                   .shares_gpu = readiness.shares_gpu};
  stop_for(rendezvous(world, layout, encode_report(own), judge, timeout_s));
  if (world.rank() == 0) topology.library = world.library();
  return topology;
}

void checked_barrier(World& world,
                     const RankLayout& layout,
                     const std::string& problem,
                     double timeout_s) {
  const auto judge = [&](const Reports& reports) {
    std::map<int, Report> decoded;
    for (const auto& [rank, bytes] : reports) decoded[rank] = decode_report(bytes);
    return encode_sentence(together(layout, decoded, missing_ranks(layout, reports)));
  };
  const Report own{.host = world.host(), .problem = problem};
  stop_for(rendezvous(world, layout, encode_report(own), judge, timeout_s));
}

}  // namespace outrider
