// Reads /proc/self/status; see process_memory.h.
#include "runtime/base/process_memory.h"

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
    memory.file_bytes += kilobytes_of(line, "RssFile:") * 1024;
  }
  return memory;
}

}  // namespace outrider
