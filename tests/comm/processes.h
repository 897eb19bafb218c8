// Ranks that are processes: the running test starts its own binary once per rank, for this test
// alone, and there the test's call of run_in_processes() is the rank. So nothing is forked from a
// process that has threads or an open GPU, and there need be no MPI launcher.
//
//   TEST(Sums, OfProcesses) {
//     expect_fine(run_in_processes(2, 60, [](SocketWorld& world) { ...; return std::string(); }));
//   }
//
// A test calls it once, and before anything that the ranks need not do, too: they come to it by the
// same way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/comm/socket_world.h"

namespace outrider::test {

// How a rank's process ended, and what it left.
struct EndedRank {
  int exit_code = -1;    // -1: by a signal. 0: body returned; 1: it threw; 2: a check of it failed
  int signal = 0;        // 0: none
  bool is_late = false;  // it was ended when the time was up
  double ended_s = 0;    // after the start
  std::string answer;    // what body returned
  std::string error;     // what it threw
  std::string output;    // standard output and error
};

// Returns when all have ended, by rank; what still runs after limit_s is ended. Throws Error when
// there are no processes to be had.
using RankBody = std::function<std::string(SocketWorld&)>;
std::vector<EndedRank> run_in_processes(int num_ranks, double limit_s, const RankBody& body);

// Fails the test, with what they said, for ranks that did not come to the end of their body.
void expect_fine(const std::vector<EndedRank>& ranks);

// Ends this process by SIGKILL as soon as SocketWorld::board().count has become so many, while its
// other threads go on with what they do.
void die_at_count(SocketWorld& world, uint32_t count);

}  // namespace outrider::test
