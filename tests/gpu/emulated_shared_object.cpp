// The emulated GPUs as a liboutrider_cuda.so, for tests of the program from outside: where this
// file lies beside the program, `--device cuda` computes on them. Of the environment, all
// optional:
//   OUTRIDER_TEST_GPUS=2                 how many GPUs this machine shows
//   OUTRIDER_TEST_GPU_FAILURE=step:1:50  how which of them fails, after how many calls
//                                        (failing_gpu.h: open, small, allocate, die, share,
//                                        step)
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/emulated/emulated.h"
#include "tests/gpu/failing_gpu.h"

namespace outrider::test {
namespace {

GpuFailure::Kind kind_of(const std::string& name) {
  using Kind = GpuFailure::Kind;
  if (name == "open") return Kind::kOpen;
  if (name == "small") return Kind::kSmall;
  if (name == "allocate") return Kind::kAllocate;
  if (name == "die") return Kind::kDie;
  if (name == "share") return Kind::kShare;
  if (name == "step") return Kind::kStep;
  throw Error("OUTRIDER_TEST_GPU_FAILURE: '" + name + "' is no failure");
}

GpuFailure failure_of(const char* text) {
  GpuFailure failure;
  if (text == nullptr) return failure;
  std::istringstream in(text);
  std::string name;
  std::getline(in, name, ':');
  failure.kind = kind_of(name);
  char colon = 0;
  in >> failure.gpu >> colon >> failure.after;
  return failure;
}

}  // namespace
}  // namespace outrider::test

extern "C" const outrider::gpu::Backend* outrider_gpu_backend() {
  using namespace outrider;
  const char* const count = std::getenv("OUTRIDER_TEST_GPUS");
  const size_t num_gpus = count == nullptr ? 1 : std::stoul(count);
  gpu::emulated::set_work_time(gpu::emulated::WorkTime::kOnThread);
  gpu::emulated::set_devices(
      std::vector<gpu::DeviceInfo>(num_gpus, gpu::emulated::default_device()));
  test::fail_gpu(test::failure_of(std::getenv("OUTRIDER_TEST_GPU_FAILURE")));
  return &test::failing_gpus();
}
