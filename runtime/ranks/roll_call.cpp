// See roll_call.h.
#include "runtime/ranks/roll_call.h"

#include <map>

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"

namespace outrider {
namespace {

constexpr double kReminderIntervalS = 5;

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

std::string missing_ranks(const RankLayout& layout, const std::map<int, Report>& reports) {
  std::string text;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    if (reports.contains(rank)) continue;
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, layout.name(rank));
  }
  return text;
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
std::string verdict(const RankLayout& layout, const std::map<int, Report>& reports) {
  const auto named = [&](int rank, const Report& report, const std::string& problem) {
    if (layout.num_ranks() == 1) return problem;
    return fmt::format("rank {} ({} on {}): {}", rank, layout.name(rank), report.host, problem);
  };
  for (const auto& [rank, report] : reports) {
    if (!report.problem.empty()) return named(rank, report, report.problem);
  }
  for (const auto& [rank, report] : reports) {
    const std::string other = difference(report, reports.at(0));
    if (!other.empty()) return named(rank, report, other);
  }
  const std::string missing = missing_ranks(layout, reports);
  return missing.empty() ? "" : "no report from " + missing + " in time";
}

std::map<int, Report> collect(World& world,
                              const RankLayout& layout,
                              const Report& own,
                              double timeout_s) {
  std::map<int, Report> reports{{0, own}};
  Backoff backoff;
  double next_reminder_s = kReminderIntervalS;
  while (static_cast<int>(reports.size()) < layout.num_ranks() && backoff.waited_s() < timeout_s) {
    for (int rank = 1; rank < layout.num_ranks(); ++rank) {
      if (reports.contains(rank)) continue;
      if (auto bytes = world.poll(rank)) reports[rank] = decode_report(*bytes);
    }
    if (backoff.should_check()) world.check_alive(layout.num_ranks());
    if (backoff.waited_s() > next_reminder_s) {
      log_info("waiting for {}", missing_ranks(layout, reports));
      next_reminder_s += kReminderIntervalS;
    }
    world.pause(backoff);
  }
  return reports;
}

}  // namespace

Topology roll_call(World& world,
                   const RankLayout& layout,
                   const Readiness& readiness,
                   double timeout_s) {
  const Report own{.host = world.host(),
                   .problem = readiness.problem,
                   .settings = readiness.settings,
                   .num_threads = readiness.num_threads,
                   .num_kv_blocks = readiness.num_kv_blocks};
  Topology topology;
  std::string sentence;
  if (world.rank() == 0) {
    const std::map<int, Report> reports = collect(world, layout, own, timeout_s);
    sentence = verdict(layout, reports);
    for (const auto& [rank, report] : reports) {
      if (rank > 0) world.post(rank, encode_report({.problem = sentence}));
      if (!sentence.empty()) continue;
      if (rank == 0 || (report.num_kv_blocks > 0 && report.num_kv_blocks < topology.num_kv_blocks))
        topology.num_kv_blocks = report.num_kv_blocks;
      log_info("rank {} ready: {} on {}", rank, layout.name(rank), report.host);
      topology.ranks.push_back({rank, layout.name(rank), report.host, report.num_threads});
    }
  } else {
    world.post(0, encode_report(own));
    sentence = decode_report(receive(world, 0, 1)).problem;
  }
  if (!sentence.empty()) throw Error(sentence);
  if (world.rank() == 0) topology.library = world.library();
  return topology;
}

}  // namespace outrider
