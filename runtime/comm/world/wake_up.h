// Wakes a rank of this host that sleeps while it waits for messages: MPI has no wait that gives
// the core up, and sleeping in steps adds part of a step to every message. A bell is a datagram
// socket without a file; who posts a message rings it, one byte that says no more than "look". It
// may be rung without need, and a ring may be lost with its owner; so waits keep a time-out. Used
// on the ranks' threads.
#pragma once

#include <chrono>
#include <string>

namespace outrider {

class WakeUpSocket {
 public:
  // A rank's bell; without one (no such sockets here) name() is empty.
  WakeUpSocket();
  ~WakeUpSocket();
  WakeUpSocket(const WakeUpSocket&) = delete;
  WakeUpSocket& operator=(const WakeUpSocket&) = delete;

  // For others' ring(); unlike any other of this host, kNameBytes at most.
  const std::string& name() const { return name_; }
  static constexpr size_t kNameBytes = 64;

  // Rings another's bell; never waits. Nothing happens when there is none of that name.
  void ring(const std::string& name) const { send_to(name, kLook); }

  // Returns when the bell was rung since the last call, when the other descriptor (-1: none) has
  // something to read or is closed, or after that time.
  void wait(std::chrono::microseconds time, int descriptor) const;

  // For the test whether all peers reach it: a ring that is told from those for messages, which may
  // come at any time; and how many have come since the last look.
  void greet(const std::string& name) const { send_to(name, kGreeting); }
  int take_greetings() const;

 private:
  static constexpr char kLook = 1;
  static constexpr char kGreeting = 2;
  void send_to(const std::string& name, char ring) const;

  int socket_ = -1;
  std::string name_;
};

// The same for a single descriptor, without a bell.
void wait_readable(int descriptor, std::chrono::microseconds time);

}  // namespace outrider
