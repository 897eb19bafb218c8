// See build_info.h.
#include "runtime/commands/build_info.h"

#include "runtime/comm/world/mpi_library.h"

namespace outrider {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

const char* const kBuildVersion = OUTRIDER_VERSION;

std::vector<std::pair<std::string, std::string>> build_info() {
  // Open MPI goes on with who packaged it, MPICH with how it was configured.
  const std::string mpi = mpi_library_version();
  return {{"version", kBuildVersion},
          {"commit", kBuildCommit},
          {"compiler", kCompiler},
          {"mpi", mpi.substr(0, mpi.find_first_of(",\n"))},
          {"cuda", OUTRIDER_CUDA_VERSION},
          {"xgrammar", OUTRIDER_XGRAMMAR_VERSION}};
}

}  // namespace outrider
