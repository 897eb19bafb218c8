// Random weights: by seed and index alone.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/ops/gpu/float8.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {
namespace {

class FillRandom : public GpuTest {
 protected:
  std::vector<uint8_t> fill(Type type, size_t count, uint64_t seed, float scale) {
    DeviceArray<uint8_t> out(*device, (count + 1) * type_bytes(type));
    out.poison();
    ops.fill_random(*stream, {out.device(), type, count, seed, scale});
    stream->wait();
    out.pull();
    for (size_t i = count * type_bytes(type); i < out.size(); ++i) EXPECT_EQ(out[i], 0xff);
    return {out.host(), out.host() + out.size()};
  }
};

TEST_F(FillRandom, IsUniformAndTheSameForEveryType) {
  constexpr size_t kCount = 100'003;
  constexpr float kScale = 0.75f;
  const std::vector<uint8_t> wide = fill(Type::kF32, kCount, 7, kScale);
  const auto* values = reinterpret_cast<const float*>(wide.data());
  double sum = 0;
  double squares = 0;
  int beyond = 0;
  for (size_t i = 0; i < kCount; ++i) {
    beyond += !(std::fabs(values[i]) <= kScale);
    sum += values[i];
    squares += std::pow(values[i], 2);
  }
  EXPECT_EQ(beyond, 0);
  EXPECT_TRUE(std::fabs(sum / kCount) <= 0.01);
  EXPECT_TRUE(std::fabs(squares / kCount - kScale * kScale / 3) <= 0.005);
  for (const Type type : {Type::kBF16, Type::kF16, Type::kE4M3}) {
    const std::vector<uint8_t> bytes = fill(type, kCount, 7, kScale);
    int different = 0;
    for (size_t i = 0; i < kCount; ++i) {
      different += type == Type::kE4M3 ? bytes[i] != float_to_e4m3(values[i])
                                       : widen(type, bytes.data(), i) != rounded(values[i], type);
    }
    EXPECT_EQ(different, 0);
  }
}

TEST_F(FillRandom, AnElementDependsOnSeedAndIndexAlone) {
  const std::vector<uint8_t> many = fill(Type::kF32, 5000, 9, 1.0f);
  const std::vector<uint8_t> few = fill(Type::kF32, 30, 9, 1.0f);
  EXPECT_TRUE(std::equal(few.begin(), few.begin() + 30 * 4, many.begin()));
  EXPECT_EQ(fill(Type::kF32, 0, 9, 1.0f).size(), 4u);
  const std::vector<uint8_t> other = fill(Type::kF32, 30, uint64_t{9} | uint64_t{1} << 40, 1.0f);
  EXPECT_FALSE(std::equal(other.begin(), other.begin() + 30 * 4, many.begin()));
  const auto* values = reinterpret_cast<const float*>(many.data());
  EXPECT_NE(values[0], values[4]);
}

}  // namespace
}  // namespace outrider::gpu
