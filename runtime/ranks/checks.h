// Extra looks at the program's own books, for tests and drills. Rank 0 and the draft read them at
// start from OUTRIDER_CHECKS, a list with commas of
//   books    the coordinator checks its KV accounting after every round, not only when it is idle
//            (always so in debug builds)
//   poison   KV blocks that nobody holds are filled with NaN on every target rank (and on the
//            draft, those it frees), so that whoever reads stale KV is noticed
// BookCheck is the coordinator's, on the round's thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/telemetry/metrics.h"

namespace outrider {

struct Checks {
  static constexpr const char* kVariable = "OUTRIDER_CHECKS";

  bool books = false;
  bool poison = false;

  // Throws Error with one sentence for a word that is none of the above.
  static Checks parse(std::string_view text);
  static Checks from_environment();
};

// Every KV block is free or owned, as often as it says: looked at whenever the coordinator has
// nothing to do, and with Checks::books after every round. A fault is counted, said once, and ends
// the process in debug builds and with Checks::books.
class BookCheck {
 public:
  // look: Planner::fault(), empty when the books are right.
  BookCheck(const Checks& checks, Counter& faults, std::function<std::string()> look);

  void after_round();
  void when_idle();

 private:
  void check();

  const std::function<std::string()> look_;
  const bool is_strict_;   // looks after each round, and a fault ends the process
  bool was_idle_ = false;  // looked at since the last round
  bool has_spoken_ = false;
  Counter& faults_;
};

}  // namespace outrider
