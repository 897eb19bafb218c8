// What the fake NCCL takes for a cudaStream_t.
#pragma once

#include <atomic>

namespace outrider::test {

struct FakeQueue {
  std::atomic<bool> is_stuck = false;  // work on it is never done
};

}  // namespace outrider::test
