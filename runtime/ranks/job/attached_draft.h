// A draft outside the job (`outrider draft`): attaches over TCP, serves for as long as it is let,
// and comes back by itself when the connection is lost or the job has ended. One process, without
// MPI; the calling thread does all of it.
#pragma once

#include <functional>

#include "runtime/base/settings/run_config.h"
#include "runtime/comm/tcp.h"

namespace outrider {

struct AttachedDraftOptions {
  RunConfig config;  // the draft as `speculative`: model, quantization, device
  TcpAddress job;
  std::function<bool()> is_over;  // asked often; true ends it
};

// Until is_over; returns the exit code. Throws Error when the draft cannot be loaded, or the job
// refuses it.
int run_attached_draft(const AttachedDraftOptions& options);

}  // namespace outrider
