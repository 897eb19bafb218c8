// A sign of life on long work: how much of it is done and about how long the rest takes. On a
// terminal one line that is rewritten; otherwise a line about every 10 seconds. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace outrider {

class Progress {
 public:
  // what: "verify curve"; total: how many advances make the whole.
  Progress(std::string what, int64_t total, std::FILE* out = stderr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Also throws Error when a signal wants the program to stop.
  void advance(int64_t count = 1);

 private:
  void say();

  using Clock = std::chrono::steady_clock;
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  std::FILE* out_;
  bool is_terminal_;
  bool has_said_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = Clock::now();
};

// Runs all of them num_turns times; who comes first moves on by one each turn, so that none always
// profits or suffers from the one before it. Samples of one turn are pairs. progress may be null;
// it advances by one per turn.
void run_in_turns(int num_turns,
                  const std::vector<std::function<void()>>& variants,
                  Progress* progress = nullptr);

}  // namespace outrider
