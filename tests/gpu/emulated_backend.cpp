// Makes a GPU test one of the emulated device; with OUTRIDER_TEST_ON_THREADS in the environment its
// streams have threads of their own.
#include <cstdlib>

#include "tests/emulated/emulated.h"
#include "tests/emulated/machine.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

namespace {

const bool is_always_on_threads = std::getenv("OUTRIDER_TEST_ON_THREADS") != nullptr;
[[maybe_unused]] const bool is_told = (do_work_late(false), true);

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
