// See signals.h.
#include "runtime/ranks/job/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/comm/world/launcher.h"
#include "runtime/comm/world/world.h"

namespace outrider {
namespace {

using std::chrono::milliseconds;

// But those that whoever started this process wants ignored, as nohup does.
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCONT}) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

constexpr milliseconds kForLauncher{5000};

// From mpirun's SIGCONT to its SIGTERM, less what the end of the ranks takes.
milliseconds time_until_sigterm() {
  constexpr milliseconds kToEnd{500};
  const char* given = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
  const milliseconds timeout{1000 * std::clamp(given != nullptr ? std::atoi(given) : 1, 0, 86400)};
  return std::max(timeout - kToEnd, milliseconds{0});
}

}  // namespace

void block_stop_signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

std::optional<milliseconds> wait_stop_signal(milliseconds timeout) {
  const sigset_t set = stop_signals();
  const timespec time{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  siginfo_t info{};
  const int signal = sigtimedwait(&set, &info, &time);
  const bool is_from_mpirun = launched_by_mpi() && info.si_pid == getppid();
  if (signal <= 0 || (signal == SIGCONT && !is_from_mpirun)) return std::nullopt;
  if (signal == SIGUSR1 || !is_from_mpirun) return milliseconds::max();
  // When its ranks have ended it may wait for a host that is cut off, and nobody is left to see it.
  const milliseconds grace = signal == SIGCONT ? time_until_sigterm() : milliseconds{0};
  end_launcher_later(grace + kForLauncher);
  return grace;
}

void end_by_sigterm() {
  signal(SIGTERM, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(SIGTERM);
  std::_Exit(128 + SIGTERM);
}

}  // namespace outrider
