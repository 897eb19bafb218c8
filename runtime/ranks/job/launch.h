// How this process was started.
#pragma once

#include <string>

namespace outrider {

struct Launch {
  int* argc = nullptr;  // the process's own, for MPI, which can do without
  char*** argv = nullptr;
  std::string program;  // version, commit and command: what all ranks of a job must have alike
};

}  // namespace outrider
