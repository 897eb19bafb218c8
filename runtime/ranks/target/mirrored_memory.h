// Pinned host memory and device memory of one layout, filled from the front and copied as a whole:
// how small things travel to a device or back in one copy. Grows when it must, which a caller that
// says what it will need avoids. For one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "runtime/base/error.h"
#include "runtime/ops/gpu/device.h"

namespace outrider {

template <typename T>
struct Mirrored {
  T* host = nullptr;
  T* device = nullptr;
};

class MirroredMemory {
 public:
  explicit MirroredMemory(gpu::Device& device) : device_(device) {}

  bool has_room(size_t num_bytes) const { return num_bytes <= host_.num_bytes(); }
  // Empty again, with room for so many bytes. Nothing may be under way that uses it.
  void begin(size_t num_bytes) {
    num_used_ = 0;
    if (has_room(num_bytes)) return;
    const size_t room = std::max(num_bytes, 2 * host_.num_bytes());
    host_ = gpu::PinnedBuffer(device_, room);
    on_device_ = gpu::Buffer(device_, room);
  }

  // What `count` of T take in begin()'s sum.
  template <typename T>
  static constexpr size_t bytes_for(size_t count) {
    return count * sizeof(T) + kAlignment;
  }

  template <typename T>
  Mirrored<T> place(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    const size_t at = (num_used_ + kAlignment - 1) / kAlignment * kAlignment;
    OUTRIDER_CHECK(at + count * sizeof(T) <= host_.num_bytes());
    num_used_ = at + count * sizeof(T);
    return {new (host_.as<std::byte>() + at) T[count],
            reinterpret_cast<T*>(on_device_.as<std::byte>() + at)};
  }

  void upload(gpu::Stream& stream) {
    if (num_used_ > 0) stream.upload(on_device_.data(), host_.as<std::byte>(), num_used_);
  }
  void clear_on_device(gpu::Stream& stream) {
    if (num_used_ > 0) stream.fill(on_device_.data(), 0, num_used_);
  }
  void download(gpu::Stream& stream) {
    if (num_used_ > 0) stream.download(host_.as<std::byte>(), on_device_.data(), num_used_);
  }

 private:
  static constexpr size_t kAlignment = 16;
  gpu::Device& device_;
  gpu::PinnedBuffer host_;
  gpu::Buffer on_device_;
  size_t num_used_ = 0;
};

}  // namespace outrider
