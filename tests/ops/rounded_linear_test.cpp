// Products of bf16 weights with activations rounded to bf16: against their definition written out
// here, and their bits across rows, threads, slices, and every way a CPU may compute them.
#include <memory>
#include <set>
#include <span>

#include "tests/ops/ops_testing.h"

namespace outrider::ops {
namespace {

constexpr int64_t kChunk = 256;

// An instruction set, with or without AVX512-BF16.
struct Way {
  Isa isa;
  bool dot;

  std::string name() const { return std::string(isa_name(isa)) + (dot ? " with bf16 dot" : ""); }
  std::unique_ptr<Context> context(int num_threads) const {
    auto ctx = std::make_unique<Context>(num_threads, isa);
    ctx->set_activations(Activations::kBF16);
    ctx->allow_bf16_dot(dot);
    return ctx;
  }
};

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Isa isa : all_isas()) ways.push_back({isa, false});
  if (has_bf16_dot()) ways.push_back({Isa::kAvx512, true});
  return ways;
}

float flushed(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

float rounded(float x) { return bf16_to_float(float_to_bf16(flushed(x))); }

// The definition: per chunk one chain of fma from zero, of every pair the odd element first.
float product_of(const float* w, const float* in, int64_t count) {
  float sum = 0;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, count);
    float chain = 0;
    for (int64_t i = begin; i < end; i += 2) {
      if (i + 1 < end) chain = flushed(std::fmaf(flushed(w[i + 1]), rounded(in[i + 1]), chain));
      chain = flushed(std::fmaf(flushed(w[i]), rounded(in[i]), chain));
    }
    sum = flushed(sum + chain);
  }
  return sum;
}

struct Case {
  int64_t n_out;
  int64_t n_in;
  int64_t rows;
  Weights w;
  std::vector<float> in;
  PackedMatrix matrix;
  std::vector<float> expected;
};

void define(Case& c) {
  c.expected.clear();
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t o = 0; o < c.n_out; ++o) {
      c.expected.push_back(
          product_of(c.w.floats.data() + o * c.n_in, c.in.data() + r * c.n_in, c.n_in));
    }
  }
}

Case make_case(int64_t n_out, int64_t n_in, int64_t rows, uint32_t seed) {
  Case c{
      .n_out = n_out, .n_in = n_in, .rows = rows, .w = {}, .in = {}, .matrix = {}, .expected = {}};
  c.w = random_weights(static_cast<size_t>(n_out * n_in), DType::kBF16, seed);
  c.in = random_floats(static_cast<size_t>(rows * n_in), seed + 1);
  c.matrix = pack(c.w, n_out, n_in);
  define(c);
  return c;
}

std::vector<float> run(Context& ctx, const PackedMatrix& matrix, const float* in, int64_t rows) {
  std::vector<float> out(static_cast<size_t>(rows * matrix.n_out()), kPoison);
  linear(ctx, out.data(), in, rows, matrix);
  return out;
}

void expect_same(const std::vector<float>& out, const Case& c, const std::string& what) {
  ASSERT_TRUE(same_bits(out.data(), c.expected.data(), out.size()))
      << what << ", " << c.n_out << " x " << c.n_in << ", rows "
      << out.size() / static_cast<size_t>(c.n_out);
}

TEST(RoundedLinear, EveryWayGivesTheBitsOfTheDefinition) {
  for (const auto& [n_out, n_in] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 7}, {64, 16}, {65, 33}, {130, 257}, {200, 300}, {48, 515}, {70, 1024}}) {
    const Case c = make_case(n_out, n_in, 9, static_cast<uint32_t>(n_out * 1000 + n_in));
    for (const Way& way : all_ways()) {
      expect_same(run(*way.context(2), c.matrix, c.in.data(), c.rows), c, way.name());
    }
  }
}

TEST(RoundedLinear, BitsDoNotDependOnRowsThreadsOrWay) {
  const Case c = make_case(150, 517, 130, 4);
  for (const Way& way : all_ways()) {
    const bool slow = way.isa == Isa::kScalar;
    for (const int threads : {1, 2, 3, 7}) {
      const std::unique_ptr<Context> ctx = way.context(threads);
      for (int64_t rows = 1; rows <= 40; rows += slow ? 13 : 1) {
        expect_same(run(*ctx, c.matrix, c.in.data(), rows), c, way.name());
      }
      if (slow && threads != 7) continue;
      expect_same(run(*ctx, c.matrix, c.in.data(), 130), c, way.name());
    }
  }
}

TEST(RoundedLinear, RowsOfAPrefillAreTheRowsOfSingleSteps) {
  for (const Way& way : all_ways()) {
    if (way.isa == Isa::kScalar) continue;  // BitsDoNotDepend... has its rows
    const Case c = make_case(200, 1030, 1, 7);
    const std::vector<float> in = random_floats(static_cast<size_t>(512 * c.n_in), 8);
    const std::unique_ptr<Context> ctx = way.context(2);
    std::vector<float> single;
    for (int64_t r = 0; r < 512; ++r) {
      const std::vector<float> row = run(*ctx, c.matrix, in.data() + r * c.n_in, 1);
      single.insert(single.end(), row.begin(), row.end());
    }
    std::vector<int64_t> counts = {128, 131, 512};
    for (int64_t rows = 2; rows <= 33; ++rows) counts.push_back(rows);
    for (const int64_t rows : counts) {
      for (const int64_t first : {int64_t{0}, 512 - rows}) {
        const std::vector<float> out = run(*ctx, c.matrix, in.data() + first * c.n_in, rows);
        ASSERT_TRUE(same_bits(out.data(), single.data() + first * c.n_out, out.size()))
            << way.name() << " rows " << rows << " from " << first;
      }
    }
  }
}

TEST(RoundedLinear, SlicesAreSummedByThemselvesAndFoldedInATree) {
  const Case c = make_case(130, 1045, 37, 12);
  const std::vector<float> bias = random_floats(static_cast<size_t>(c.n_out), 13);
  const std::vector<std::vector<int64_t>> cuts = {
      {1045}, {516, 1045}, {300, 302, 302, 1045}, {2, 4, 6, 8, 264, 1045, 1045, 1045}};
  for (const std::vector<int64_t>& ends : cuts) {
    std::vector<float> expected;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < c.n_out; ++o) {
        std::vector<float> level;
        int64_t begin = 0;
        for (const int64_t end : ends) {
          const float sum = product_of(c.w.floats.data() + o * c.n_in + begin,
                                       c.in.data() + r * c.n_in + begin,
                                       end - begin);
          level.push_back(begin == 0 ? sum + bias[static_cast<size_t>(o)] : sum);
          begin = end;
        }
        while (level.size() > 1) {
          for (size_t i = 0; i < level.size() / 2; ++i) level[i] = level[2 * i] + level[2 * i + 1];
          level.resize(level.size() / 2);
        }
        expected.push_back(level[0]);
      }
    }
    for (const Way& way : all_ways()) {
      std::vector<float> out(expected.size(), kPoison);
      linear(*way.context(3), out.data(), c.in.data(), c.rows, c.matrix, {bias.data(), ends});
      ASSERT_TRUE(same_bits(out, expected)) << way.name() << ", " << ends.size() << " slices";
    }
  }
}

// Numbers around the smallest normal one, as inputs and as sums.
TEST(RoundedLinear, DenormalsAreZerosOnEveryWay) {
  Case c = make_case(128, 640, 5, 20);
  std::mt19937 generator(21);
  for (size_t i = 0; i < c.w.floats.size(); ++i) {
    const float scale = generator() % 4 == 0 ? 0x1p-126f : 0x1p-61f;
    c.w.halves[i] = float_to_bf16(c.w.floats[i] * scale);
    c.w.floats[i] = bf16_to_float(c.w.halves[i]);
  }
  for (float& x : c.in) x *= generator() % 4 == 0 ? 0x1p-126f : 0x1p-62f;
  for (float& x : std::span(c.in).last(640)) x *= 0x1p-6f;  // a row whose products all vanish
  c.matrix = pack(c.w, c.n_out, c.n_in);
  const std::vector<float> all = run(*all_ways().front().context(1), c.matrix, c.in.data(), c.rows);
  std::set<float> values(all.begin(), all.end());
  EXPECT_GT(values.size(), 100u);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](float x) { return x != flushed(x); }), 0);
  EXPECT_GE(std::count(all.begin(), all.end(), 0.0f), 128);
  c.expected = all;
  for (const Way& way : all_ways()) {
    expect_same(run(*way.context(2), c.matrix, c.in.data(), c.rows), c, way.name());
  }
}

TEST(RoundedLinear, OnlyBf16WeightsRoundAndOnlyWhenAsked) {
  constexpr int64_t kOut = 100;
  constexpr int64_t kIn = 300;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const PackedMatrix matrix = pack(random_weights(kOut * kIn, dtype, 30), kOut, kIn);
    const std::vector<float> in = random_floats(4 * kIn, 31);
    Context plain(1);
    EXPECT_EQ(plain.activations(), Activations::kF32);
    Context rounding(1);
    rounding.set_activations(Activations::kBF16);
    const std::vector<float> exact = run(plain, matrix, in.data(), 4);
    const std::vector<float> out = run(rounding, matrix, in.data(), 4);
    EXPECT_EQ(same_bits(exact, out), dtype != DType::kBF16) << dtype_name(dtype);
    // 8 bits of mantissa: each product is off by 2^-9 at most.
    EXPECT_LE(error_of(out, std::vector<double>(exact.begin(), exact.end())), 0x1p-8);
  }
}

TEST(RoundedLinear, NanAndInfStayInTheirRowAndOutput) {
  Case c = make_case(100, 37, 7, 40);
  const float infinity = std::numeric_limits<float>::infinity();
  c.w.halves[5 * 37 + 36] = float_to_bf16(infinity);
  c.matrix = pack(c.w, c.n_out, c.n_in);
  c.in[3 * 37 + 36] = kPoison;
  c.in[4 * 37 + 2] = infinity;
  c.in[6 * 37 + 2] = std::bit_cast<float>(0x7F800001u);  // a NaN that is lost when cut to 16 bits
  for (const Way& way : all_ways()) {
    const std::vector<float> out = run(*way.context(1), c.matrix, c.in.data(), c.rows);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < c.n_out; ++o) {
        const float value = out[static_cast<size_t>(r * c.n_out + o)];
        const std::string where = way.name() + " row " + std::to_string(r);
        if (r == 3 || r == 6) {
          EXPECT_TRUE(std::isnan(value)) << where;
        } else if (r == 4) {
          EXPECT_FALSE(std::isfinite(value)) << where;
        } else {
          EXPECT_EQ(std::isinf(value), o == 5) << where;
        }
      }
    }
  }
}

TEST(RoundedLinear, NothingBesideTheInputIsRead) {
  const Case c = make_case(64, 5, 2, 50);
  std::vector<float> in(12, kPoison);
  std::copy_n(c.in.begin(), 10, in.begin() + 1);
  for (const Way& way : all_ways()) {
    const std::unique_ptr<Context> ctx = way.context(1);
    // What an earlier product left in the scratch must not matter either.
    run(*ctx, make_case(64, 256, 2, 51).matrix, std::vector<float>(512, kPoison).data(), 2);
    expect_same(run(*ctx, c.matrix, in.data() + 1, 2), c, way.name());
  }
}

TEST(Context, ScratchGrowsAndStays) {
  Context ctx(1);
  std::byte* first = ctx.scratch(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(ctx.scratch(10), first);
  EXPECT_EQ(ctx.scratch(1000), first);
  std::byte* larger = ctx.scratch(5000000);
  larger[4999999] = std::byte{1};
  EXPECT_EQ(ctx.scratch(1000), larger);
}

}  // namespace
}  // namespace outrider::ops
