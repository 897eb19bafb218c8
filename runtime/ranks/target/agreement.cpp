// See agreement.h.
#include "runtime/ranks/target/agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {

void report_digest(World& world, uint64_t round, uint64_t digest) {
  WireWriter out;
  out.put(round);
  out.put(digest);
  world.post(0, out.take());
}

void check_agreement(World& world, const RankLayout& layout, uint64_t round, uint64_t digest) {
  std::vector<uint64_t> digests = {digest};
  for (int rank = 1; rank < layout.num_targets; ++rank) {
    const Bytes report = receive_soon(world, rank, layout.num_targets);
    WireReader in(report);
    const auto reported_round = in.get<uint64_t>();
    digests.push_back(in.get<uint64_t>());
    in.expect_end();
    if (reported_round != round) {
      throw Error(fmt::format("rank {} ({}) is at round {} while the coordinator is at round {}",
                              rank,
                              layout.name(rank),
                              reported_round,
                              round));
    }
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
