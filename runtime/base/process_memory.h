// How much memory this process holds, as the system counts it. For logs, metrics and benchmarks;
// any thread.
#pragma once

#include <cstdint>

namespace outrider {

// Pages shared with other processes count in full. All 0 where the system does not say.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;  // the most it ever was
  int64_t file_bytes = 0;           // of resident_bytes: pages of mapped files, mostly code
};
ProcessMemory process_memory();

}  // namespace outrider
