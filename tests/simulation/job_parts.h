// What both forms of the simulation have in common: the coordinator of a setting, its loop, and
// what must hold of time, memory and books.
#pragma once

#include <cstdint>

#include "http/api/serving_metrics.h"
#include "runtime/ranks/coordinator/coordinator.h"
#include "runtime/ranks/draft/engine.h"
#include "runtime/ranks/messages/round_wire.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/simulation.h"

namespace outrider::test {

// No wait without an end (I10), no wait beyond the deadline, no memory without a bound.
class RoundLimits {
 public:
  RoundLimits(const Setting& setting, Witness& witness) : setting_(setting), witness_(witness) {}

  // In every wait. Throws Error when too long nothing has happened.
  void see_time() const;
  // A round is over, or there is nothing to do. Throws Error when there were too many.
  void see_progress(int64_t num_rows_needed);
  void see_waits(Coordinator& coordinator);
  void see_unsent(size_t num_bytes);
  void see_model(const ToyModel& model);
  uint64_t num_waits() const { return num_waits_; }

 private:
  const Setting& setting_;
  Witness& witness_;
  JobClock::time_point last_progress_ = JobClock::now();
  uint64_t num_waits_ = 0;
};

// Which of the draft's lives the coordinator takes frames of: the latest that it has heard of.
class KnownLife {
 public:
  // Whether the frame is a reply that it must take for whole.
  bool takes(const Bytes& bytes, Frame* frame);

 private:
  uint32_t epoch_ = kFirstDraftEpoch;
};

Coordinator::Parts coordinator_parts(const Setting& setting,
                                     World& world,
                                     TargetRank& target,
                                     ServingMetrics& metrics);
// Until the job is over; an error ends it and is a fault. True when it ended in order.
bool run_coordinator_loop(Coordinator& coordinator, Witness& witness);
// After an orderly end.
void check_books(const ServingMetrics& metrics, Witness& witness);
void add_counts(const Witness& witness, const Clients& clients, SimulationResult* result);

}  // namespace outrider::test
