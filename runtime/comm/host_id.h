// Which host this process runs on, as members of a group compare it: containers of one machine are
// on one host.
#pragma once

#include <array>
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

}  // namespace outrider
