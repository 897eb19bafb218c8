// See agreement.h.
#include "runtime/ranks/target/agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {

namespace {

// This rank's and those below it.
std::vector<DigestReport> gather_reports(World& world,
                                         const RankLayout& layout,
                                         uint64_t round,
                                         uint64_t digest) {
  std::vector<DigestReport> reports = {{world.rank(), round, digest}};
  for (const int child : tree_children(world.rank(), layout.num_targets)) {
    const Bytes message = receive_soon(world, child, layout.num_targets);
    WireReader in(message);
    const auto below = in.get<std::vector<DigestReport>>();
    in.expect_end();
    reports.insert(reports.end(), below.begin(), below.end());
  }
  return reports;
}

}  // namespace

void post_down(World& world, const RankLayout& layout, const Bytes& message) {
  for (const int child : tree_children(world.rank(), layout.num_targets)) {
    world.post(child, message);
  }
}

void report_digest(World& world, const RankLayout& layout, uint64_t round, uint64_t digest) {
  const auto reports = gather_reports(world, layout, round, digest);
  world.post(tree_parent(world.rank()), wire_bytes(reports));
}

void check_agreement(World& world, const RankLayout& layout, uint64_t round, uint64_t digest) {
  std::vector<uint64_t> digests(static_cast<size_t>(layout.num_targets));
  for (const DigestReport& report : gather_reports(world, layout, round, digest)) {
    if (report.round != round) {
      throw Error(fmt::format("rank {} ({}) is at round {} while the coordinator is at round {}",
                              report.rank,
                              layout.name(static_cast<int>(report.rank)),
                              report.round,
                              round));
    }
    digests.at(static_cast<size_t>(report.rank)) = report.digest;
  }
  const std::string sentence = disagreement(layout, round, digests);
  if (!sentence.empty()) throw Error(sentence);
}

std::string disagreement(const RankLayout& layout,
                         uint64_t round,
                         std::span<const uint64_t> digests) {
  const auto votes_for = [&](uint64_t digest) {
    return 2 * std::count(digests.begin(), digests.end(), digest);
  };
  const auto num_ranks = static_cast<ptrdiff_t>(digests.size());
  if (votes_for(digests[0]) == 2 * num_ranks) return {};
  const bool majority = std::any_of(digests.begin(), digests.end(), [&](uint64_t digest) {
    return votes_for(digest) > num_ranks;
  });
  std::string ranks;
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (majority && votes_for(digests[rank]) > num_ranks) continue;
    if (!ranks.empty()) ranks += ", ";
    ranks += fmt::format("rank {} ({}", rank, layout.name(static_cast<int>(rank)));
    ranks += majority ? ")" : fmt::format(", digest {:016x})", digests[rank]);
  }
  if (majority) return fmt::format("round {} was decided differently by {}", round, ranks);
  return fmt::format("round {} was decided differently by the target ranks: {}", round, ranks);
}

}  // namespace outrider
