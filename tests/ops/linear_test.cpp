// Matrix products against double precision, and their bits across rows, threads, tiles and
// instruction sets.
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Shape {
  int64_t n_out;
  int64_t n_in;
};
// Below, at and beyond panels of 64 and chunks of 256; odd inner sizes; one of each extreme.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {64, 16}, {65, 33}, {130, 257}, {200, 300}, {48, 515}};

std::vector<double> reference(const Weights& w,
                              const std::vector<float>& in,
                              const Shape& shape,
                              int64_t rows,
                              const float* bias) {
  std::vector<double> out(static_cast<size_t>(rows * shape.n_out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < shape.n_out; ++o) {
      double sum = bias != nullptr ? bias[o] : 0.0;
      for (int64_t i = 0; i < shape.n_in; ++i) {
        sum += double{in[static_cast<size_t>(r * shape.n_in + i)]} *
               w.floats[static_cast<size_t>(o * shape.n_in + i)];
      }
      out[static_cast<size_t>(r * shape.n_out + o)] = sum;
    }
  }
  return out;
}

std::vector<float> run_linear(Context& ctx,
                              const PackedMatrix& matrix,
                              const float* in,
                              int64_t rows,
                              const float* bias = nullptr) {
  std::vector<float> out(static_cast<size_t>(rows * matrix.n_out()), kPoison);
  linear(ctx, out.data(), in, rows, matrix, {bias});
  return out;
}

TEST(Linear, EqualsDoublePrecisionOnEveryIsaAndType) {
  for (const Isa isa : all_isas()) {
    Context ctx(2, isa);
    for (const DType dtype : kAllTypes) {
      for (const Shape& shape : kShapes) {
        const Weights w = random_weights(static_cast<size_t>(shape.n_out * shape.n_in), dtype, 1);
        const PackedMatrix matrix = pack(w, shape.n_out, shape.n_in);
        const std::vector<float> in = random_floats(static_cast<size_t>(9 * shape.n_in), 2);
        const std::vector<float> bias = random_floats(static_cast<size_t>(shape.n_out), 3);
        for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
          const double error =
              error_of(run_linear(ctx, matrix, in.data(), 9, b), reference(w, in, shape, 9, b));
          EXPECT_LE(error, 2e-6) << isa_name(isa) << ' ' << dtype_name(dtype) << ' ' << shape.n_out
                                 << 'x' << shape.n_in;
        }
      }
    }
  }
}

TEST(Linear, BitsOfARowDoNotDependOnRowsThreadsOrIsa) {
  const Shape shape{150, 517};
  constexpr int64_t kMostRows = 40;
  for (const DType dtype : kAllTypes) {
    const PackedMatrix matrix =
        pack(random_weights(static_cast<size_t>(shape.n_out * shape.n_in), dtype, 4),
             shape.n_out,
             shape.n_in);
    const std::vector<float> in = random_floats(static_cast<size_t>(kMostRows * shape.n_in), 5);
    std::vector<float> expected;
    Context scalar(1, Isa::kScalar);
    for (int64_t r = 0; r < kMostRows; ++r) {
      const std::vector<float> row = run_linear(scalar, matrix, in.data() + r * shape.n_in, 1);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    for (const Isa isa : all_isas()) {
      for (const int threads : {1, 2, 3}) {
        Context ctx(threads, isa);
        for (int64_t rows = 1; rows <= kMostRows; rows += isa == Isa::kScalar ? 13 : 1) {
          const std::vector<float> out = run_linear(ctx, matrix, in.data(), rows);
          ASSERT_TRUE(same_bits(out.data(), expected.data(), out.size()))
              << isa_name(isa) << ' ' << dtype_name(dtype) << " threads " << threads << " rows "
              << rows;
        }
      }
    }
  }
}

TEST(Linear, MayBePartOfWiderRows) {
  const Shape shape{150, 96};
  constexpr int64_t kStride = 200;
  const Weights w = random_weights(static_cast<size_t>(shape.n_out * shape.n_in), DType::kBF16, 21);
  PackedMatrix quantized(shape.n_out, shape.n_in, QuantFormat{8, 32});
  quantized.fill_rows(0, w.data(), shape.n_out, shape.n_in, DType::kBF16);
  const PackedMatrix plain = pack(w, shape.n_out, shape.n_in);
  const std::vector<float> bias = random_floats(static_cast<size_t>(shape.n_out), 22);
  Context ctx(2);
  for (const PackedMatrix* matrix : {&plain, static_cast<const PackedMatrix*>(&quantized)}) {
    for (const int64_t rows : {1, 7, 300}) {
      const std::vector<float> in = random_floats(static_cast<size_t>(rows * shape.n_in), 23);
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        const std::vector<float> narrow = run_linear(ctx, *matrix, in.data(), rows, b);
        std::vector<float> expected(static_cast<size_t>(rows * kStride), -3.0f);
        for (int64_t r = 0; r < rows; ++r)
          std::copy_n(
              &narrow[static_cast<size_t>(r * shape.n_out)], shape.n_out, &expected[r * kStride]);
        std::vector<float> out(expected.size(), -3.0f);
        linear(ctx, out.data(), in.data(), rows, *matrix, {b, {}, kStride});
        EXPECT_TRUE(same_bits(out, expected)) << matrix->is_quantized() << " rows " << rows;
      }
    }
  }
}

TEST(Linear, ManyRowsAreTiledWithTheSameBits) {
  const Shape shape{70, 300};
  constexpr int64_t kRows = 300;
  const PackedMatrix matrix =
      pack(random_weights(static_cast<size_t>(shape.n_out * shape.n_in), DType::kBF16, 6),
           shape.n_out,
           shape.n_in);
  const std::vector<float> in = random_floats(static_cast<size_t>(kRows * shape.n_in), 7);
  Context ctx(2);
  const std::vector<float> all = run_linear(ctx, matrix, in.data(), kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    const std::vector<float> row = run_linear(ctx, matrix, in.data() + r * shape.n_in, 1);
    ASSERT_TRUE(same_bits(all.data() + r * shape.n_out, row.data(), row.size())) << r;
  }
}

TEST(Linear, NanAndInfStayInTheirRowAndOutput) {
  const Shape shape{100, 37};
  Weights w = random_weights(static_cast<size_t>(shape.n_out * shape.n_in), DType::kF32, 8);
  w.floats[5 * 37 + 36] = std::numeric_limits<float>::infinity();
  const PackedMatrix matrix = pack(w, shape.n_out, shape.n_in);
  std::vector<float> in = random_floats(static_cast<size_t>(7 * shape.n_in), 9);
  in[3 * 37 + 36] = kPoison;
  for (const Isa isa : all_isas()) {
    Context ctx(1, isa);
    const std::vector<float> out = run_linear(ctx, matrix, in.data(), 7);
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t o = 0; o < shape.n_out; ++o) {
        const float value = out[static_cast<size_t>(r * shape.n_out + o)];
        EXPECT_EQ(std::isnan(value), r == 3) << r << ' ' << o;
        if (r != 3) {
          EXPECT_EQ(std::isinf(value), o == 5) << r << ' ' << o;
        }
      }
    }
  }
}

TEST(Linear, NothingBesideTheInputIsRead) {
  // The last row ends at the end of a block that poison surrounds: an odd inner size must not reach
  // beyond it.
  const Shape shape{64, 5};
  const Weights w = random_weights(static_cast<size_t>(shape.n_out * shape.n_in), DType::kBF16, 10);
  const PackedMatrix matrix = pack(w, shape.n_out, shape.n_in);
  const std::vector<float> values = random_floats(10, 11);
  std::vector<float> in(12, kPoison);
  std::copy_n(values.begin(), 10, in.begin() + 1);
  for (const Isa isa : all_isas()) {
    Context ctx(1, isa);
    const std::vector<float> out = run_linear(ctx, matrix, in.data() + 1, 2);
    EXPECT_LE(error_of(out, reference(w, values, shape, 2, nullptr)), 2e-6);
  }
}

// The sums of a sliced product, written apart from the code that is tested: one product per slice
// from a matrix of its own, then the tree.
std::vector<float> sum_of_slices(Context& ctx,
                                 const Weights& w,
                                 const Shape& shape,
                                 const std::vector<float>& in,
                                 int64_t rows,
                                 const float* bias,
                                 const std::vector<int64_t>& ends) {
  std::vector<std::vector<float>> level;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    PackedMatrix part(shape.n_out, end - begin, w.dtype);
    const auto* columns =
        static_cast<const std::byte*>(w.data()) + static_cast<size_t>(begin) * dtype_bytes(w.dtype);
    part.fill_rows(0, columns, shape.n_out, shape.n_in, w.dtype);
    std::vector<float> part_in;
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = in.data() + r * shape.n_in;
      part_in.insert(part_in.end(), row + begin, row + end);
    }
    level.push_back(run_linear(ctx, part, part_in.data(), rows, begin == 0 ? bias : nullptr));
    begin = end;
  }
  while (level.size() > 1) {
    std::vector<std::vector<float>> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) {
      std::vector<float> sum = level[i];
      for (size_t j = 0; j < sum.size(); ++j) sum[j] = level[i][j] + level[i + 1][j];
      next.push_back(sum);
    }
    level = next;
  }
  return level[0];
}

TEST(Linear, SlicesAreSummedByThemselvesAndFoldedInATree) {
  const Shape shape{130, 1045};
  const std::vector<std::vector<int64_t>> cuts = {
      {1045},
      {516, 1045},
      {300, 302, 302, 1045},
      {130, 260, 400, 520, 660, 780, 920, 1045},
      {2, 4, 6, 8, 264, 1045, 1045, 1045},
  };
  for (const DType dtype : kAllTypes) {
    const Weights w = random_weights(static_cast<size_t>(shape.n_out * shape.n_in), dtype, 12);
    const PackedMatrix matrix = pack(w, shape.n_out, shape.n_in);
    const std::vector<float> bias = random_floats(static_cast<size_t>(shape.n_out), 13);
    for (const int64_t rows : {1, 5, 33, 130}) {
      const std::vector<float> in = random_floats(static_cast<size_t>(rows * shape.n_in), 14);
      Context alone(1);
      const std::vector<float> whole = run_linear(alone, matrix, in.data(), rows, bias.data());
      for (const auto& ends : cuts) {
        const auto expected = sum_of_slices(alone, w, shape, in, rows, bias.data(), ends);
        EXPECT_EQ(same_bits(expected.data(), whole.data(), whole.size()), ends.size() == 1);
        for (const Isa isa : all_isas()) {
          Context ctx(isa == Isa::kAvx2 ? 3 : 2, isa);
          std::vector<float> out(whole.size(), kPoison);
          linear(ctx, out.data(), in.data(), rows, matrix, {bias.data(), ends});
          ASSERT_TRUE(same_bits(out.data(), expected.data(), out.size()))
              << isa_name(isa) << ' ' << dtype_name(dtype) << " rows " << rows << ", "
              << ends.size() << " slices";
        }
      }
    }
  }
}

TEST(LinearDeath, SlicesThatDoNotFitAreStopped) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Context ctx(1);
  const PackedMatrix matrix(64, 16, DType::kF32);
  const std::vector<float> in(16);
  std::vector<float> out(64);
  const std::vector<std::vector<int64_t>> wrong = {
      {8}, {17}, {5, 16}, {10, 8, 16}, {-2, 16}, std::vector<int64_t>(9, 16)};
  for (const auto& ends : wrong) {
    EXPECT_DEATH(linear(ctx, out.data(), in.data(), 1, matrix, {nullptr, ends}), "internal error");
  }
}

TEST(Linear, NoRowsAndNoOutputsAreNothing) {
  Context ctx(2);
  const PackedMatrix matrix(64, 16, DType::kF32);
  float untouched = 7.0f;
  linear(ctx, &untouched, nullptr, 0, matrix);
  linear(ctx, &untouched, nullptr, 1, PackedMatrix(0, 16, DType::kF32));
  EXPECT_EQ(untouched, 7.0f);
}

}  // namespace
}  // namespace outrider::ops
