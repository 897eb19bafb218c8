// Which MPI this program runs with; known before MPI_Init and without it.
#pragma once

#include <string>

namespace outrider {

// The library's own words: "Open MPI v4.1.4, package: ...".
std::string mpi_library_version();

}  // namespace outrider
