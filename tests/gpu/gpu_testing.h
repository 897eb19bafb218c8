// What tests of the GPU's kernels stand on. Every such test is built twice: for the emulated device
// (gpu_X_test, run everywhere) and for the real one (X_gpu_test, label gpu, skipped where there is
// none). So it must not take device memory for its own: what kernels and the test both look at is a
// DeviceArray, or Shared where it must be pinned.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/ops/gpu/backend.h"
#include "runtime/ops/gpu/tiles.h"
#include "runtime/ops/half.h"

namespace outrider::gpu {

// The backend this binary was built for (emulated_backend.cpp, cuda_backend_main.cpp).
const Backend& test_backend();
inline bool is_emulated() { return std::string(test_backend().name) == "emulated"; }
// Another order of threads from now on, where the device has a choice: the emulated one.
void choose_thread_order(unsigned seed);
// What the launch before does: on the emulated device when this thread's next launch first waits
// for it, on a real one at once.
void do_when_waited_for(std::function<void()> work);
// Queued work is done as late as may be, on the emulated device (emulated.h); a real one has its
// own time. To outlive the buffers and streams of its device.
void do_work_late(bool is_late);
// The emulated device works while the caller goes on, as a real one does. Before streams are made.
void do_work_on_threads();
class WorkOnThreads {
 public:
  WorkOnThreads() { do_work_on_threads(); }
  ~WorkOnThreads() { do_work_late(false); }
  WorkOnThreads(const WorkOnThreads&) = delete;
  WorkOnThreads& operator=(const WorkOnThreads&) = delete;
};
class LateWork {
 public:
  LateWork() { do_work_late(true); }
  ~LateWork() { do_work_late(false); }
  LateWork(const LateWork&) = delete;
  LateWork& operator=(const LateWork&) = delete;
};

class GpuTest : public ::testing::Test {
 protected:
  const OpTable& ops = test_backend().ops;
  std::unique_ptr<Device> device = test_backend().open(0);
  std::unique_ptr<Stream> stream = device->make_stream(Priority::kNormal);
};

// Device memory with a copy in host memory; push() and pull() make them equal, when no launch is
// under way. Who forgets one sees old values, on the emulated device too. Zeros at first.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, size_t count) : DeviceArray(device, std::vector<T>(count)) {}
  DeviceArray(Device& device, std::vector<T> values)
      : device_(&device), host_(std::move(values)), buffer_(device, host_.size() * sizeof(T)) {
    push();
  }
  T* device() const { return buffer_.template as<T>(); }
  T* host() { return host_.data(); }
  const T* host() const { return host_.data(); }
  size_t size() const { return host_.size(); }
  T& operator[](size_t i) { return host_[i]; }
  const T& operator[](size_t i) const { return host_[i]; }
  std::span<T> span() { return host_; }
  std::span<std::byte> bytes() const { return {buffer_.as<std::byte>(), buffer_.num_bytes()}; }
  void push() const { device_->upload_now(device(), host(), host_.size() * sizeof(T)); }
  const std::vector<T>& pull() {
    device_->download_now(host(), device(), host_.size() * sizeof(T));
    return host_;
  }
  void poison() {
    std::memset(static_cast<void*>(host()), 0xff, host_.size() * sizeof(T));
    push();
  }

 private:
  Device* device_ = nullptr;
  std::vector<T> host_;
  Buffer buffer_;
};

// All rows of a step, with their places in the pages.
struct TestStep {
  TestStep(Device& device,
           const std::vector<int32_t>& positions_of_rows,
           const std::vector<int32_t>& sequences_of_rows,
           const std::vector<int32_t>& block_tables,
           int32_t table_stride,
           int32_t num_rows)
      : counts(device, {{.num_rows = num_rows}}),
        positions(device, positions_of_rows),
        sequences(device, sequences_of_rows),
        tables(device, block_tables),
        view{.counts = counts.device(),
             .positions = positions.device(),
             .sequence_of_row = sequences.device(),
             .block_tables = tables.device(),
             .table_stride = table_stride} {}
  DeviceArray<StepCounts> counts;
  DeviceArray<int32_t> positions;
  DeviceArray<int32_t> sequences;
  DeviceArray<int32_t> tables;
  StepView view;
};

// Pinned memory, which the test and copies see under one address. On a real device what a stream
// wrote is there after Stream::wait().
template <typename T>
class Shared {
 public:
  Shared() = default;
  Shared(Device& device, size_t count) : buffer_(device, count * sizeof(T)), count_(count) {}
  Shared(Device& device, const std::vector<T>& values) : Shared(device, values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  T* data() const { return buffer_.template as<T>(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data()[i]; }
  std::span<T> span() const { return {data(), count_}; }
  std::span<std::byte> bytes() const { return std::as_writable_bytes(span()); }
  std::vector<T> values() const { return {data(), data() + count_}; }
  void poison() const { std::memset(buffer_.template as<void>(), 0xff, count_ * sizeof(T)); }

 private:
  PinnedBuffer buffer_;
  size_t count_ = 0;
};

// What the launch before writes: NaN until the next launch waits for it, so that reading it earlier
// shows. On a real device, whose memory the host does not see, it is there from the beginning.
inline void write_by_predecessor(const std::vector<std::span<std::byte>>& memory) {
  if (!is_emulated()) return;
  std::vector<std::vector<std::byte>> written;
  for (const auto& bytes : memory) written.emplace_back(bytes.begin(), bytes.end());
  for (const auto& bytes : memory) std::ranges::fill(bytes, std::byte{0xff});
  do_when_waited_for([memory, written] {
    for (size_t i = 0; i < memory.size(); ++i) std::ranges::copy(written[i], memory[i].begin());
  });
}

inline std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline float widen(Type type, const void* data, size_t at) {
  if (type == Type::kF32) return static_cast<const float*>(data)[at];
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return type == Type::kBF16 ? ops::bf16_to_float(bits) : ops::f16_to_float(bits);
}

inline void narrow(Type type, void* data, size_t at, float value) {
  if (type == Type::kF32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<uint16_t*>(data)[at] =
        type == Type::kBF16 ? ops::float_to_bf16(value) : ops::float_to_f16(value);
  }
}

// As `type` (not kE4M3) holds it.
inline float rounded(float value, Type type) {
  float bits = 0;
  narrow(type, &bits, 0, value);
  return widen(type, &bits, 0);
}

// Where element (row, k) of a product's input lies.
inline size_t place(const Activations& in, int32_t row, int32_t k) {
  return in.type == Type::kF32
             ? static_cast<size_t>(row) * static_cast<size_t>(in.n) + static_cast<size_t>(k)
             : activation_offset(row, k, in.n);
}

}  // namespace outrider::gpu
