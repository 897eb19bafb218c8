// A GPU as the models see it: memory, streams, graphs. No CUDA header: the real device lives in a
// shared object of its own (runtime/ops/cuda, loaded when --device cuda asks for it), and tests run
// the same kernels on an emulated one (tests/emulated). Every call throws Error with one
// sentence when the device fails; after that the device is not to be used any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace outrider::gpu {

struct DeviceInfo {
  std::string name;
  std::string uuid;  // the same for all processes, whatever number they know it by
  int ordinal = 0;
  int compute_capability = 0;  // 90 for 9.0
  int num_processors = 0;      // streaming multiprocessors
  size_t total_bytes = 0;
  size_t free_bytes = 0;  // when asked
  size_t l2_bytes = 0;
};

// A recorded chain of launches and copies, replayed with one call. Its launches' arguments are
// those of the recording; what changes from step to step lies in memory they point to.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A queue of work in order. Not thread-safe. Calls return before the work is done.
class Stream {
 public:
  virtual ~Stream() = default;
  // From pinned host memory / to pinned host memory (Device::allocate_pinned); both must stay.
  virtual void upload(void* device, const void* pinned, size_t num_bytes) = 0;
  virtual void download(void* pinned, const void* device, size_t num_bytes) = 0;
  virtual void copy(void* to, const void* from, size_t num_bytes) = 0;  // within the device
  virtual void fill(void* device, uint8_t byte, size_t num_bytes) = 0;
  // Until all work queued so far is done.
  virtual void wait() = 0;
  // Whether it is, without waiting.
  virtual bool is_done() = 0;
  // Between the two calls work is recorded, not done. No allocation and no wait() between them.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<Graph> end_recording() = 0;
  virtual void replay(Graph& graph) = 0;
};

enum class Priority : uint8_t { kNormal, kHigh };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  // 256-byte aligned, contents undefined. Throws Error naming the size and what is free.
  virtual void* allocate(size_t num_bytes) = 0;
  // Host memory that copies run from without a detour and that kernels can read where it lies,
  // under the same address; zeroed.
  virtual void* allocate_pinned(size_t num_bytes) = 0;
  virtual void free(void* device) noexcept = 0;
  virtual void free_pinned(void* pinned) noexcept = 0;
  virtual std::unique_ptr<Stream> make_stream(Priority priority) = 0;
  // Until all streams' work is done, whatever became of it.
  virtual void wait() noexcept = 0;
  // From ordinary memory, done when it returns: for loading and for tests.
  virtual void upload_now(void* device, const void* host, size_t num_bytes) = 0;
  virtual void download_now(void* host, const void* device, size_t num_bytes) = 0;
};

// Memory with an owner.
template <void* (Device::*kAllocate)(size_t), void (Device::*kFree)(void*) noexcept>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(Device& device, size_t num_bytes)
      : device_(&device), data_((device.*kAllocate)(num_bytes)), num_bytes_(num_bytes) {}
  ~OwnedMemory() {
    if (data_ != nullptr) (device_->*kFree)(data_);
  }
  OwnedMemory(OwnedMemory&& other) noexcept { swap(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t num_bytes() const { return num_bytes_; }

 private:
  void swap(OwnedMemory& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};
using Buffer = OwnedMemory<&Device::allocate, &Device::free>;
using PinnedBuffer = OwnedMemory<&Device::allocate_pinned, &Device::free_pinned>;

}  // namespace outrider::gpu
