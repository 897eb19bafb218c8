// Makes a GPU test one of the emulated device.
#include "runtime/ops/emulated/emulated.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

const Backend& test_backend() { return emulated::backend(); }
void choose_thread_order(unsigned seed) { emulated::set_seed(seed); }
void do_work_late(bool is_late) {
  emulated::set_work_time(is_late ? emulated::WorkTime::kLate : emulated::WorkTime::kAtOnce);
}
void do_work_on_threads() { emulated::set_work_time(emulated::WorkTime::kOnThread); }

}  // namespace outrider::gpu
