// A fuzz target is one function in a file of its own: it must return for every input and abort when
// a property does not hold. With clang it is driven by libFuzzer (preset fuzz, tools/fuzz.sh), in
// the test suite by driver.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

#define FUZZ_CHECK(condition)         \
  ((condition) ? static_cast<void>(0) \
               : (std::fprintf(stderr, "does not hold: %s\n", #condition), std::abort()))
