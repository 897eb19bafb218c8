// All ranks tell rank 0 something at start, and hear the same answer: the ready barrier and what
// comes before and after it stand on this.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "runtime/comm/world/world.h"
#include "runtime/ranks/roles.h"

namespace outrider {

// What came, by rank; the ranks that are missing did not report in time.
using Reports = std::map<int, Bytes>;

// judge makes the answer from the reports, on rank 0. Every rank of the layout calls it and gets
// the answer. Rank 0 logs every few seconds whom it waits for. Throws Error when a rank is known to
// be gone.
Bytes rendezvous(World& world,
                 const RankLayout& layout,
                 Bytes report,
                 const std::function<Bytes(const Reports&)>& judge,
                 double timeout_s);

// The same where the answer is the sentence that all ranks stop with, empty when they may go on:
// throws it as an Error on all of them.
void rendezvous_or_stop(World& world,
                        const RankLayout& layout,
                        Bytes report,
                        const std::function<std::string(const Reports&)>& judge,
                        double timeout_s);

template <typename Report>
std::map<int, Report> decoded(const Reports& reports) {
  std::map<int, Report> by_rank;
  for (const auto& [rank, bytes] : reports) by_rank[rank] = WireReader(bytes).get<Report>();
  return by_rank;
}

// "rank 2 (target[2/4]), rank 4 (draft)"; empty when none is missing.
std::string missing_ranks(const RankLayout& layout, const Reports& reports);

// How a rank's problem is told to the others; a rank that is alone needs no name.
std::string named_problem(const RankLayout& layout,
                          int rank,
                          const std::string& host,
                          const std::string& problem);

}  // namespace outrider
