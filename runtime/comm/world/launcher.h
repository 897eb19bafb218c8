// The launcher that started this rank: mpirun, or its daemon on another host. When a job's ranks
// have ended it may wait for ever for a host that is cut off, and nobody is left to end it.
#pragma once

#include <chrono>

namespace outrider {

// Leaves a small process behind that ends the launcher, if it then still lives: by SIGTERM after
// that time, by SIGKILL 0.75 s later. Does nothing where this process was started by anything but
// Open MPI's own launcher (Slurm's is left alone), or where it was called for an earlier time. Any
// thread.
void end_launcher_later(std::chrono::milliseconds time);

}  // namespace outrider
