// See signals.h.
#include "runtime/ranks/signals.h"

#include <pthread.h>
#include <signal.h>

namespace outrider {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR1);
  return set;
}

}  // namespace

void block_stop_signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool wait_stop_signal(std::chrono::milliseconds timeout) {
  const sigset_t set = stop_signals();
  const timespec time{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  return sigtimedwait(&set, nullptr, &time) > 0;
}

}  // namespace outrider
