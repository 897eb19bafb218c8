// Which host this process runs on, as members of a group compare it: containers of one machine are
// on one host.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <string>

namespace outrider {

using HostId = std::array<char, 40>;

inline HostId this_host() {
  HostId host{};
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  id.copy(host.data(), host.size() - 1);
  return host;
}

// Names a set of process ids: those of two containers of one machine mean nothing to each other.
inline uint64_t this_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace outrider
