// The spans of all ranks as one file in Chrome's trace event format, for chrome://tracing, Perfetto
// and `tools/plot.py rounds`: a process per rank, all on rank 0's clock, arrows between ranks, and
// one lane per request with its rounds. Written by rank 0 at the end of a job.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/telemetry/trace.h"

namespace outrider {

struct RankTrace {
  int rank = 0;
  std::string name;  // "target[1/2]"
  std::string host;
  int64_t clock_offset_ns = 0;  // what this rank's clock shows more than rank 0's
  uint64_t num_lost = 0;        // older events that had no room
  std::vector<TraceEvent> events;
};

// {"displayTimeUnit", "traceEvents": [...], "otherData"}: times in microseconds since the first
// event, ascending; spans of a rank nest.
std::string chrome_trace_text(const std::vector<RankTrace>& ranks);

}  // namespace outrider
