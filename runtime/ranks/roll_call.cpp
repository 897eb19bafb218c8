// See roll_call.h.
#include "runtime/ranks/roll_call.h"

#include <algorithm>
#include <map>

#include "runtime/base/log.h"
#include "runtime/ranks/muster.h"

namespace outrider {
namespace {

struct Report {
  std::string host;
  std::string problem;
  std::vector<std::string> settings;
  int32_t num_threads = 0;
  int32_t num_kv_blocks = 0;
};

Bytes encode_report(const Report& report) {
  WireWriter out;
  out.put_string(report.host);
  out.put_string(report.problem);
  out.put_list(report.settings,
               [](WireWriter& w, const std::string& setting) { w.put_string(setting); });
  out.put(report.num_threads);
  out.put(report.num_kv_blocks);
  return out.take();
}

Report decode_report(const Bytes& bytes) {
  WireReader in(bytes);
  Report report;
  report.host = in.get_string();
  report.problem = in.get_string();
  report.settings = in.get_list<std::string>([](WireReader& r) { return r.get_string(); });
  report.num_threads = in.get<int32_t>();
  report.num_kv_blocks = in.get<int32_t>();
  return report;
}

// How this rank was told something else than rank 0; empty when it was not, or gives no settings.
std::string difference(const Report& report, const Report& first) {
  if (report.settings.empty()) return "";
  for (size_t i = 0; i < std::max(report.settings.size(), first.settings.size()); ++i) {
    const std::string own = i < report.settings.size() ? report.settings[i] : "nothing";
    const std::string expected = i < first.settings.size() ? first.settings[i] : "nothing";
    if (own == expected) continue;
    // What `auto` came to; the other settings were given.
    const char* remedy = own.starts_with("activation_dtype ") ? ": set it for all ranks" : "";
    return fmt::format("it has {} where rank 0 has {}{}", own, expected, remedy);
  }
  return "";
}

// The sentence all ranks stop with; empty when all are ready.
std::string verdict(const RankLayout& layout,
                    const std::map<int, Report>& reports,
                    const std::string& missing) {
  for (const auto& [rank, report] : reports) {
    if (!report.problem.empty()) return named_problem(layout, rank, report.host, report.problem);
  }
  for (const auto& [rank, report] : reports) {
    const std::string other = difference(report, reports.at(0));
    if (!other.empty()) return named_problem(layout, rank, report.host, other);
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

Topology roll_call(World& world,
                   const RankLayout& layout,
                   const Readiness& readiness,
                   double timeout_s) {
  Topology topology;
  const auto judge = [&](const Reports& reports) {
    std::map<int, Report> decoded;
    for (const auto& [rank, bytes] : reports) decoded[rank] = decode_report(bytes);
    const std::string sentence = verdict(layout, decoded, missing_ranks(layout, reports));
    for (const auto& [rank, report] : decoded) {
      if (!sentence.empty()) break;
      if (rank == 0 || (report.num_kv_blocks > 0 && report.num_kv_blocks < topology.num_kv_blocks))
        topology.num_kv_blocks = report.num_kv_blocks;
      log_info("rank {} ready: {} on {}", rank, layout.name(rank), report.host);
      topology.ranks.push_back({rank, layout.name(rank), report.host, report.num_threads});
    }
    return encode_sentence(sentence);
  };
  const Report own{.host = world.host(),
                   .problem = readiness.problem,
                   .settings = readiness.settings,
                   .num_threads = readiness.num_threads,
                   .num_kv_blocks = readiness.num_kv_blocks};
  stop_for(muster(world, layout, encode_report(own), judge, timeout_s));
  if (world.rank() == 0) topology.library = world.library();
  return topology;
}

void go_on_together(World& world,
                    const RankLayout& layout,
                    const std::string& problem,
                    double timeout_s) {
  const auto judge = [&](const Reports& reports) {
    std::map<int, Report> decoded;
    for (const auto& [rank, bytes] : reports) decoded[rank] = decode_report(bytes);
    return encode_sentence(together(layout, decoded, missing_ranks(layout, reports)));
  };
  const Report own{.host = world.host(), .problem = problem, .settings = {}};
  stop_for(muster(world, layout, encode_report(own), judge, timeout_s));
}

}  // namespace outrider
