// Packed weights: sizes, refusal of impossible ones, filling in pieces, conversions; the 16-bit
// types bit by bit.
#include <bit>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

// The matrix as the kernels see it: the products with unit vectors, which are exact.
std::vector<float> unpack(const PackedMatrix& matrix) {
  Context ctx(1);
  const size_t n_in = static_cast<size_t>(matrix.n_in());
  const size_t n_out = static_cast<size_t>(matrix.n_out());
  std::vector<float> units(n_in * n_in, 0.0f);
  for (size_t i = 0; i < n_in; ++i) units[i * n_in + i] = 1.0f;
  std::vector<float> columns(n_in * n_out, kPoison);
  linear(ctx, columns.data(), units.data(), matrix.n_in(), matrix);
  std::vector<float> rows(n_in * n_out);
  for (size_t o = 0; o < n_out; ++o) {
    for (size_t i = 0; i < n_in; ++i) rows[o * n_in + i] = columns[i * n_out + o];
  }
  return rows;
}

TEST(PackedMatrix, FilledInPiecesFromStridedSources) {
  constexpr int64_t kOut = 150;
  constexpr int64_t kIn = 67;
  constexpr int64_t kStride = 90;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Weights source = random_weights(kOut * kStride, dtype, 60);
    PackedMatrix matrix(kOut, kIn, dtype);
    const auto fill = [&](int64_t begin, int64_t rows) {
      const std::byte* from = static_cast<const std::byte*>(source.data()) +
                              static_cast<size_t>(begin * kStride) * dtype_bytes(dtype);
      matrix.fill_rows(begin, from, rows, kStride, dtype);
    };
    fill(100, 50);
    fill(0, 1);
    fill(1, 99);
    std::thread([&] { fill(20, 7); }).join();
    const std::vector<float> unpacked = unpack(matrix);
    for (int64_t o = 0; o < kOut; ++o) {
      for (int64_t i = 0; i < kIn; ++i) {
        ASSERT_EQ(unpacked[static_cast<size_t>(o * kIn + i)],
                  source.floats[static_cast<size_t>(o * kStride + i)])
            << dtype_name(dtype) << ' ' << o << ' ' << i;
      }
    }
  }
}

TEST(PackedMatrix, ConvertsBetweenTypes) {
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Weights source = random_weights(70 * 9, from, 61);
      PackedMatrix matrix(70, 9, to);
      matrix.fill_rows(0, source.data(), 70, 9, from);
      const std::vector<float> unpacked = unpack(matrix);
      for (size_t i = 0; i < unpacked.size(); ++i) {
        const float value = source.floats[i];
        const float wanted = to == DType::kF32    ? value
                             : to == DType::kBF16 ? bf16_to_float(float_to_bf16(value))
                                                  : f16_to_float(float_to_f16(value));
        ASSERT_EQ(unpacked[i], wanted);
      }
    }
  }
}

// Wide enough for the vector kernels, at every remainder, from rows that begin anywhere.
TEST(PackedMatrix, EveryElementIsWhereReadRowLooks) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n_in : {31, 32, 33, 64, 100, 175}) {
      constexpr int64_t kOut = 150;
      const int64_t stride = n_in + 3;
      const Weights source = random_weights(static_cast<size_t>(kOut * stride), dtype, 62);
      PackedMatrix matrix(kOut, n_in, dtype);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 16}, {16, 70}, {70, 150}}) {
        const std::byte* from = static_cast<const std::byte*>(source.data()) +
                                static_cast<size_t>(begin * stride) * dtype_bytes(dtype);
        matrix.fill_rows(begin, from, end - begin, stride, dtype);
      }
      std::vector<float> row(static_cast<size_t>(n_in), kPoison);
      for (int64_t o = 0; o < kOut; ++o) {
        matrix.read_row(o, row.data());
        ASSERT_TRUE(same_bits(row.data(), source.floats.data() + o * stride, row.size()))
            << dtype_name(dtype) << ' ' << n_in << ' ' << o;
      }
    }
  }
}

TEST(PackedMatrix, RefusesWhatCannotBe) {
  EXPECT_THROW(PackedMatrix(-1, 4, DType::kF32), Error);
  EXPECT_THROW(PackedMatrix(4, -1, DType::kF32), Error);
  EXPECT_THROW(PackedMatrix(INT64_MAX, 4, DType::kF32), Error);
  EXPECT_THROW(PackedMatrix(4, INT64_MAX, DType::kBF16), Error);
  EXPECT_THROW(PackedMatrix(int64_t{1} << 40, int64_t{1} << 40, DType::kBF16), Error);
  EXPECT_THROW(PackedMatrix(int64_t{1} << 30, int64_t{1} << 20, DType::kBF16), Error);  // 2 PiB
  try {
    allocate_bytes(size_t{1} << 50);
    FAIL() << "a PiB was given";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1125899906842624"), std::string::npos)
        << error.what();
  }
}

TEST(AllocateBytes, GivesZeroedAlignedMemoryOfEverySize) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{100}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const AlignedBytes memory = allocate_bytes(size);
    ASSERT_NE(memory.get(), nullptr);
    EXPECT_EQ(std::bit_cast<uintptr_t>(memory.get()) % 64, 0u);
    for (size_t i = 0; i < size; i += 61) ASSERT_EQ(memory[i], std::byte{0});
    if (size > 0) memory[size - 1] = std::byte{1};
  }
}

TEST(Half, EveryF16ValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    const uint32_t exponent = (bits >> 10) & 31u;
    const double fraction = bits & 0x3FFu;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0);
      EXPECT_EQ(std::isinf(value), fraction == 0);
    } else {
      const double magnitude = exponent == 0
                                   ? std::ldexp(fraction, -24)
                                   : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
      ASSERT_EQ(double{value}, (bits & 0x8000u) != 0 ? -magnitude : magnitude) << bits;
      ASSERT_EQ(float_to_f16(value), bits);
    }
    EXPECT_EQ(std::signbit(value), (bits & 0x8000u) != 0);
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f), 0x3C00);             // half way: to even
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3C01);  // above half way
  EXPECT_EQ(float_to_f16(1.0f + 3 * 0x1p-11f), 0x3C02);         // half way: to even, up
  EXPECT_EQ(float_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0x0000);  // half of the smallest: to even
  EXPECT_EQ(float_to_f16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(float_to_f16(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(kPoison))));
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3F80);
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3F82);
  EXPECT_EQ(float_to_bf16(3.4e38f), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Half, EveryIsaReadsEveryF16ValueAlike) {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  PackedMatrix matrix(0x10000, 1, DType::kF16);
  matrix.fill_rows(0, all.data(), 0x10000, 1, DType::kF16);
  const float one = 1.0f;
  for (const Isa isa : all_isas()) {
    Context ctx(1, isa);
    std::vector<float> out(all.size(), 123.0f);
    linear(ctx, out.data(), &one, 1, matrix);
    for (size_t i = 0; i < all.size(); ++i) {
      const float wanted = f16_to_float(all[i]);
      ASSERT_TRUE(out[i] == wanted || (std::isnan(wanted) && std::isnan(out[i])))
          << isa_name(isa) << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace outrider::ops
