// A device whose memory is the host's and whose kernels run on fibers: for tests. Memory begins as
// NaN bytes, as in "whoever reads this before writing it will notice".
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "runtime/ops/emulated/emulated.h"
#include "runtime/ops/emulated/emulated_stream.h"

namespace outrider::gpu::emulated {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kTotalBytes = size_t{8} << 30;

class EmulatedGraph final : public Graph {
 public:
  explicit EmulatedGraph(std::vector<std::function<void()>> work) : work_(std::move(work)) {}
  size_t num_nodes() const override { return work_.size(); }
  void run() const {
    for (const auto& piece : work_) piece();
  }

 private:
  std::vector<std::function<void()>> work_;
};

class EmulatedStream final : public Stream {
 public:
  void upload(void* device, const void* pinned, size_t n) override { copy(device, pinned, n); }
  void download(void* pinned, const void* device, size_t n) override { copy(pinned, device, n); }
  void copy(void* to, const void* from, size_t n) override {
    add([=] { std::memmove(to, from, n); });
  }
  void fill(void* device, uint8_t byte, size_t n) override {
    add([=] { std::memset(device, byte, n); });
  }
  void wait() override { OUTRIDER_CHECK(!recording_); }
  void wait_for(Stream&) override {}
  void begin_recording() override {
    OUTRIDER_CHECK(!recording_);
    recording_ = true;
  }
  std::unique_ptr<Graph> end_recording() override {
    OUTRIDER_CHECK(recording_);
    recording_ = false;
    return std::make_unique<EmulatedGraph>(std::exchange(recorded_, {}));
  }
  void replay(Graph& graph) override { static_cast<EmulatedGraph&>(graph).run(); }

  void add(std::function<void()> work) {
    if (!recording_) return work();
    recorded_.push_back(std::move(work));
  }

 private:
  bool recording_ = false;
  std::vector<std::function<void()>> recorded_;
};

class EmulatedDevice final : public Device {
 public:
  DeviceInfo info() const override {
    return {.name = "emulated",
            .ordinal = 0,
            .compute_capability = 80,
            .num_processors = 4,
            .total_bytes = kTotalBytes,
            .free_bytes = kTotalBytes,
            .l2_bytes = size_t{1} << 20,
            .driver_version = "none",
            .runtime_version = "none"};
  }
  void* allocate(size_t num_bytes) override {
    const size_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = num_bytes > kTotalBytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr && num_bytes > 0) {
      throw Error("the GPU has no " + std::to_string(num_bytes) + " bytes left");
    }
    std::memset(memory, 0xff, rounded);
    return memory;
  }
  void* allocate_pinned(size_t num_bytes) override {
    void* memory = allocate(num_bytes);
    std::memset(memory, 0, num_bytes);
    return memory;
  }
  void free(void* device) noexcept override { std::free(device); }
  void free_pinned(void* pinned) noexcept override { std::free(pinned); }
  std::unique_ptr<Stream> make_stream(Priority) override {
    return std::make_unique<EmulatedStream>();
  }
  void upload_now(void* device, const void* host, size_t n) override {
    std::memcpy(device, host, n);
  }
  void download_now(void* host, const void* device, size_t n) override {
    std::memcpy(host, device, n);
  }
};

}  // namespace

void enqueue(Stream& stream, std::function<void()> work) {
  static_cast<EmulatedStream&>(stream).add(std::move(work));
}

const Backend& backend() {
  static const Backend backend = {
      .name = "emulated",
      .interface_version = kInterfaceVersion,
      .num_devices = [] { return 1; },
      .open = [](int) -> std::unique_ptr<Device> { return std::make_unique<EmulatedDevice>(); },
      .ops = op_table(),
      .peers = {.share = [](Device&, void*) { return MemoryHandle{}; },
                .open = [](Device&, const MemoryHandle&) -> void* {
                  throw Error("an emulated GPU's memory belongs to one process");
                },
                .close = [](Device&, void*) noexcept {},
                .reach = [](Device&, int) {},
                .max_waiting_blocks = 1},  // blocks run one after the other
      .native_stream = [](Stream& stream) -> void* { return &stream; }};
  return backend;
}

}  // namespace outrider::gpu::emulated
