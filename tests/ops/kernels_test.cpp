// Choosing an instruction set, and the exponential all kernels share.
#include <bit>

#include "runtime/base/error.h"
#include "runtime/ops/cpu/kernel_choice.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

TEST(Isa, NamesRoundTripAndUnknownOnesAreRefused) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_from_name("auto"), best_isa());
  EXPECT_THROW(isa_from_name("AVX-512"), Error);
  EXPECT_THROW(isa_from_name(""), Error);
}

TEST(Isa, AContextHasWhatItWasAskedFor) {
  for (const Isa isa : all_isas()) {
    const Context ctx(2, isa);
    EXPECT_EQ(ctx.isa(), isa);
    EXPECT_EQ(ctx.num_threads(), 2);
  }
  if (best_isa() != Isa::kAvx512) {
    EXPECT_THROW(Context(1, Isa::kAvx512), Error);
  }
}

TEST(Exponential, IsWithinTwoTenMillionthsAndTheSameOnEveryIsa) {
  std::vector<float> x;
  for (float value = -86.9f; value < 88.7f; value += 0.00073f) x.push_back(value);
  std::vector<float> first;
  for (const Isa isa : all_isas()) {
    std::vector<float> y(x.size(), kPoison);
    cpu::kernels_of(isa).exponential(y.data(), x.data(), static_cast<int64_t>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double wanted = std::exp(double{x[i]});
      ASSERT_TRUE(std::isfinite(y[i])) << x[i];
      worst = std::max(worst, std::abs(y[i] - wanted) / wanted);
    }
    EXPECT_LE(worst, 2e-7) << isa_name(isa);
    if (first.empty()) first = y;
    EXPECT_TRUE(same_bits(y, first)) << isa_name(isa);
  }
}

TEST(Exponential, AtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0f, -0.0f, -inf, inf, kPoison, -200.0f, 88.8f, 1e30f, -1e30f, -103.0f};
  for (const Isa isa : all_isas()) {
    std::vector<float> y(x.size(), 5.0f);
    cpu::kernels_of(isa).exponential(y.data(), x.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], inf);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], 0.0f);
    EXPECT_EQ(y[6], inf);
    EXPECT_EQ(y[7], inf);
    EXPECT_EQ(y[8], 0.0f);
    EXPECT_LE(std::abs(y[9] - 1.4e-45f), 1.5e-45f);
  }
}

template <typename Element>
void expect_transposed(Isa isa, void (*pack)(Element*, const char* const*, int64_t)) {
  for (const int64_t count : {16, 32, 48, 128}) {
    // Rows a byte off any alignment, and a frame around what may be written.
    const std::vector<float> noise = random_floats(static_cast<size_t>(count) * 64, 7);
    const char* bytes = reinterpret_cast<const char*>(noise.data()) + 1;
    const char* rows[cpu::kPackRows];
    for (int lane = 0; lane < cpu::kPackRows; ++lane) {
      rows[lane] = bytes + lane * (count * static_cast<int64_t>(sizeof(Element)) + 3);
    }
    constexpr Element kFrame = 0x5A5A;
    std::vector<Element> out(static_cast<size_t>(count * cpu::kPanel) + 64, kFrame);
    Element* aligned = out.data();
    while (std::bit_cast<uintptr_t>(aligned) % 64 != 0) ++aligned;
    pack(aligned + cpu::kPackRows, rows, count);
    int64_t num_other = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t o = 0; o < cpu::kPanel; ++o) {
        Element wanted = kFrame;
        const int64_t lane = o - cpu::kPackRows;
        if (lane >= 0 && lane < cpu::kPackRows) {
          std::memcpy(
              &wanted, rows[lane] + i * static_cast<int64_t>(sizeof(Element)), sizeof(wanted));
          num_other += wanted != kFrame ? 1 : 0;
        }
        ASSERT_EQ(aligned[i * cpu::kPanel + o], wanted) << isa_name(isa) << ' ' << i << ' ' << o;
      }
    }
    EXPECT_GT(num_other, count * cpu::kPackRows / 2);
  }
}

TEST(Pack, EveryIsaTransposesAlike) {
  for (const Isa isa : all_isas()) {
    expect_transposed(isa, cpu::kernels_of(isa).pack_dwords);
    expect_transposed(isa, cpu::kernels_of(isa).pack_words);
  }
}

}  // namespace
}  // namespace outrider::ops
