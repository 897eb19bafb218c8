// fork and exec of this very program, with a deadline.
#include "tools/gpu/probe/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace outrider::gpu_probe {
namespace {

[[noreturn]] void run_child(std::vector<char*>& arguments,
                            const StartOptions& options,
                            pid_t parent) {
  // A group of its own is not reached by who ends the parent's.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) raise(SIGKILL);  // it has ended already
  if (options.own_group) setpgid(0, 0);
  for (const auto& [key, value] : options.environment) {
    setenv(key.c_str(), value.c_str(), 1);
  }
  if (!options.log_file.empty()) {
    const int file = open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0) {
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
    }
  }
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

}  // namespace

pid_t start_self(const std::vector<std::string>& arguments, const StartOptions& options) {
  std::vector<std::string> texts{"gpu_probe"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) {
    throw std::runtime_error(std::string("cannot start another process: ") + std::strerror(errno));
  }
  if (process == 0) {
    run_child(pointers, options, parent);
  }
  return process;
}

Ended wait_for(pid_t process, double limit_s, bool own_group) {
  const double start = monotonic_seconds();
  Ended ended;
  int status = 0;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (monotonic_seconds() - start > limit_s) {
      ended.timed_out = true;
      kill(own_group ? -process : process, SIGKILL);
      waitpid(process, &status, 0);
      break;
    }
    poll(nullptr, 0, 5);
  }
  if (own_group) {
    kill(-process, SIGKILL);  // whoever it left behind
  }
  ended.seconds = monotonic_seconds() - start;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool write_all(int file, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(file, next, bytes);
    if (done <= 0) {
      return false;
    }
    next += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

bool read_all(int file, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = read(file, next, bytes);
    if (done <= 0) {
      return false;
    }
    next += done;
    bytes -= static_cast<size_t>(done);
  }
  return true;
}

std::string last_lines(const std::string& path, int count) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  std::string text;
  const size_t first =
      lines.size() > static_cast<size_t>(count) ? lines.size() - static_cast<size_t>(count) : 0;
  for (size_t i = first; i < lines.size(); ++i) {
    text += (text.empty() ? "" : " / ") + lines[i];
  }
  return text;
}

}  // namespace outrider::gpu_probe
