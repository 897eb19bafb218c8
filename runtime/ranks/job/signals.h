// Signals as something to wait for. Blocked in every thread of every rank, so that SIGTERM can
// never tear a rank out of a collective; rank 0's front end asks for them.
#pragma once

#include <chrono>
#include <optional>

namespace outrider {

// Call before any thread is started.
void block_stop_signals();

// Asked to stop within the timeout: by SIGTERM, SIGINT, SIGHUP, or SIGUSR1, which mpirun passes on.
// How long this process has then: as long as it wants, or what mpirun leaves it. When mpirun itself
// is asked to stop, it sends its ranks SIGCONT at once, SIGTERM after odls_base_sigkill_timeout
// seconds (1 unless `--mca` says otherwise), and SIGKILL soon after.
std::optional<std::chrono::milliseconds> wait_stop_signal(std::chrono::milliseconds timeout);

// Ends the process as SIGTERM does where nobody blocks it.
[[noreturn]] void end_by_sigterm();

}  // namespace outrider
