// See ready_barrier.h.
#include "runtime/ranks/startup/ready_barrier.h"

#include <algorithm>
#include <map>

#include "runtime/base/log.h"
#include "runtime/ranks/startup/rendezvous.h"

namespace outrider {
namespace {

struct Report : Readiness {
  std::string host;
};

Bytes encode_report(const World& world, const Readiness& readiness) {
  WireWriter out;
  put_readiness(readiness, &out);
  out.put_string(world.host());
  return out.take();
}

Report decode_report(const Bytes& bytes) {
  WireReader in(bytes);
  Report report{get_readiness(in), {}};
  report.host = in.get_string();
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
  return all_say_it && !first.empty() ? first : readiness_error(layout, reports, missing);
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

void put_readiness(const Readiness& readiness, WireWriter* out) {
  out->put_string(readiness.problem);
  out->put(readiness.num_threads);
  out->put(readiness.num_kv_blocks);
  out->put_bool(readiness.translates);
  out->put_bool(readiness.shares_gpu);
}

Readiness get_readiness(WireReader& in) {
  Readiness readiness{.problem = in.get_string()};
  readiness.num_threads = in.get<int32_t>();
  readiness.num_kv_blocks = in.get<int32_t>();
  readiness.translates = in.get_bool();
  readiness.shares_gpu = in.get_bool();
  return readiness;
}

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
  stop_for(rendezvous(world, layout, encode_report(world, readiness), judge, timeout_s));
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
  const Bytes own = encode_report(world, {.problem = problem});
  stop_for(rendezvous(world, layout, own, judge, timeout_s));
}

}  // namespace outrider
