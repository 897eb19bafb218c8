// What every device promises (runtime/ops/gpu/device.h), asked of the emulated and of the real one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/ops/gpu/tiles.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {
namespace {

std::vector<uint8_t> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

class DeviceTest : public GpuTest {
 protected:
  std::vector<uint8_t> contents(const Buffer& buffer) {
    std::vector<uint8_t> bytes(buffer.num_bytes());
    device->download_now(bytes.data(), buffer.data(), bytes.size());
    return bytes;
  }
};

TEST_F(DeviceTest, SaysWhatItIs) {
  const DeviceInfo info = device->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.compute_capability, 80);
  EXPECT_GT(info.num_processors, 0);
  EXPECT_GT(info.total_bytes, size_t{1} << 30);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_GT(info.l2_bytes, 0u);
}

TEST_F(DeviceTest, BytesComeBackAsTheyWent) {
  for (const size_t count : {size_t{1}, size_t{255}, size_t{4097}, size_t{5} << 20}) {
    const std::vector<uint8_t> sent = random_bytes(count, static_cast<unsigned>(count));
    const Buffer buffer(*device, count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
    device->upload_now(buffer.data(), sent.data(), count);
    EXPECT_EQ(contents(buffer), sent);
  }
}

TEST_F(DeviceTest, PinnedMemoryBeginsAsZeros) {
  const Shared<uint8_t> pinned(*device, 100001);
  EXPECT_EQ(pinned.values(), std::vector<uint8_t>(100001, 0));
}

TEST_F(DeviceTest, AStreamWorksInOrder) {
  constexpr size_t kCount = 1 << 20;
  const Buffer first(*device, kCount);
  const Buffer second(*device, kCount);
  const Shared<uint8_t> in(*device, random_bytes(kCount, 1));
  const Shared<uint8_t> out(*device, kCount);
  for (int turn = 0; turn < 20; ++turn) {
    const auto byte = static_cast<uint8_t>(turn + 1);
    stream->fill(first.data(), byte, kCount);
    stream->copy(second.data(), first.data(), kCount);
    stream->upload(first.data(), in.data(), kCount);
    stream->copy(second.as<uint8_t>() + 1, first.as<uint8_t>() + 1, kCount / 2);
    stream->download(out.data(), second.data(), kCount);
    stream->wait();
    EXPECT_EQ(out[0], byte);
    EXPECT_EQ(out[kCount / 2 + 1], byte);
    EXPECT_TRUE(std::equal(in.data() + 1, in.data() + kCount / 2 + 1, out.data() + 1));
  }
}

TEST_F(DeviceTest, SaysWithoutWaitingWhetherItIsDone) {
  const LateWork late;
  constexpr size_t kCount = 64 << 20;
  const Buffer buffer(*device, kCount);
  const Shared<uint8_t> out(*device, kCount);
  EXPECT_TRUE(stream->is_done());
  for (uint8_t turn = 1; turn < 4; ++turn) {
    stream->fill(buffer.data(), turn, kCount);
    stream->download(out.data(), buffer.data(), kCount);
    EXPECT_FALSE(stream->is_done());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!stream->is_done()) ASSERT_LT(std::chrono::steady_clock::now(), end);
    EXPECT_EQ(out[0], turn);
    EXPECT_EQ(out[kCount - 1], turn);
  }
}

TEST_F(DeviceTest, TooMuchMemoryIsOneSentenceAndNothingBreaks) {
  try {
    const Buffer buffer(*device, size_t{1} << 50);
    FAIL() << "got a petabyte";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1125899906842624 bytes"), std::string::npos);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  const std::vector<uint8_t> sent = random_bytes(1000, 3);
  const Buffer buffer(*device, 1000);
  device->upload_now(buffer.data(), sent.data(), 1000);
  EXPECT_EQ(contents(buffer), sent);
}

// A chain of norms that feeds on itself: x is changed by every launch, so order and number of
// launches show.
class Chain {
 public:
  static constexpr int32_t kN = 2048;
  static constexpr int32_t kRows = 17;
  static constexpr int kLaunches = 40;

  explicit Chain(Device& device)
      : x_(device, kRows * kN * sizeof(float)),
        part_(device, kRows * kN * sizeof(float)),
        weight_(device, kN * sizeof(float)),
        out_(device, activation_elements(kRows, kN) * sizeof(float)),
        counts_(device, std::vector<StepCounts>{{.num_rows = kRows}}),
        device_(device) {}

  void begin(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const Buffer* buffer : {&x_, &part_, &weight_}) {
      std::vector<float> values(buffer->num_bytes() / sizeof(float));
      for (float& value : values) value = normal(random);
      device_.upload_now(buffer->data(), values.data(), buffer->num_bytes());
    }
    const std::vector<uint8_t> poison(out_.num_bytes(), 0xff);
    device_.upload_now(out_.data(), poison.data(), poison.size());
  }
  void queue(const OpTable& ops, Stream& stream) {
    for (int i = 0; i < kLaunches; ++i) {
      ops.norm(stream,
               {.out = {out_.data(), Type::kF32, kN},
                .x = x_.as<float>(),
                // Every other launch reads what the one before it wrote.
                .part = i % 2 == 0 ? part_.as<float>() : out_.as<float>(),
                .weight = weight_.as<float>(),
                .eps = 1e-5f,
                .max_rows = kRows,
                .step = {.counts = counts_.data()}});
    }
  }
  std::vector<uint32_t> bits() {
    std::vector<uint32_t> bits(2 * static_cast<size_t>(kRows) * kN);
    device_.download_now(bits.data(), x_.data(), x_.num_bytes());
    device_.download_now(bits.data() + bits.size() / 2, out_.data(), x_.num_bytes());
    return bits;
  }

 private:
  Buffer x_;
  Buffer part_;
  Buffer weight_;
  Buffer out_;
  Shared<StepCounts> counts_;
  Device& device_;
};

class GraphTest : public DeviceTest {
 protected:
  Chain chain{*device};

  std::vector<uint32_t> queued_bits(unsigned seed) {
    chain.begin(seed);
    chain.queue(ops, *stream);
    stream->wait();
    return chain.bits();
  }
  std::unique_ptr<Graph> recorded() {
    stream->begin_recording();
    chain.queue(ops, *stream);
    return stream->end_recording();
  }
};

TEST_F(GraphTest, RecordingDoesNothingAndReplayingDoesIt) {
  const std::vector<uint32_t> expected = queued_bits(1);
  EXPECT_NE(queued_bits(2), expected);
  chain.begin(1);
  const std::vector<uint32_t> before = chain.bits();
  const std::unique_ptr<Graph> graph = recorded();
  stream->wait();
  EXPECT_EQ(chain.bits(), before);
  stream->replay(*graph);
  stream->wait();
  EXPECT_EQ(chain.bits(), expected);
}

TEST_F(GraphTest, AGraphHoldsCopiesToo) {
  const Buffer buffer(*device, 1000);
  const Shared<uint8_t> in(*device, random_bytes(1000, 4));
  const Shared<uint8_t> out(*device, 1000);
  stream->begin_recording();
  stream->upload(buffer.data(), in.data(), 1000);
  stream->download(out.data(), buffer.data(), 1000);
  const std::unique_ptr<Graph> graph = stream->end_recording();
  for (uint8_t turn = 0; turn < 3; ++turn) {
    in[7] = turn;
    stream->replay(*graph);
    stream->wait();
    EXPECT_EQ(out.values(), in.values());
  }
}

TEST_F(GraphTest, ThousandReplaysGiveTheSameBitsLong) {
  const std::vector<uint32_t> expected = queued_bits(5);
  chain.begin(5);
  const std::unique_ptr<Graph> graph = recorded();
  // The emulated device has nothing that could change from one replay to the next.
  const int replays = std::string(test_backend().name) == "emulated" ? 3 : 1000;
  for (int turn = 0; turn < replays; ++turn) {
    chain.begin(5);
    stream->replay(*graph);
    stream->wait();
    ASSERT_EQ(chain.bits(), expected) << "replay " << turn;
  }
}

TEST_F(GraphTest, OverlappingLaunchesGiveTheSameBits) {
  const std::vector<uint32_t> expected = queued_bits(6);
  setenv("OUTRIDER_GPU_OVERLAP", "0", 1);
  const std::unique_ptr<Device> plain = test_backend().open(0);
  unsetenv("OUTRIDER_GPU_OVERLAP");
  const std::unique_ptr<Stream> plain_stream = plain->make_stream(Priority::kNormal);
  Chain plain_chain(*plain);
  for (int turn = 0; turn < 5; ++turn) {
    plain_chain.begin(6);
    plain_chain.queue(ops, *plain_stream);
    plain_stream->wait();
    ASSERT_EQ(plain_chain.bits(), expected);
    ASSERT_EQ(queued_bits(6), expected);
  }
}

}  // namespace
}  // namespace outrider::gpu
