// Draft and target on one GPU, in one process: what the job asks of the device. Both models' memory
// together stays within gpu_memory_utilization, all but a little of it is used, and the draft's
// work goes before the target's.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/gpu/gpu_testing.h"
#include "tests/gpu/wrapped_device.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

// What all devices of a job were asked for.
struct Ledger {
  std::mutex mutex;
  std::map<void*, size_t> taken;
  size_t bytes = 0;
  size_t most_bytes = 0;
  std::vector<gpu::Priority> streams;
};
Ledger ledger;

class WatchedDevice final : public WrappedDevice {
 public:
  WatchedDevice() : WrappedDevice(gpu::test_backend().open(0)) {}
  void* allocate(size_t num_bytes) override {
    void* memory = inner().allocate(num_bytes);
    const std::lock_guard lock(ledger.mutex);
    ledger.taken[memory] = num_bytes;
    ledger.bytes += num_bytes;
    ledger.most_bytes = std::max(ledger.most_bytes, ledger.bytes);
    return memory;
  }
  void free(void* device) noexcept override {
    {
      const std::lock_guard lock(ledger.mutex);
      ledger.bytes -= ledger.taken[device];
      ledger.taken.erase(device);
    }
    inner().free(device);
  }
  std::unique_ptr<gpu::Stream> make_stream(gpu::Priority priority) override {
    const std::lock_guard lock(ledger.mutex);
    ledger.streams.push_back(priority);
    return inner().make_stream(priority);
  }
};

const gpu::Backend& watched_backend() {
  static const gpu::Backend backend = [] {
    gpu::Backend made = gpu::test_backend();
    made.open = [](int) -> std::unique_ptr<gpu::Device> {
      return std::make_unique<WatchedDevice>();
    };
    return made;
  }();
  return backend;
}

RunConfig config_on(const std::string& device) {
  RunConfig config = embedded_config(1, 3);
  config.device = device;
  config.activation_dtype = "float32";
  config.max_model_len = 96;
  config.max_num_seqs = 2;
  config.max_num_batched_tokens = 64;
  return config;
}

TEST(Colocated, ShareMemoryAndTheDraftGoesFirst) {
  set_gpu_provider(watched_backend);
  RunConfig config = config_on("cuda");
  const auto total = static_cast<double>(gpu::test_backend().open(0)->info().total_bytes);
  config.gpu_memory_utilization = 0.2e9 / total;
  const std::vector<Ask> asks = {{"The king said", greedy(8)},
                                 {"Once upon a time there was", seeded(0.8f, 7, 8)}};
  const std::vector<Outcome> found = run_asks(config, asks);
  set_gpu_provider(gpu::cuda_backend);
  const std::vector<Outcome> expected = run_asks(config_on("cpu"), asks);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].error, "");
    EXPECT_EQ(found[i].tokens, expected[i].tokens);
  }
  std::ranges::sort(ledger.streams);
  const std::vector<gpu::Priority> both = {gpu::Priority::kNormal, gpu::Priority::kHigh};
  EXPECT_EQ(ledger.streams, both);
  EXPECT_LE(ledger.most_bytes, size_t{200'000'000});
  EXPECT_GE(ledger.most_bytes, size_t{150'000'000});
  EXPECT_EQ(ledger.bytes, 0u);
}

}  // namespace
}  // namespace outrider::test
