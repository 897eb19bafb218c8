// See launcher.h.
#include "runtime/comm/world/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "runtime/base/log.h"

namespace outrider {
namespace {

// A shell rather than a fork: a copy of this process would keep its memory, which may be most of
// the machine's. $1: process, $2: when it started (a process number is used again), $3: quarters of
// a second, few so that a busy machine adds little. Fields of /proc/PID/stat behind the name: the
// first is the state, the 20th the start.
constexpr const char* kScript = R"(
lives() {
  { read -r stat < "/proc/$pid/stat"; } 2> /dev/null || return 1
  set -- ${stat##*) }
  [ "$1" != Z ] && [ "${20}" = "$start" ]
}
end_by() {
  n=$2
  while [ "$n" -gt 0 ]; do lives || exit 0; sleep 0.25; n=$((n - 1)); done
  kill -"$1" "$pid"
}
pid=$1 start=$2
end_by TERM "$3"
end_by KILL 3
)";

struct Launcher {
  pid_t pid = 0;
  std::string name;
  std::string start;
};

Launcher this_launcher() {
  Launcher launcher{.pid = getppid(), .name = {}, .start = {}};
  std::ifstream file(fmt::format("/proc/{}/stat", launcher.pid));
  std::string text;
  std::getline(file, text);
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return launcher;
  launcher.name = text.substr(open + 1, close - open - 1);
  size_t begin = close + 2;
  for (int field = 1; field < 20 && begin != 0; ++field) begin = text.find(' ', begin) + 1;
  launcher.start = text.substr(begin, text.find(' ', begin) - begin);
  return launcher;
}

bool is_open_mpis(const std::string& name) {
  // Those of a `prte` that outlives its jobs are others' too.
  const char* const job = std::getenv("PMIX_NAMESPACE");
  if (job != nullptr && std::strncmp(job, "prte-", 5) == 0) return false;
  for (const char* known : {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"}) {
    if (name.starts_with(known)) return true;
  }
  return false;
}

// In a session of its own, with no descriptor of ours: the launcher waits for the ends of its pipes
// and ends whole groups of processes.
int spawn_apart(char* const* arguments) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (int descriptor = 0; descriptor < 3; ++descriptor)
    posix_spawn_file_actions_addopen(&files, descriptor, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  char path[] = "PATH=/usr/local/bin:/usr/bin:/bin";
  char* const environment[] = {path, nullptr};
  pid_t pid = 0;
  const int problem = posix_spawn(&pid, "/bin/sh", &files, &attributes, arguments, environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return problem;
}

}  // namespace

void end_launcher_later(std::chrono::milliseconds time) {
  using Clock = std::chrono::steady_clock;
  static std::atomic<Clock::time_point> earliest{Clock::time_point::max()};
  const Launcher launcher = this_launcher();
  const auto end = Clock::now() + time;
  if (!is_open_mpis(launcher.name) || earliest.load() <= end) return;
  earliest = end;
  std::string words[] = {"sh",
                         "-c",
                         kScript,
                         "outrider: ends " + launcher.name,
                         std::to_string(launcher.pid),
                         launcher.start,
                         std::to_string(time.count() / 250)};
  char* arguments[std::size(words) + 1] = {};
  for (size_t i = 0; i < std::size(words); ++i) arguments[i] = words[i].data();
  if (const int problem = spawn_apart(arguments); problem != 0)
    log_warning("nobody will end {} if it stays: {}", launcher.name, std::strerror(problem));
}

}  // namespace outrider
