// Embedding, norms, rotary positions, activation, sums and copies against double precision, and
// their bits across threads, rows and instruction sets.
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

constexpr int64_t kSizes[] = {1, 15, 16, 17, 64, 1000, 2048};

template <typename Body>
void on_every_context(const Body& body) {
  for (const Isa isa : all_isas()) {
    for (const int threads : {1, 2, 3}) {
      Context ctx(threads, isa);
      body(ctx);
    }
  }
}

TEST(Elementwise, RmsNorm) {
  constexpr int64_t kRows = 23;
  for (const int64_t n : kSizes) {
    const size_t size = static_cast<size_t>(kRows * n);
    const std::vector<float> x = random_floats(size, 40);
    const std::vector<float> weight = random_floats(static_cast<size_t>(n), 41);
    std::vector<double> expected(size);
    for (int64_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i)
        squares += std::pow(double{x[static_cast<size_t>(r * n + i)]}, 2);
      for (int64_t i = 0; i < n; ++i) {
        const size_t at = static_cast<size_t>(r * n + i);
        expected[at] = x[at] / std::sqrt(squares / static_cast<double>(n) + 1e-5) *
                       weight[static_cast<size_t>(i)];
      }
    }
    std::vector<float> first;
    on_every_context([&](Context& ctx) {
      std::vector<float> out(size, kPoison);
      rms_norm(ctx, out.data(), x.data(), weight.data(), kRows, n, 1e-5f);
      EXPECT_LE(error_of(out, expected), 1e-6);
      std::vector<float> in_place = x;
      rms_norm(ctx, in_place.data(), in_place.data(), weight.data(), kRows, n, 1e-5f);
      EXPECT_TRUE(same_bits(out, in_place));
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << n;
    });
  }
}

TEST(Elementwise, RmsNormHeadsLeavesTheRestOfTheRow) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kStride = 70;
  constexpr int64_t kHeads = 3;
  constexpr int64_t kHeadDim = 20;
  const std::vector<float> before = random_floats(kRows * kStride, 42);
  const std::vector<float> weight = random_floats(kHeadDim, 43);
  on_every_context([&](Context& ctx) {
    std::vector<float> x = before;
    rms_norm_heads(ctx, {x.data(), kRows, kStride, kHeads, kHeadDim}, weight.data(), 1e-6f);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t h = 0; h < kHeads; ++h) {
        std::vector<float> head(kHeadDim, kPoison);
        const int64_t at = r * kStride + h * kHeadDim;
        rms_norm(ctx, head.data(), before.data() + at, weight.data(), 1, kHeadDim, 1e-6f);
        EXPECT_TRUE(same_bits(head.data(), x.data() + at, kHeadDim));
      }
      const int64_t rest = r * kStride + kHeads * kHeadDim;
      EXPECT_TRUE(same_bits(before.data() + rest, x.data() + rest, kStride - kHeads * kHeadDim));
    }
  });
}

TEST(Elementwise, RopeRotatesHalvesByThePositionAndLeavesTheRest) {
  constexpr int64_t kHeads = 3;
  constexpr int64_t kHeadDim = 24;
  constexpr int64_t kStride = 80;
  const std::vector<float> inv_freq = {
      1.0f, 0.5f, 0.1f, 0.01f, 0.001f, 0.0001f, 0.3f, 0.7f};  // rotary 16 of 24
  const std::vector<int32_t> positions = {0, 1, 7, 2047, 100000};
  const std::vector<float> before = random_floats(positions.size() * kStride, 44);
  std::vector<double> expected(before.begin(), before.end());
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t i = 0; i < 8; ++i) {
        const double angle =
            static_cast<float>(positions[r]) * inv_freq[i];  // fp32 angle, exact cos and sin
        const size_t at = r * kStride + h * kHeadDim + i;
        expected[at] = 1.5 * (before[at] * std::cos(angle) - before[at + 8] * std::sin(angle));
        expected[at + 8] = 1.5 * (before[at + 8] * std::cos(angle) + before[at] * std::sin(angle));
      }
    }
  }
  std::vector<float> first;
  on_every_context([&](Context& ctx) {
    std::vector<float> x = before;
    std::vector<float> angles(positions.size() * 16, kPoison);
    rope_angles(ctx, angles.data(), positions, {inv_freq, 1.5f});
    rope(ctx, {x.data(), std::ssize(positions), kStride, kHeads, kHeadDim}, {angles.data(), 16});
    EXPECT_LE(error_of(x, expected), 1e-6);
    if (first.empty()) first = x;
    EXPECT_TRUE(same_bits(x, first));
  });
}

// All dims of a head turn, more than a vector of them, so that nothing is read beyond.
TEST(Elementwise, RopeOfManyHeadsAndRowsIsThatOfEach) {
  for (const size_t half : {1, 5, 16, 32, 37, 64}) {
    const auto head_dim = static_cast<int64_t>(2 * half);
    std::vector<float> inv_freq(half);
    for (size_t i = 0; i < half; ++i) inv_freq[i] = 1.0f / static_cast<float>(i + 1);
    std::vector<int32_t> positions(70);
    for (size_t r = 0; r < positions.size(); ++r) positions[r] = static_cast<int32_t>(3 * r);
    const int64_t heads = 9;
    const size_t width = static_cast<size_t>(heads * head_dim);
    const std::vector<float> before = random_floats(positions.size() * width, 49);
    std::vector<float> expected = before;
    for (size_t at = 0; at < expected.size(); at += static_cast<size_t>(head_dim)) {
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[at / width]) * inv_freq[i];
        const float first = before[at + i];
        const float second = before[at + half + i];
        const float cosine = std::cos(angle) * 0.5f;
        const float sine = std::sin(angle) * 0.5f;
        expected[at + i] = first * cosine - second * sine;
        expected[at + half + i] = second * cosine + first * sine;
      }
    }
    on_every_context([&](Context& ctx) {
      std::vector<float> x = before;
      std::vector<float> angles(positions.size() * 2 * half, kPoison);
      const HeadRows all = {x.data(), std::ssize(positions), heads * head_dim, heads, head_dim};
      rope_angles(ctx, angles.data(), positions, {inv_freq, 0.5f});
      rope(ctx, all, {angles.data(), head_dim});
      EXPECT_TRUE(same_bits(x, expected)) << half;
    });
  }
}

TEST(Elementwise, AddRmsNormIsAddThenRmsNorm) {
  for (const int64_t n : kSizes) {
    for (const int64_t rows : {1, 3, 40}) {
      const auto size = static_cast<size_t>(rows * n);
      const std::vector<float> x = random_floats(size, 60);
      const std::vector<float> y = random_floats(size, 61);
      const std::vector<float> weight = random_floats(static_cast<size_t>(n), 62);
      on_every_context([&](Context& ctx) {
        std::vector<float> sum = x;
        std::vector<float> expected(size, kPoison);
        for (size_t i = 0; i < size; ++i) sum[i] += y[i];
        rms_norm(ctx, expected.data(), sum.data(), weight.data(), rows, n, 1e-5f);
        std::vector<float> stream = x;
        std::vector<float> out(size, kPoison);
        add_rms_norm(ctx, out.data(), stream.data(), y.data(), weight.data(), rows, n, 1e-5f);
        EXPECT_TRUE(same_bits(stream, sum));
        EXPECT_TRUE(same_bits(out, expected));
      });
    }
  }
}

TEST(Elementwise, SiluMul) {
  for (const int64_t n : kSizes) {
    constexpr int64_t kRows = 9;
    std::vector<float> in = random_floats(static_cast<size_t>(kRows * 2 * n), 45);
    for (size_t i = 0; i < in.size(); ++i) in[i] *= i % 3 == 0 ? 20.0f : 3.0f;
    std::vector<double> expected(static_cast<size_t>(kRows * n));
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const double gate = in[static_cast<size_t>(r * 2 * n + i)];
        expected[static_cast<size_t>(r * n + i)] =
            gate / (1 + std::exp(-gate)) * in[static_cast<size_t>(r * 2 * n + n + i)];
      }
    }
    std::vector<float> first;
    on_every_context([&](Context& ctx) {
      std::vector<float> out(static_cast<size_t>(kRows * n), kPoison);
      activate_mul(ctx, out.data(), in.data(), kRows, n, ActivationKind::kSilu);
      EXPECT_LE(error_of(out, expected), 5e-7);
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(out, first)) << n;
    });
  }
}

TEST(Elementwise, SiluMulAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> in = {
      -1e30f, -100.0f, 100.0f, kPoison, inf, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  on_every_context([&](Context& ctx) {
    std::vector<float> out(5, kPoison);
    activate_mul(ctx, out.data(), in.data(), 1, 5, ActivationKind::kSilu);
    EXPECT_EQ(out[0], 0.0f);
    EXPECT_LE(std::abs(out[1]), 1e-37f);
    EXPECT_EQ(out[2], 100.0f);
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_EQ(out[4], inf);
  });
}

TEST(Elementwise, ClampedSwiglu) {
  constexpr size_t kCount = 10'000;  // for several threads
  const ClampedSwiglu of = {.alpha = 1.702f, .limit = 0.7f};
  std::vector<float> pairs = random_floats(2 * kCount, 46);
  for (size_t i = 0; i < 100; ++i) pairs[i] *= 1e4f;
  std::vector<double> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const double gate = std::min(pairs[2 * i], of.limit);
    const double up = std::clamp(pairs[2 * i + 1], -of.limit, of.limit);
    expected[i] = (up + 1) * gate / (1 + std::exp(-of.alpha * gate));
  }
  std::vector<float> first;
  on_every_context([&](Context& ctx) {
    std::vector<float> out(kCount, kPoison);
    clamped_swiglu(ctx, out.data(), pairs.data(), kCount, of);
    EXPECT_LE(error_of(out, expected), 1e-6);
    if (first.empty()) first = out;
    EXPECT_TRUE(same_bits(out, first));
    const float spoiled[] = {kPoison, 1.0f, 1.0f, kPoison};
    clamped_swiglu(ctx, out.data(), spoiled, 2, of);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
  });
}

TEST(Elementwise, MultiplyRows) {
  constexpr int64_t kRows = 300, kStride = 150, kSize = 120;
  const std::vector<float> x = random_floats(kRows * kSize, 90);
  std::vector<float> y = random_floats(kRows * kStride, 91);
  on_every_context([&](Context& ctx) {
    std::vector<float> out = x;
    multiply_rows(ctx, out.data(), {y.data() + 7, kRows, kStride, 1, kSize});
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < kSize; ++i) {
        const auto at = static_cast<size_t>(r * kSize + i);
        ASSERT_EQ(out[at], x[at] * y[static_cast<size_t>(r * kStride + 7 + i)]);
      }
    }
  });
}

TEST(Elementwise, EmbedLooksUpOwnRowsAndZeroesOthers) {
  constexpr int64_t kRows = 11;
  constexpr int64_t kWidth = 37;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Weights table = random_weights(kRows * kWidth, dtype, 46);
    const std::vector<int32_t> ids = {100, 110, 99, 111, 105, 0, -1, 105, 2147483647, -2147483647};
    on_every_context([&](Context& ctx) {
      std::vector<float> out(ids.size() * kWidth, kPoison);
      embed(ctx,
            out.data(),
            ids,
            {static_cast<const std::byte*>(table.data()), dtype, kRows, kWidth, 100});
      for (size_t r = 0; r < ids.size(); ++r) {
        const bool own = ids[r] >= 100 && ids[r] <= 110;
        for (size_t i = 0; i < kWidth; ++i) {
          const float wanted =
              own ? table.floats[static_cast<size_t>(ids[r] - 100) * kWidth + i] : 0.0f;
          EXPECT_EQ(out[r * kWidth + i], wanted) << r << ' ' << i;
        }
      }
    });
  }
}

// A tied head: the rows come out of the packed matrix, with the same bits.
TEST(Elementwise, EmbedReadsAPackedTableAlike) {
  constexpr int64_t kRows = 131;
  constexpr int64_t kWidth = 77;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Weights table = random_weights(kRows * kWidth, dtype, 47);
    table.floats[5] = -0.0f;
    if (dtype != DType::kF32) table.halves[5] = 0x8000;
    const PackedMatrix packed = pack(table, kRows, kWidth);
    const std::vector<int32_t> ids = {100, 230, 99, 231, 163, 164, 0, -1};
    on_every_context([&](Context& ctx) {
      std::vector<float> dense(ids.size() * kWidth, kPoison);
      std::vector<float> out(ids.size() * kWidth, kPoison);
      const auto* data = static_cast<const std::byte*>(table.data());
      embed(ctx, dense.data(), ids, {data, dtype, kRows, kWidth, 100});
      embed(ctx, out.data(), ids, {nullptr, dtype, kRows, kWidth, 100, &packed});
      EXPECT_TRUE(same_bits(out, dense)) << dtype_name(dtype);
      EXPECT_NE(out[0], 0.0f);
      EXPECT_FALSE(std::signbit(out[5]));
    });
  }
}

// As if the zeros of other ranks' shards had been added.
TEST(Elementwise, EmbedTakesTheSignOfZeros) {
  constexpr uint16_t kHalves[] = {0x8000, 0x0000, 0xBF80, 0x8000};  // bf16 and f16 alike: -0, 0, ..
  constexpr float kFloats[] = {-0.0f, 0.0f, -1.0f, -0.0f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const void* table = dtype == DType::kF32 ? static_cast<const void*>(kFloats) : kHalves;
    on_every_context([&](Context& ctx) {
      std::vector<float> out(4, kPoison);
      const std::vector<int32_t> ids = {0};
      embed(ctx, out.data(), ids, {static_cast<const std::byte*>(table), dtype, 1, 4, 0});
      for (const int i : {0, 1, 3}) {
        EXPECT_TRUE(out[static_cast<size_t>(i)] == 0.0f &&
                    !std::signbit(out[static_cast<size_t>(i)]))
            << dtype_name(dtype) << ' ' << i;
      }
      EXPECT_LT(out[2], -0.9f);
    });
  }
}

TEST(Elementwise, GatherRows) {
  const size_t count = 50001;
  const std::vector<float> x = random_floats(count, 47);
  on_every_context([&](Context& ctx) {
    std::vector<int32_t> ids(400);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 37) % 500);
    std::vector<float> out(ids.size() * 100, kPoison);
    gather_rows(ctx, out.data(), x.data(), ids, 100);
    for (size_t r = 0; r < ids.size(); ++r) {
      ASSERT_TRUE(
          same_bits(out.data() + r * 100, x.data() + static_cast<size_t>(ids[r]) * 100, 100));
    }
  });
}

TEST(Elementwise, GatherRowsInPlace) {
  const std::vector<float> x = random_floats(1000 * 100, 48);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 1000; ++i) {
    if (i % 3 != 1) ids.push_back(i);
  }
  on_every_context([&](Context& ctx) {
    std::vector<float> out = x;
    gather_rows(ctx, out.data(), out.data(), ids, 100);
    for (size_t r = 0; r < ids.size(); ++r) {
      ASSERT_TRUE(
          same_bits(out.data() + r * 100, x.data() + static_cast<size_t>(ids[r]) * 100, 100));
    }
  });
}

TEST(Elementwise, CopyHeadsTurnsRowsAndHeadsOver) {
  constexpr int64_t kRows = 150;
  constexpr int64_t kHeads = 5;
  constexpr int64_t kHeadDim = 48;
  constexpr int64_t kStride = kHeads * kHeadDim + 7;
  const std::vector<float> x = random_floats(kRows * kStride, 44);
  on_every_context([&](Context& ctx) {
    std::vector<float> out(kRows * kHeads * kHeadDim, kPoison);
    copy_heads(ctx,
               {out.data(), kHeadDim, kRows * kHeadDim},
               {x.data() + 3, kStride, kHeadDim},
               {kRows, kHeads, kHeadDim});
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const float* from = x.data() + 3 + r * kStride + h * kHeadDim;
        EXPECT_TRUE(same_bits(out.data() + (h * kRows + r) * kHeadDim, from, kHeadDim));
      }
    }
  });
}

TEST(Elementwise, NanStaysInItsRow) {
  std::vector<float> x = random_floats(3 * 40, 49);
  x[45] = kPoison;
  const std::vector<float> weight = random_floats(40, 50);
  on_every_context([&](Context& ctx) {
    std::vector<float> out(x.size(), 0.0f);
    rms_norm(ctx, out.data(), x.data(), weight.data(), 3, 40, 1e-5f);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 40 == 1);
  });
}

}  // namespace
}  // namespace outrider::ops
