// Products with quantised weights: against exact integer sums, their bits on every kernel table and
// for any rows, threads, slices and shards, and what NaN does.
#include <thread>
#include <tuple>

#include "runtime/ops/cpu/int8/int8_choice.h"
#include "runtime/ops/cpu/int8/quantized_linear.h"
#include "runtime/ops/half.h"
#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

struct Shape {
  int64_t n_out;
  int64_t n_in;
};
// Below, at and beyond panels of 64, blocks of 8, groups; odd inner sizes.
constexpr Shape kShapes[] = {
    {1, 1}, {3, 7}, {64, 8}, {65, 33}, {130, 257}, {200, 384}, {48, 515}, {70, 130}};
constexpr auto kHalves = QuantScales::kFloat16;
constexpr auto kSupers = QuantScales::kSuperBlocks;
constexpr auto kPowers = QuantScales::kPowers;
constexpr auto kFloats = QuantScales::kFloat32;
constexpr auto kE2m1 = QuantCodes::kE2m1;
constexpr auto kNonLinear = QuantCodes::kNonLinear;
constexpr QuantFormat kFormats[] = {
    {8, 16}, {8, 32}, {8, 64}, {8, 128}, {8, 256}, {8, 0}, {4, 32}, {4, 64}, {4, 128}, {4, 0}};
// Besides them those with offsets, which no floats are rounded to: they come from files.
constexpr QuantFormat kFileFormats[] = {{8, 16},
                                        {8, 32},
                                        {8, 64},
                                        {8, 128},
                                        {8, 256},
                                        {8, 0},
                                        {8, 16, true},
                                        {4, 32},
                                        {4, 64},
                                        {4, 128},
                                        {4, 0},
                                        {8, 32, true},
                                        {4, 16, true},
                                        {4, 32, true},
                                        {8, 32, false, kHalves},
                                        {8, 128, true, kHalves},
                                        {4, 32, false, kHalves},
                                        {4, 128, false, kHalves},
                                        {4, 32, true, kHalves},
                                        {8, 16, false, kSupers},
                                        {8, 32, true, kSupers},
                                        {4, 16, false, kSupers},
                                        {4, 32, true, kSupers},
                                        {4, 32, false, kPowers, kE2m1},
                                        {4, 0, false, kPowers, kE2m1},
                                        {4, 32, false, kPowers},
                                        {4, 32, false, kHalves, kNonLinear},
                                        {4, 32, false, kSupers, kNonLinear},
                                        {4, 64, false, kFloats, kNonLinear},
                                        {6, 32, false, kHalves},
                                        {6, 32, true, kHalves},
                                        {6, 16, false, kSupers},
                                        {6, 32, true, kSupers},
                                        {6, 0},
                                        {6, 16, true}};

std::string name_of(const QuantFormat& format) {
  return std::to_string(format.bits) + "-bit group " + std::to_string(format.group_size) +
         (format.has_offsets ? " offsets" : "") +
         (format.scales == kHalves   ? " float16"
          : format.scales == kPowers ? " powers"
          : format.scales == kSupers ? " super-blocks"
                                     : "") +
         (format.codes == kE2m1        ? " e2m1"
          : format.codes == kNonLinear ? " non-linear"
                                       : "");
}

// Integers, scales and zero points of a matrix, as a file would have them.
struct IntegerWeights {
  Shape shape;
  QuantFormat format;
  int64_t num_groups = 0;
  std::vector<int> values;  // [n_out, n_in], as stored: 8-bit and 6-bit signed, 4-bit unsigned
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<float> offsets;
  // With super-blocks: scale = super_scales * steps.
  int64_t num_supers = 0;
  std::vector<float> steps;
  std::vector<float> offset_steps;
  std::vector<float> super_scales;
  std::vector<float> super_offsets;

  int64_t group_of(int64_t i) const { return format.group_size == 0 ? 0 : i / format.group_size; }
  int centred(int64_t o, int64_t i) const {
    constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    constexpr int kSteps[] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const int value = values[static_cast<size_t>(o * shape.n_in + i)];
    if (format.codes == kE2m1) return kTwice[value];
    if (format.codes == kNonLinear) return kSteps[value];
    const int zero = format.bits != 4 || format.has_offsets ? 0 : zeros[at(o, group_of(i))];
    return value - zero;
  }
  float offset(int64_t o, int64_t i) const { return offsets[at(o, group_of(i))]; }
  float scale(int64_t o, int64_t i) const { return scales[at(o, group_of(i))]; }
  size_t at(int64_t o, int64_t group) const { return static_cast<size_t>(o * num_groups + group); }
};

float as_half(float value) { return f16_to_float(float_to_f16(value)); }

// Scales that the format can hold.
void keep_exactly(IntegerWeights& w, std::mt19937& generator) {
  if (!w.format.has_zero_points()) std::fill(w.zeros.begin(), w.zeros.end(), 8);
  if (w.format.scales == kHalves) {
    for (float& scale : w.scales) scale = as_half(scale);
    for (float& offset : w.offsets) offset = as_half(offset);
  }
  if (w.format.scales == kPowers) {
    for (float& scale : w.scales) scale = std::exp2(std::round(std::log2(scale)));
    w.scales[0] = 0.0f;
  }
  if (w.format.scales != kSupers) return;
  w.num_supers = (w.shape.n_in + kQuantSuperBlock - 1) / kQuantSuperBlock;
  const int64_t per_super = kQuantSuperBlock / w.format.group_size;
  for (int64_t o = 0; o < w.shape.n_out; ++o) {
    for (int64_t s = 0; s < w.num_supers; ++s) {
      w.super_scales.push_back(as_half(0.0001f + static_cast<float>(generator() >> 16) * 1e-9f));
      w.super_offsets.push_back(as_half(static_cast<float>(generator() >> 16) * -1e-8f));
    }
    for (int64_t g = 0; g < w.num_groups; ++g) {
      const auto super = static_cast<size_t>(o * w.num_supers + g / per_super);
      w.steps.push_back(static_cast<float>(static_cast<int8_t>(generator() >> 24)));
      w.offset_steps.push_back(static_cast<float>(generator() >> 26));
      w.scales[w.at(o, g)] = w.super_scales[super] * w.steps.back();
      w.offsets[w.at(o, g)] = w.super_offsets[super] * w.offset_steps.back();
    }
  }
}

IntegerWeights random_integers(const Shape& shape, const QuantFormat& format, uint32_t seed) {
  std::mt19937 generator(seed);
  IntegerWeights w{.shape = shape, .format = format};
  const int64_t size = format.group_size == 0 ? shape.n_in : format.group_size;
  w.num_groups = (shape.n_in + size - 1) / size;
  for (int64_t i = 0; i < shape.n_out * shape.n_in; ++i) {
    const int value = static_cast<int>(generator() >> 24);
    const int half = format.bits == 4 ? 0 : 1 << (format.bits - 1);
    w.values.push_back((value & ((1 << format.bits) - 1)) - half);
  }
  for (int64_t i = 0; i < shape.n_out * w.num_groups; ++i) {
    w.scales.push_back(0.001f + static_cast<float>(generator() >> 16) * 1e-7f);
    w.zeros.push_back(static_cast<uint8_t>(generator() % 17));
    w.offsets.push_back(static_cast<float>(generator() >> 16) * 1e-6f - 0.03f);
  }
  keep_exactly(w, generator);
  if (w.values.size() >= 64) {
    double sum = 0;
    double squares = 0;
    for (const int value : w.values) {
      sum += value;
      squares += double{1.0} * value * value;
    }
    const double n = static_cast<double>(w.values.size());
    EXPECT_GT(squares / n - sum / n * sum / n,
              format.bits == 8   ? 3000.0
              : format.bits == 6 ? 200.0
                                 : 10.0);
  }
  return w;
}

// Inputs [begin, end) of the matrix; scales of the groups that lie there.
PackedMatrix pack(const IntegerWeights& w, int64_t begin, int64_t end) {
  PackedMatrix matrix(w.shape.n_out, end - begin, w.format, begin);
  const int64_t first_group = w.group_of(begin);
  for (int64_t o = 0; o < w.shape.n_out; ++o) {  // rows in two orders, one by one
    const int64_t row = o % 2 == 0 ? o : w.shape.n_out - 1 - (w.shape.n_out % 2 == 0 ? o - 1 : o);
    const bool has_supers = w.format.scales == kSupers;
    const float* scales = (has_supers ? w.steps : w.scales).data() + w.at(row, first_group);
    const float* offsets =
        (has_supers ? w.offset_steps : w.offsets).data() + w.at(row, first_group);
    const int64_t super = row * w.num_supers + begin / kQuantSuperBlock;
    const SuperScales supers{w.super_scales.data() + super, w.super_offsets.data() + super, 0};
    const int* from = w.values.data() + row * w.shape.n_in;
    const std::vector<int8_t> values(from + begin, from + end);
    matrix.fill_integers(
        row,
        1,
        {values.data(), 0, scales, 0, w.zeros.data() + w.at(row, first_group), offsets, supers});
  }
  return matrix;
}
PackedMatrix pack(const IntegerWeights& w) { return pack(w, 0, w.shape.n_in); }

std::vector<float> run(Context& ctx,
                       const PackedMatrix& matrix,
                       const float* in,
                       int64_t rows,
                       const cpu::QuantKernels& kernels,
                       const LinearSum& sum = {}) {
  std::vector<float> out(static_cast<size_t>(rows * matrix.n_out()), kPoison);
  const int64_t whole[] = {matrix.n_in()};
  const std::span<const int64_t> ends = sum.slice_ends.empty() ? whole : sum.slice_ends;
  cpu::quantized_linear(
      ctx, {out.data(), in, {&matrix, matrix.n_out(), rows}, sum.bias, ends}, kernels);
  return out;
}

std::vector<float> run(const PackedMatrix& matrix,
                       const std::vector<float>& in,
                       int64_t rows,
                       const LinearSum& sum = {}) {
  Context ctx(1);
  std::vector<float> out(static_cast<size_t>(rows * matrix.n_out()), kPoison);
  linear(ctx, out.data(), in.data(), rows, matrix, sum);
  return out;
}

// The definition, written apart from the kernels: activations of inputs [begin, end) to integers,
// the sum in 64 bits, one fma in float.
void add_stretch(const IntegerWeights& w, const float* x, int64_t begin, int64_t end, float* out) {
  float largest = 0;
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
  const float per_unit = largest > 0 ? 127.0f / largest : 0.0f;
  for (int64_t o = 0; o < w.shape.n_out; ++o) {
    int64_t sum = 0;
    int64_t plain_sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += int64_t{w.centred(o, i)} * std::lrintf(x[i] * per_unit);
      plain_sum += std::lrintf(x[i] * per_unit);
    }
    const float unit = largest / 127.0f;
    if (w.format.has_offsets)
      out[o] = std::fma(w.offset(o, begin), unit * static_cast<float>(plain_sum), out[o]);
    const float scale = w.scale(o, begin) * unit;
    out[o] = std::fma(static_cast<float>(sum), scale, out[o]);
  }
}

std::vector<float> reference(const IntegerWeights& w, const std::vector<float>& in, int64_t rows) {
  const int64_t size = w.format.group_size == 0 ? 128 : std::min<int64_t>(w.format.group_size, 128);
  std::vector<float> out(static_cast<size_t>(rows * w.shape.n_out), 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < w.shape.n_in; i += size) {
      add_stretch(w,
                  in.data() + r * w.shape.n_in,
                  i,
                  std::min(i + size, w.shape.n_in),
                  out.data() + r * w.shape.n_out);
    }
  }
  return out;
}

TEST(Quantized, EqualsIntegerSumsBitForBitOnEveryKernel) {
  for (const QuantFormat& format : kFileFormats) {
    for (const Shape& shape : kShapes) {
      const IntegerWeights w = random_integers(shape, format, 1);
      const PackedMatrix matrix = pack(w);
      for (const int64_t rows : {1, 2, 7}) {
        const std::vector<float> in = random_floats(static_cast<size_t>(rows * shape.n_in), 2);
        const std::vector<float> expected = reference(w, in, rows);
        for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
          Context ctx(1);
          ASSERT_TRUE(same_bits(run(ctx, matrix, in.data(), rows, *kernels), expected))
              << kernels->name << ' ' << name_of(format) << ' ' << shape.n_out << 'x' << shape.n_in
              << " rows " << rows;
        }
      }
    }
  }
}

TEST(Quantized, LinearTakesTheKernelsOfTheIsa) {
  const IntegerWeights w = random_integers({150, 517}, {8, 128}, 3);
  const PackedMatrix matrix = pack(w);
  const std::vector<float> in = random_floats(5 * 517, 4);
  const std::vector<float> bias = random_floats(150, 5);
  std::vector<float> expected = reference(w, in, 5);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 150];
  for (const Isa isa : all_isas()) {
    Context ctx(2, isa);
    std::vector<float> out(expected.size(), kPoison);
    linear(ctx, out.data(), in.data(), 5, matrix, {bias.data()});
    EXPECT_TRUE(same_bits(out, expected)) << isa_name(isa);
  }
}

TEST(Quantized, BitsOfARowDoNotDependOnRowsThreadsOrKernel) {
  const Shape shape{150, 517};
  constexpr int64_t kMostRows = 33;
  for (const QuantFormat& format : {QuantFormat{8, 128},
                                    {8, 0},
                                    {4, 128},
                                    {4, 32},
                                    {4, 32, true},
                                    {4, 32, false, kHalves},
                                    {8, 32, false, kHalves},
                                    {4, 32, false, kPowers, kE2m1},
                                    {6, 16, false, kSupers},
                                    {6, 32, true, kSupers},
                                    {4, 32, true, kSupers}}) {
    const IntegerWeights w = random_integers(shape, format, 6);
    const PackedMatrix matrix = pack(w);
    const std::vector<float> in = random_floats(static_cast<size_t>(kMostRows * shape.n_in), 7);
    const std::vector<float> expected = reference(w, in, kMostRows);
    for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
      for (const int threads : {1, 2, 3}) {
        Context ctx(threads);
        for (int64_t rows = 1; rows <= kMostRows; rows += threads == 1 ? 1 : 11) {
          const std::vector<float> out = run(ctx, matrix, in.data(), rows, *kernels);
          ASSERT_TRUE(same_bits(out.data(), expected.data(), out.size()))
              << kernels->name << ' ' << name_of(format) << " threads " << threads << " rows "
              << rows;
        }
      }
    }
  }
}

TEST(Quantized, ManyRowsAreTiledWithTheSameBits) {
  const Shape shape{70, 300};
  for (const QuantFormat& format : {QuantFormat{8, 128}, {4, 128}, {6, 16, false, kSupers}}) {
    const IntegerWeights w = random_integers(shape, format, 8);
    const PackedMatrix matrix = pack(w);
    for (const int64_t rows : {128, 129, 512}) {
      const std::vector<float> in = random_floats(static_cast<size_t>(rows * shape.n_in), 9);
      const std::vector<float> expected = reference(w, in, rows);
      Context ctx(2);
      for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
        ASSERT_TRUE(same_bits(run(ctx, matrix, in.data(), rows, *kernels), expected))
            << kernels->name << ' ' << rows;
      }
    }
  }
}

// One product per slice from a shard of its own, then the tree of fold_tree.h.
TEST(Quantized, SlicesAreThoseOfShards) {
  const Shape shape{130, 1045};
  const std::vector<std::vector<int64_t>> cuts = {
      {1045}, {512, 1045}, {304, 312, 312, 1045}, {8, 16, 24, 32, 264, 1045, 1045, 1045}};
  for (const QuantFormat& format : kFileFormats) {
    const IntegerWeights w = random_integers(shape, format, 10);
    const PackedMatrix matrix = pack(w);
    const std::vector<float> bias = random_floats(static_cast<size_t>(shape.n_out), 11);
    constexpr int64_t kRows = 3;
    const std::vector<float> in = random_floats(static_cast<size_t>(kRows * shape.n_in), 12);
    for (const std::vector<int64_t>& ends : cuts) {
      std::vector<std::vector<float>> parts;
      int64_t begin = 0;
      for (const int64_t end : ends) {
        std::vector<float> part_in;
        for (int64_t r = 0; r < kRows; ++r) {
          const float* row = in.data() + r * shape.n_in;
          part_in.insert(part_in.end(), row + begin, row + end);
        }
        const LinearSum sum = {begin == 0 ? bias.data() : nullptr};
        parts.push_back(run(pack(w, begin, end), part_in, kRows, sum));
        begin = end;
      }
      for (size_t step = 1; step < parts.size(); step *= 2) {
        for (size_t left = 0; left + step < parts.size(); left += 2 * step) {
          for (size_t i = 0; i < parts[0].size(); ++i) parts[left][i] += parts[left + step][i];
        }
      }
      EXPECT_TRUE(same_bits(run(matrix, in, kRows, {bias.data(), ends}), parts[0]))
          << name_of(format) << " slices " << ends.size();
    }
  }
}

TEST(Quantized, ShardsQuantisedWithTheirNeighboursAreThoseOfTheWhole) {
  const Shape shape{70, 390};
  const Weights source =
      random_weights(static_cast<size_t>(shape.n_out * shape.n_in), DType::kBF16, 13);
  for (const QuantFormat& format : kFormats) {
    PackedMatrix whole(shape.n_out, shape.n_in, format);
    whole.fill_rows(0, source.data(), shape.n_out, shape.n_in, DType::kBF16);
    std::vector<float> expected(static_cast<size_t>(shape.n_in));
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 88}, {88, 200}, {40, 48}, {200, 390}}) {
      PackedMatrix shard(shape.n_out, end - begin, format, begin);
      FloatRows rows{source.halves.data() + begin, shape.n_out, shape.n_in, DType::kBF16};
      rows.columns_before = begin;
      rows.columns_after = shape.n_in - end;
      shard.quantize_rows(0, rows);
      std::vector<float> actual(static_cast<size_t>(end - begin));
      for (int64_t o = 0; o < shape.n_out; ++o) {
        whole.dequantize_row(o, expected.data());
        shard.dequantize_row(o, actual.data());
        ASSERT_TRUE(same_bits(actual.data(), expected.data() + begin, actual.size()))
            << name_of(format) << ' ' << begin << " row " << o;
      }
    }
  }
}

// As the loader does: outputs of one panel share bytes of 6 bits.
TEST(Quantized, RowsOfAPanelMayBeFilledByDifferentThreads) {
  const IntegerWeights w = random_integers({64, 4096}, {6, 32}, 24);
  const PackedMatrix expected = pack(w);
  const std::vector<int8_t> values(w.values.begin(), w.values.end());
  for (int turn = 0; turn < 20; ++turn) {
    PackedMatrix matrix(64, 4096, w.format);
    {
      std::vector<std::jthread> threads;
      for (const int64_t first : {0, 16, 32, 48}) {
        threads.emplace_back([&, first] {
          matrix.fill_integers(
              first, 16, {&values[first * 4096], 4096, &w.scales[w.at(first, 0)], w.num_groups});
        });
      }
    }
    ASSERT_EQ(std::memcmp(matrix.data(), expected.data(), expected.num_bytes()), 0) << turn;
  }
}

TEST(Quantized, DequantizedRowsAreScaleTimesInteger) {
  for (const QuantFormat& format : kFileFormats) {
    const IntegerWeights w = random_integers({70, 203}, format, 14);
    const PackedMatrix matrix = pack(w);
    std::vector<float> row(203, kPoison);
    for (int64_t o = 0; o < 70; ++o) {
      matrix.read_row(o, row.data());
      for (int64_t i = 0; i < 203; ++i) {
        const float product = w.scale(o, i) * static_cast<float>(w.centred(o, i));
        ASSERT_EQ(row[static_cast<size_t>(i)],
                  format.has_offsets ? product + w.offset(o, i) : product);
      }
    }
  }
}

std::vector<float> gaussians(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// The rms of what rounding changes, relative to the rms of the product in floats.
double relative_error(const QuantFormat& format) {
  constexpr Shape kShape{64, 2048};
  constexpr int64_t kRows = 16;
  const std::vector<float> weights = gaussians(kShape.n_out * kShape.n_in, 15);
  const std::vector<float> in = gaussians(kRows * kShape.n_in, 16);
  PackedMatrix matrix(kShape.n_out, kShape.n_in, format);
  matrix.fill_rows(0, weights.data(), kShape.n_out, kShape.n_in, DType::kF32);
  const std::vector<float> out = run(matrix, in, kRows);
  double error = 0;
  double size = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t o = 0; o < kShape.n_out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < kShape.n_in; ++i) {
        sum += double{in[static_cast<size_t>(r * kShape.n_in + i)]} *
               weights[static_cast<size_t>(o * kShape.n_in + i)];
      }
      const double off = out[static_cast<size_t>(r * kShape.n_out + o)] - sum;
      error += off * off;
      size += sum * sum;
    }
  }
  EXPECT_GT(size / kRows / kShape.n_out, 1000.0);
  return std::sqrt(error / size);
}

TEST(Quantized, ErrorAgainstFloatsIsThatOfTheRounding) {
  // Two roundings of rms step / sqrt(12), the step being 1/127 of about 2.6 (128 numbers) or 3.4.
  EXPECT_LE(relative_error({8, 128}), 0.0105);
  EXPECT_GE(relative_error({8, 128}), 0.004);
  EXPECT_LE(relative_error({8, 32}), 0.009);
  EXPECT_LE(relative_error({8, 0}), 0.012);
  EXPECT_LE(relative_error({4, 128}), 0.12);
  EXPECT_LE(relative_error({4, 32}), 0.095);
  EXPECT_GE(relative_error({4, 32}), 0.05);
}

TEST(Quantized, ExtremesAreExact) {
  const Shape shape{65, 256};
  for (const int bits : {8, 6, 4}) {
    IntegerWeights w = random_integers(shape, {bits, 128}, 17);
    const int lowest = bits == 4 ? 0 : -(1 << (bits - 1));
    const int highest = lowest + (1 << bits) - 1;
    for (size_t i = 0; i < w.values.size(); ++i) w.values[i] = i % 512 < 256 ? lowest : highest;
    for (size_t i = 0; i < w.zeros.size(); ++i) w.zeros[i] = i % 2 == 0 ? 255 : 0;
    const PackedMatrix matrix = pack(w);
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> in(2 * 256, sign);
      std::fill_n(in.begin(), 256, 3e38f * sign);
      for (float& scale : w.scales) scale = 1e-3f;
      const PackedMatrix small = pack(w);
      const std::vector<float> expected = reference(w, in, 2);
      for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
        Context ctx(1);
        EXPECT_TRUE(same_bits(run(ctx, small, in.data(), 2, *kernels), expected)) << kernels->name;
      }
    }
  }
}

TEST(Quantized, ZerosAndTinyNumbersAreZeros) {
  const PackedMatrix matrix = pack(random_integers({65, 130}, {8, 64}, 18));
  std::vector<float> in(3 * 130, 0.0f);
  std::fill_n(in.begin(), 130, 1e-40f);
  std::fill_n(in.begin() + 130, 130, -1e-37f);
  for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
    Context ctx(1);
    for (const float value : run(ctx, matrix, in.data(), 3, *kernels)) {
      EXPECT_EQ(value, 0.0f) << kernels->name;
    }
  }
  const std::vector<float> nothing(128, 0.0f);
  PackedMatrix zeros(1, 128, QuantFormat{4, 32});
  zeros.fill_rows(0, nothing.data(), 1, 128, DType::kF32);
  std::vector<float> row(128, kPoison);
  zeros.dequantize_row(0, row.data());
  for (const float value : row) EXPECT_EQ(value, 0.0f);
}

TEST(Quantized, NanAndInfMakeTheirRowNan) {
  const IntegerWeights w = random_integers({100, 331}, {8, 128}, 19);
  const PackedMatrix matrix = pack(w);
  for (const float bad : {kPoison,
                          -kPoison,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> in = random_floats(7 * 331, 20);
    in[3 * 331 + 330] = bad;
    in[5 * 331 + 17] = bad;
    for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
      Context ctx(1);
      const std::vector<float> out = run(ctx, matrix, in.data(), 7, *kernels);
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::isnan(out[i]), i / 100 == 3 || i / 100 == 5) << kernels->name << ' ' << i;
      }
    }
  }
}

TEST(Quantized, NanAndInfInWeightsMakeTheirOutputNan) {
  for (const QuantFormat& format : {QuantFormat{8, 128}, {4, 32}}) {
    std::vector<float> weights = random_floats(70 * 200, 21);
    weights[5 * 200 + 199] = kPoison;
    weights[66 * 200] = -std::numeric_limits<float>::infinity();
    PackedMatrix matrix(70, 200, format);
    matrix.fill_rows(0, weights.data(), 70, 200, DType::kF32);
    const std::vector<float> out = run(matrix, random_floats(2 * 200, 22), 2);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), i % 70 == 5 || i % 70 == 66) << i;
    }
  }
}

TEST(Quantized, NothingBesideTheInputIsRead) {
  const IntegerWeights w = random_integers({64, 5}, {8, 32}, 23);
  const PackedMatrix matrix = pack(w);
  const std::vector<float> values = random_floats(10, 24);
  std::vector<float> in(12, kPoison);
  std::copy_n(values.begin(), 10, in.begin() + 1);
  for (const cpu::QuantKernels* kernels : cpu::all_quant_kernels()) {
    Context ctx(1);
    EXPECT_TRUE(same_bits(run(ctx, matrix, in.data() + 1, 2, *kernels), reference(w, values, 2)));
  }
}

TEST(Quantized, EmptyMatrices) {
  EXPECT_EQ(PackedMatrix(0, 128, QuantFormat{8, 128}).num_bytes(), 0u);
  const PackedMatrix none(5, 0, QuantFormat{4, 0});
  Context ctx(1);
  std::vector<float> out(10, kPoison);
  linear(ctx, out.data(), nullptr, 2, none);
  for (const float value : out) EXPECT_EQ(value, 0.0f);
}

}  // namespace
}  // namespace outrider::ops
