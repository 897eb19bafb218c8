// A device that passes every call on: for tests that change or count some of them.
#pragma once

#include <memory>
#include <utility>

#include "runtime/ops/gpu/device.h"

namespace outrider::test {

class WrappedDevice : public gpu::Device {
 public:
  explicit WrappedDevice(std::unique_ptr<gpu::Device> inner) : inner_(std::move(inner)) {}
  gpu::DeviceInfo info() const override { return inner_->info(); }
  void* allocate(size_t num_bytes) override { return inner_->allocate(num_bytes); }
  void* allocate_pinned(size_t num_bytes) override { return inner_->allocate_pinned(num_bytes); }
  void free(void* device) noexcept override { inner_->free(device); }
  void free_pinned(void* pinned) noexcept override { inner_->free_pinned(pinned); }
  std::unique_ptr<gpu::Stream> make_stream(gpu::Priority priority) override {
    return inner_->make_stream(priority);
  }
  void wait() noexcept override { inner_->wait(); }
  void upload_now(void* device, const void* host, size_t num_bytes) override {
    inner_->upload_now(device, host, num_bytes);
  }
  void download_now(void* host, const void* device, size_t num_bytes) override {
    inner_->download_now(host, device, num_bytes);
  }
  gpu::Device& inner() const { return *inner_; }

 private:
  const std::unique_ptr<gpu::Device> inner_;
};

}  // namespace outrider::test
