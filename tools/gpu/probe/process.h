// Other processes of this program: starting them, and ending them when their time is over. Host
// code only, and nothing of CUDA: whoever forks must not have touched the driver.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace outrider::gpu_probe {

struct StartOptions {
  std::vector<std::pair<std::string, std::string>> environment;  // added to this process's own
  std::string log_file;    // standard output and error go there; empty: where this process's go
  bool own_group = false;  // wait_for() then ends its descendants with it
};

// Runs this program again with the arguments given; it dies with the thread that calls this. Throws
// std::runtime_error when that fails.
pid_t start_self(const std::vector<std::string>& arguments, const StartOptions& options);

struct Ended {
  bool timed_out = false;
  int code = 0;  // exit code, or 128 + the signal that ended it
  double seconds = 0;
};

// Waits, and kills it when limit_s have passed.
Ended wait_for(pid_t process, double limit_s, bool own_group);

double monotonic_seconds();

// Whole messages through a pipe. False at the end of the stream or on an error.
bool write_all(int file, const void* data, size_t bytes);
bool read_all(int file, void* data, size_t bytes);

// The last lines of a text file, joined by " / "; empty when there is none.
std::string last_lines(const std::string& path, int count);

}  // namespace outrider::gpu_probe
