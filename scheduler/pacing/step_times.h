// The one model of step times: what a step takes by its rows and by the positions that they attend
// to, learned from probes at start and from the steps that happen. Plain values; no clock. One
// object for each thing whose steps are timed: the target with the draft idle and at work, the
// draft as rank 0 sees it, and the draft as it sees itself.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "scheduler/pacing/position_slopes.h"

namespace outrider {

struct StepLoad {
  int32_t num_rows = 0;
  int64_t kv_positions = 0;   // read: of each sequence its length
  int64_t row_positions = 0;  // attended to: of each row the positions before it
};

class StepTimes {
 public:
  // num_rows >= 1. What disturbs a step makes it longer, so that shorter ones count more.
  void add(const StepLoad& load, double seconds);
  // Before the first step, on a machine that does nothing else: the shortest of several steps.
  void add_probe(const StepLoad& load, double seconds);

  // 0 when nothing is known. Never falls with the rows. A number of rows that was seen less than
  // twice, or not for a while, counts as a little cheaper than its neighbours suggest: so it is
  // tried when it might pay, and found out. Nor is one that was seen when the machine was slower
  // than of late still thought to be that slow, where probes tell what it should take.
  double at(const StepLoad& load) const;
  // The same without that discount: what is most likely.
  double likely(const StepLoad& load) const;
  // at() for each number of rows from load.num_rows to most_rows; a further row attends to
  // positions_per_row.
  std::vector<double> range(const StepLoad& load,
                            int32_t most_rows,
                            double positions_per_row) const;

  bool empty() const { return buckets_.empty(); }
  // The most that were timed; 0 when nothing is known.
  double most_rows() const { return levels_.empty() ? 0 : levels_.back().rows; }
  // Seconds per position read, and per position attended to by a row.
  double kv_position_s() const { return slopes_.seconds()[0]; }
  double row_position_s() const { return slopes_.seconds()[1]; }

 private:
  struct Bucket {
    int64_t num_seen = 0;
    int64_t last_seen = 0;  // number of the addition
    // Averages.
    double rows = 0;
    double seconds = 0;
    std::array<double, 2> positions{};  // kv_positions, row_positions
    double seconds_in_all = 0;          // with whatever disturbed them
  };
  double age(const Bucket& bucket) const {
    return static_cast<double>(num_added_ - bucket.last_seen);
  }
  bool known(const Bucket& bucket) const;
  double probed(double num_rows) const;
  double without_positions(const Bucket& bucket) const;
  void level();
  // unseen: what the line between neighbours counts as.
  double guess(int32_t num_rows, double unseen) const;
  double of_rows(int32_t num_rows, double unseen) const;
  double estimate(const StepLoad& load, double unseen) const;

  // Neighbouring numbers of rows share a bucket, 8 to a doubling.
  std::map<int32_t, Bucket> buckets_;
  // The same as at() needs them, ascending: a round asks dozens of times for each addition.
  struct Level {
    int32_t key = 0;
    bool known = false;
    double rows = 0;
    double seconds = 0;  // without positions
  };
  std::vector<Level> levels_;
  int64_t num_added_ = 0;
  std::map<int32_t, double> probes_;  // seconds by rows
  double pace_ = 1;                   // steps of late by probes
  PositionSlopes slopes_;
};

}  // namespace outrider
