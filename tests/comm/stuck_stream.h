// The emulated device with streams that the fake NCCL can hold up and tests can break.
#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/ops/gpu/exchange.h"
#include "tests/comm/fake_nccl.h"
#include "tests/emulated/emulated.h"

namespace outrider::test {

// An emulated stream whose wait does not end while the fake says so, and fails where a test does.
class StuckStream final : public gpu::Stream, public FakeQueue {
 public:
  explicit StuckStream(gpu::Device& device) : stream_(device.make_stream(gpu::Priority::kNormal)) {}
  void upload(void* to, const void* from, size_t n) override { stream_->upload(to, from, n); }
  void download(void* to, const void* from, size_t n) override { stream_->download(to, from, n); }
  void copy(void* to, const void* from, size_t n) override { stream_->copy(to, from, n); }
  void fill(void* to, uint8_t byte, size_t n) override { stream_->fill(to, byte, n); }
  void wait() override {
    fail_if_broken();
    while (is_stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  bool is_done() override {
    fail_if_broken();
    return !is_stuck && stream_->is_done();
  }
  void begin_recording() override { stream_->begin_recording(); }
  std::unique_ptr<gpu::Graph> end_recording() override { return stream_->end_recording(); }
  void replay(gpu::Graph& graph) override { stream_->replay(graph); }
  gpu::Stream& inner() { return *stream_; }

  bool is_broken = false;

 private:
  void fail_if_broken() const {
    if (is_broken) throw Error("the GPU failed (what the test says)");
  }
  std::unique_ptr<gpu::Stream> stream_;
};

// The emulated device's backend, its ops given the stream inside.
inline const gpu::Backend& stuck_backend() {
  static const gpu::Backend backend = [] {
    gpu::Backend made = gpu::emulated::backend();
    static const gpu::OpTable ops = made.ops;
    made.ops.norm = [](gpu::Stream& stream, const gpu::NormArgs& args) {
      ops.norm(static_cast<StuckStream&>(stream).inner(), args);
    };
    made.ops.fold_parts = [](gpu::Stream& stream, const gpu::FoldPartsArgs& args) {
      ops.fold_parts(static_cast<StuckStream&>(stream).inner(), args);
    };
    made.ops.exchange_sum = [](gpu::Stream& stream, const gpu::ExchangeSumArgs& args) {
      ops.exchange_sum(static_cast<StuckStream&>(stream).inner(), args);
    };
    made.ops.exchange_norm = [](gpu::Stream& stream, const gpu::ExchangeNormArgs& args) {
      ops.exchange_norm(static_cast<StuckStream&>(stream).inner(), args);
    };
    made.native_stream = [](gpu::Stream& stream) -> void* {
      return static_cast<FakeQueue*>(&static_cast<StuckStream&>(stream));
    };
    return made;
  }();
  return backend;
}

}  // namespace outrider::test
