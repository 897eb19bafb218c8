// Makes a GPU test one of the real device. Exit code 77 (skipped) with the reason where there is
// none, unless OUTRIDER_REQUIRE_GPU=1 asks for a failure; anything else that stands in the way is a
// failure.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/base/error.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

const Backend& test_backend() { return cuda_backend(); }
void choose_thread_order(unsigned) {}
void do_when_waited_for(std::function<void()> work) { work(); }
void do_work_late(bool) {}
void do_work_on_threads() {}

}  // namespace outrider::gpu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  try {
    const outrider::gpu::DeviceInfo info = outrider::gpu::cuda_backend().open(0)->info();
    std::printf("GPU 0: %s, compute capability %d.%d\n",
                info.name.c_str(),
                info.compute_capability / 10,
                info.compute_capability % 10);
  } catch (const outrider::Error& error) {
    const char* required = std::getenv("OUTRIDER_REQUIRE_GPU");
    const bool may_skip = required == nullptr || std::strcmp(required, "1") != 0;
    const bool no_gpu = std::string(error.what()).rfind("device 'cuda': there is no ", 0) == 0;
    std::printf("%s: %s\n", may_skip && no_gpu ? "skipped" : "failed", error.what());
    return may_skip && no_gpu ? 77 : 1;
  }
  return RUN_ALL_TESTS();
}
