// Reads /proc/self and /sys; see process_memory.h.
#include "runtime/base/telemetry/process_memory.h"

#include <charconv>
#include <fstream>
#include <string>

namespace outrider {
namespace {

// "VmRSS:	    1234 kB" with key "VmRSS:"; 0 for any other line.
int64_t kilobytes_of(const std::string& line, const std::string& key) {
  if (!line.starts_with(key)) return 0;
  const size_t digit = line.find_first_of("0123456789", key.size());
  int64_t value = 0;
  if (digit != std::string::npos) {
    std::from_chars(line.data() + digit, line.data() + line.size(), value);
  }
  return value;
}

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    memory.resident_bytes += kilobytes_of(line, "VmRSS:") * 1024;
    memory.peak_resident_bytes += kilobytes_of(line, "VmHWM:") * 1024;
  }
  return memory;
}

int64_t huge_page_bytes() {
  std::ifstream sums("/proc/self/smaps_rollup");
  int64_t bytes = 0;
  for (std::string line; std::getline(sums, line);) {
    bytes += kilobytes_of(line, "AnonHugePages:") * 1024;
  }
  return bytes;
}

std::string huge_page_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;  // "always [madvise] never"
  std::getline(file, modes);
  const size_t begin = modes.find('[');
  const size_t end = modes.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return modes.substr(begin + 1, end - begin - 1);
}

}  // namespace outrider
