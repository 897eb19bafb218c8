// See abort.h.
#include "runtime/ranks/job/abort.h"

#include <cstdlib>
#include <exception>

#include "runtime/base/log.h"

namespace outrider {

void abort_job(World& world, const std::string& reason) {
  try {
    world.abort(reason);
  } catch (const std::exception&) {  // threads of this process: they end with it
    log_error("{}", reason);
  }
  std::_Exit(kExitAborted);
}

}  // namespace outrider
