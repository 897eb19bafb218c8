// What a group between GPUs does when it broke off: whoever is gone is mostly known a moment later,
// with a name that says more than the GPU can.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace outrider {

// Throws what check_alive throws within half a second; else returns. check_alive may be empty.
inline void throw_name_of_dead(const std::function<void()>& check_alive) {
  constexpr std::chrono::milliseconds kTimeForName{500};
  if (!check_alive) return;
  const auto end = std::chrono::steady_clock::now() + kTimeForName;
  while (std::chrono::steady_clock::now() < end) {
    check_alive();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace outrider
