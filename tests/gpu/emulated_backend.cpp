// Makes a GPU test one of the emulated device. Of the environment: with OUTRIDER_TEST_ON_THREADS
// its streams have threads of their own, with OUTRIDER_TEST_DEVICE=h200 it has an H200's numbers.
#include <cstdlib>
#include <string>

#include "tests/emulated/emulated.h"
#include "tests/emulated/machine.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

namespace {

const bool is_always_on_threads = std::getenv("OUTRIDER_TEST_ON_THREADS") != nullptr;
[[maybe_unused]] const bool is_told = [] {
  do_work_late(false);
  const char* const device = std::getenv("OUTRIDER_TEST_DEVICE");
  if (device != nullptr && std::string(device) == "h200") {
    emulated::set_devices({emulated::h200_device()});
  }
  return true;
}();

}  // namespace

const Backend& test_backend() { return emulated::backend(); }
void choose_thread_order(unsigned seed) { emulated::set_seed(seed); }
void do_when_waited_for(std::function<void()> work) { emulated::set_predecessor(std::move(work)); }
void do_work_late(bool is_late) {
  using emulated::WorkTime;
  const WorkTime as_ever = is_always_on_threads ? WorkTime::kOnThread : WorkTime::kAtOnce;
  emulated::set_work_time(is_late ? WorkTime::kLate : as_ever);
}
void do_work_on_threads() { emulated::set_work_time(emulated::WorkTime::kOnThread); }

}  // namespace outrider::gpu
