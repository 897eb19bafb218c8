// Signals as something to wait for. Blocked in every thread of every rank, so that SIGTERM can
// never tear a rank out of a collective; rank 0's front end asks for them.
#pragma once

#include <chrono>

namespace outrider {

// Call before any thread is started.
void block_stop_signals();
// True when SIGTERM, SIGINT or SIGUSR1 (which mpirun forwards) arrived within the time.
bool wait_stop_signal(std::chrono::milliseconds timeout);

}  // namespace outrider
