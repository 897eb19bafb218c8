// What this program was built from and with, for --version, the server's /version and the reports
// of benchmarks.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace outrider {

// Of the sources this program was built from: hash, "+dirty" when tracked files differed from it;
// "unknown" outside a git checkout. Taken at build time.
extern const char* const kBuildCommit;
extern const char* const kBuildVersion;  // "0.2.0"

// (name, value) of version, commit, compiler, mpi (the library it runs with) and cuda (the version
// of the compiler of the device code; "none": built without).
std::vector<std::pair<std::string, std::string>> build_info();

}  // namespace outrider
