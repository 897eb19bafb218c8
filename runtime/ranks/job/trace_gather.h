// --trace on all ranks: each records what its thread does, rank 0 learns at the start how their
// clocks differ and gathers everything at the end. The gathering waits for nobody for long: a rank
// that is gone is left out with a warning. Called from job/, on each rank's own thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/files/new_file.h"
#include "runtime/base/telemetry/trace_file.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {

class JobTrace {
 public:
  // path: of the file that rank 0 writes; empty = nothing is recorded and all of this does nothing.
  explicit JobTrace(const std::string& path);
  bool on() const { return ring_ != nullptr; }
  // For ThreadTrace; null when off.
  TraceRing* ring() const { return ring_.get(); }

  // Rank 0, before the ready barrier: begins the file. Throws Error when that cannot be.
  void open_file();

  // Right after the ready barrier. Rank 0 asks every other rank for its time, again and again, and
  // keeps the answer that came fastest; the others answer.
  void compare_clocks(World& world, const RankLayout& layout);

  // After the rank's last round. The others hand over what they recorded (the draft's engine
  // through its rank), rank 0 collects and writes the file. Nothing here throws.
  void hand_over(World& world) const;
  void gather(World& world, const RankLayout& layout, const Topology& topology);

 private:
  const std::string path_;
  std::unique_ptr<TraceRing> ring_;
  std::optional<NewFile> file_;
  std::map<int, int64_t> clock_offsets_ns_;  // rank 0's
};

}  // namespace outrider
