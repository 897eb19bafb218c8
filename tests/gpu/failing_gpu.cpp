// See failing_gpu.h.
#include "tests/gpu/failing_gpu.h"

#include <atomic>
#include <csignal>
#include <mutex>
#include <set>
#include <string>

#include "runtime/base/error.h"
#include "tests/emulated/emulated.h"
#include "tests/gpu/wrapped_device.h"

namespace outrider::test {
namespace {

using Kind = GpuFailure::Kind;

GpuFailure failure;
std::atomic<int64_t> num_calls;
std::mutex mutex;
std::set<const gpu::Stream*> streams;  // of the GPU that fails

bool fails(Kind kind, int gpu) { return failure.kind == kind && failure.gpu == gpu; }

class FailingDevice final : public WrappedDevice {
 public:
  explicit FailingDevice(int ordinal)
      : WrappedDevice(gpu::emulated::backend().open(ordinal)), ordinal_(ordinal) {}
  gpu::DeviceInfo info() const override {
    gpu::DeviceInfo info = inner().info();
    if (fails(Kind::kSmall, ordinal_)) info.total_bytes = info.free_bytes = 1'000'000;
    return info;
  }
  void* allocate(size_t num_bytes) override {
    count_memory(num_bytes);
    return inner().allocate(num_bytes);
  }
  void* allocate_pinned(size_t num_bytes) override {
    count_memory(num_bytes);
    return inner().allocate_pinned(num_bytes);
  }
  std::unique_ptr<gpu::Stream> make_stream(gpu::Priority priority) override {
    auto stream = inner().make_stream(priority);
    if (fails(Kind::kStep, ordinal_)) {
      const std::lock_guard lock(mutex);
      streams.insert(stream.get());
    }
    return stream;
  }
  int ordinal() const { return ordinal_; }

 private:
  void count_memory(size_t num_bytes) const {
    const bool dies = fails(Kind::kDie, ordinal_);
    if (!dies && !fails(Kind::kAllocate, ordinal_)) return;
    if (num_calls++ < failure.after) return;
    if (dies) raise(SIGKILL);
    throw Error("GPU " + std::to_string(ordinal_) + " has no " + std::to_string(num_bytes) +
                " bytes left");
  }
  const int ordinal_;
};

FailingDevice& mine(gpu::Device& device) { return static_cast<FailingDevice&>(device); }

void norm(gpu::Stream& stream, const gpu::NormArgs& args) {
  bool is_failing = false;
  {
    const std::lock_guard lock(mutex);
    is_failing = streams.contains(&stream);
  }
  if (is_failing) {
    gpu::emulated::enqueue(stream, [] {
      if (num_calls++ >= failure.after) throw Error("the GPU has fallen off the bus");
    });
  }
  gpu::emulated::backend().ops.norm(stream, args);
}

}  // namespace

void fail_gpu(const GpuFailure& told) {
  failure = told;
  num_calls = 0;
  const std::lock_guard lock(mutex);
  streams.clear();
}

int64_t num_calls_of_failing_gpu() { return num_calls; }

const gpu::Backend& failing_gpus() {
  static const gpu::Backend backend = [] {
    gpu::Backend made = gpu::emulated::backend();
    made.open = [](int ordinal) -> std::unique_ptr<gpu::Device> {
      if (fails(Kind::kOpen, ordinal)) {
        throw Error("GPU " + std::to_string(ordinal) + " is in use by another process");
      }
      return std::make_unique<FailingDevice>(ordinal);
    };
    made.ops.norm = norm;
    made.peers.share = [](gpu::Device& device, void* memory) {
      if (fails(Kind::kShare, mine(device).ordinal())) {
        throw Error("GPU " + std::to_string(mine(device).ordinal()) +
                    " cannot share memory with other processes");
      }
      return gpu::emulated::backend().peers.share(mine(device).inner(), memory);
    };
    made.peers.open = [](gpu::Device& device, const gpu::MemoryHandle& handle) {
      return gpu::emulated::backend().peers.open(mine(device).inner(), handle);
    };
    made.peers.close = [](gpu::Device& device, void* memory) noexcept {
      gpu::emulated::backend().peers.close(mine(device).inner(), memory);
    };
    made.peers.reach = [](gpu::Device& device, int ordinal) {
      gpu::emulated::backend().peers.reach(mine(device).inner(), ordinal);
    };
    return made;
  }();
  return backend;
}

}  // namespace outrider::test
