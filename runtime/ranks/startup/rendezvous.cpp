// See rendezvous.h.
#include "runtime/ranks/startup/rendezvous.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"

namespace outrider {
namespace {

constexpr double kReminderIntervalS = 5;

Reports collect(World& world, const RankLayout& layout, Bytes own, double timeout_s) {
  Reports reports;
  reports[0] = std::move(own);
  Backoff backoff;
  double next_reminder_s = kReminderIntervalS;
  while (static_cast<int>(reports.size()) < layout.num_ranks() && backoff.waited_s() < timeout_s) {
    for (int rank = 1; rank < layout.num_ranks(); ++rank) {
      if (reports.contains(rank)) continue;
      if (auto bytes = world.poll(rank)) reports[rank] = std::move(*bytes);
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

std::string missing_ranks(const RankLayout& layout, const Reports& reports) {
  std::string text;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    if (reports.contains(rank)) continue;
    text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, layout.name(rank));
  }
  return text;
}

std::string named_problem(const RankLayout& layout,
                          int rank,
                          const std::string& host,
                          const std::string& problem) {
  if (layout.num_ranks() == 1) return problem;
  return fmt::format("rank {} ({} on {}): {}", rank, layout.name(rank), host, problem);
}

Bytes rendezvous(World& world,
                 const RankLayout& layout,
                 Bytes report,
                 const std::function<Bytes(const Reports&)>& judge,
                 double timeout_s) {
  if (world.rank() != 0) {
    world.post(0, std::move(report));
    return receive(world, 0, 1);
  }
  const Reports reports = collect(world, layout, std::move(report), timeout_s);
  Bytes answer = judge(reports);
  for (const auto& [rank, ignored] : reports) {
    if (rank > 0) world.post(rank, answer);
  }
  return answer;
}

void rendezvous_or_stop(World& world,
                        const RankLayout& layout,
                        Bytes report,
                        const std::function<std::string(const Reports&)>& judge,
                        double timeout_s) {
  const auto answer_of = [&](const Reports& reports) { return wire_bytes(judge(reports)); };
  const Bytes answer = rendezvous(world, layout, std::move(report), answer_of, timeout_s);
  const auto sentence = WireReader(answer).get<std::string>();
  if (!sentence.empty()) throw Error(sentence);
}

}  // namespace outrider
