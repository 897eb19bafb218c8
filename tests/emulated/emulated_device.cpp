// A device whose memory is the host's and whose kernels run on fibers: for tests. Memory begins as
// NaN bytes, as in "whoever reads this before writing it will notice".
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/cuda/op_table.h"
#include "tests/emulated/device_memory.h"
#include "tests/emulated/emulated.h"

namespace outrider::gpu::emulated {
namespace {

constexpr size_t kTotalBytes = size_t{8} << 30;

class EmulatedGraph final : public Graph {
 public:
  explicit EmulatedGraph(std::vector<Work> works) : works_(std::move(works)) {}
  const std::vector<Work>& works() const { return works_; }

 private:
  std::vector<Work> works_;
};

std::atomic<WorkTime> work_time = WorkTime::kAtOnce;

class EmulatedStream final : public Stream {
 public:
  ~EmulatedStream() override { finish(*queue_); }
  void upload(void* device, const void* pinned, size_t n) override { copy(device, pinned, n); }
  void download(void* pinned, const void* device, size_t n) override { copy(pinned, device, n); }
  void copy(void* to, const void* from, size_t n) override {
    add([=] { std::memmove(to, from, n); });
  }
  void fill(void* device, uint8_t byte, size_t n) override {
    add([=] { std::memset(device, byte, n); });
  }
  void wait() override {
    OUTRIDER_CHECK(!recording_);
    queue_->do_all();
  }
  bool is_done() override {
    OUTRIDER_CHECK(!recording_);
    return queue_->look();
  }
  void begin_recording() override {
    OUTRIDER_CHECK(!recording_);
    recording_ = true;
  }
  std::unique_ptr<Graph> end_recording() override {
    OUTRIDER_CHECK(recording_);
    recording_ = false;
    return std::make_unique<EmulatedGraph>(std::exchange(recorded_, {}));
  }
  void replay(Graph& graph) override {
    for (const Work& work : static_cast<EmulatedGraph&>(graph).works()) add(work);
  }

  void add(Work work) {
    if (recording_) {
      recorded_.push_back(std::move(work));
      return;
    }
    queue_->add(std::move(work));
    if (work_time == WorkTime::kAtOnce) queue_->do_all();
  }
  const std::shared_ptr<WorkQueue>& queue() const { return queue_; }

  // What the work threw was for those who wait for it.
  static void finish(WorkQueue& queue) noexcept {
    try {
      queue.do_all();
    } catch (...) {
    }
  }

 private:
  const std::shared_ptr<WorkQueue> queue_ =
      std::make_shared<WorkQueue>(work_time == WorkTime::kOnThread);
  bool recording_ = false;
  std::vector<Work> recorded_;
};

std::vector<DeviceInfo>& devices() {
  static std::vector<DeviceInfo> shown = [] {
    DeviceInfo info = default_device();
    info.uuid = "GPU-emulated-0";
    return std::vector<DeviceInfo>{info};
  }();
  return shown;
}

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(DeviceInfo info) : info_(std::move(info)) {}
  DeviceInfo info() const override { return info_; }
  void* allocate(size_t num_bytes) override {
    void* memory = num_bytes > kTotalBytes ? nullptr : take_block(num_bytes);
    if (memory == nullptr) {
      throw Error("the GPU has no " + std::to_string(num_bytes) + " bytes left");
    }
    return memory;
  }
  void* allocate_pinned(size_t num_bytes) override {
    void* memory = allocate(num_bytes);
    std::memset(memory, 0, num_bytes);
    return memory;
  }
  // As on a real device: not before all work is done.
  void free(void* device) noexcept override {
    wait();
    give_back_block(device);
  }
  void free_pinned(void* pinned) noexcept override { free(pinned); }
  std::unique_ptr<Stream> make_stream(Priority) override {
    auto stream = std::make_unique<EmulatedStream>();
    const std::lock_guard lock(mutex_);
    queues_.push_back(stream->queue());
    return stream;
  }
  void wait() noexcept override {
    if (work_time == WorkTime::kAtOnce) return;
    const std::lock_guard lock(mutex_);
    for (const auto& weak : queues_) {
      if (const auto queue = weak.lock()) EmulatedStream::finish(*queue);
    }
  }
  void upload_now(void* device, const void* host, size_t n) override {
    std::memcpy(device, host, n);
  }
  void download_now(void* host, const void* device, size_t n) override {
    std::memcpy(host, device, n);
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<WorkQueue>> queues_;
  const DeviceInfo info_;
};

}  // namespace

DeviceInfo default_device() {
  return {.name = "emulated",
          .compute_capability = 80,
          .num_processors = 4,
          .total_bytes = kTotalBytes,
          .free_bytes = kTotalBytes,
          .l2_bytes = size_t{1} << 20};
}

DeviceInfo h200_device() {
  DeviceInfo info = default_device();
  info.compute_capability = 90;
  info.num_processors = 132;
  info.total_bytes = info.free_bytes = size_t{143'771} << 20;
  info.l2_bytes = size_t{60} << 20;
  return info;
}

void set_devices(const std::vector<DeviceInfo>& shown) {
  devices() = shown;
  for (size_t i = 0; i < shown.size(); ++i) {
    devices()[i].ordinal = static_cast<int>(i);
    devices()[i].uuid = "GPU-emulated-" + std::to_string(i);
  }
}

void set_work_time(WorkTime time) { work_time = time; }

void enqueue(Stream& stream, Work work) {
  static_cast<EmulatedStream&>(stream).add(std::move(work));
}

const Backend& backend() {
  static const Backend backend = {
      .name = "emulated",
      .interface_version = kInterfaceVersion,
      .num_devices = [] { return static_cast<int>(devices().size()); },
      .open = [](int ordinal) -> std::unique_ptr<Device> {
        return std::make_unique<EmulatedDevice>(devices().at(static_cast<size_t>(ordinal)));
      },
      .ops = op_table(),
      .peers = {.share = [](Device&, void* memory) { return share_block(memory); },
                .open = [](Device&, const MemoryHandle& handle) { return open_block(handle); },
                .close = [](Device&, void* opened) noexcept { close_block(opened); },
                .reach = [](Device&, int) {},
                .max_waiting_blocks = 2},  // an OS thread each, and cores are few
      .native_stream = [](Stream& stream) -> void* { return &stream; }};
  return backend;
}

}  // namespace outrider::gpu::emulated
