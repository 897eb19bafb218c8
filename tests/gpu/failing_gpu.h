// Emulated GPUs of which one fails as it is told to: what the jobs of several ranks are held
// against, each rank having a GPU of its own.
#pragma once

#include <cstdint>

#include "runtime/ops/gpu/backend.h"

namespace outrider::test {

struct GpuFailure {
  enum class Kind : uint8_t {
    kNone,
    kOpen,      // it cannot be opened
    kSmall,     // it has 1 MB
    kAllocate,  // its (after + 1)-th piece of memory cannot be had, pinned memory included
    kDie,       // ... its process dies there
    kShare,     // its memory cannot be shared with others
    kStep,      // its (after + 1)-th norm, in a step, ends all its work
  };
  Kind kind = Kind::kNone;
  int gpu = 0;
  int64_t after = 0;
};

// For the devices that are opened from now on. Not while a job runs.
void fail_gpu(const GpuFailure& failure);
// How often that GPU was asked for memory (kAllocate, kDie), or computed a norm (otherwise), since
// then.
int64_t num_calls_of_failing_gpu();

const gpu::Backend& failing_gpus();

}  // namespace outrider::test
