// Makes a GPU test one of the emulated device.
#include "runtime/ops/emulated/emulated.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {

const Backend& test_backend() { return emulated::backend(); }
void choose_thread_order(unsigned seed) { emulated::set_seed(seed); }
void do_work_late(bool is_late) { emulated::set_late(is_late); }

}  // namespace outrider::gpu
