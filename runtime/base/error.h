// The two ways to fail. Error: something from outside is wrong (a file, an option, a request);
// thrown off the round path and turned into one sentence by whoever asked. OUTRIDER_CHECK: the
// program itself is wrong; it prints the place and ends the process, because a throw on one rank
// would leave the others waiting.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace outrider {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "outrider: internal error: %s at %s:%d\n", condition, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace outrider

#define OUTRIDER_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::outrider::check_failed(#condition, __FILE__, __LINE__))
