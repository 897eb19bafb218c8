// How much memory this process holds, as the system counts it. For logs, metrics and benchmarks;
// any thread.
#pragma once

#include <cstdint>
#include <string>

namespace outrider {

// Pages shared with other processes count in full. All 0 where the system does not say.
struct ProcessMemory {
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;  // the most it ever was
};
ProcessMemory process_memory();

// Of the private memory: what lies in transparent huge pages. The system counts all pages for it,
// so not to be asked often. 0 where it does not say.
int64_t huge_page_bytes();
// "always", "madvise" or "never"; empty where the system does not say.
std::string huge_page_mode();

}  // namespace outrider
