// The ops that go row by row, against plain arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/ops/gpu/tiles.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {
namespace {

class Rows : public ::testing::TestWithParam<Type> {
 protected:
  const OpTable& ops = test_backend().ops;
  std::unique_ptr<Device> device = test_backend().open(0);
  std::unique_ptr<Stream> stream = device->make_stream(Priority::kNormal);

  void expect_norm(int32_t n, bool selected);
};

TEST_P(Rows, EmbedGivesTheTablesRowsOrZeros) {
  constexpr int32_t kN = 40;
  constexpr int32_t kFirstId = 100;
  const std::vector<float> table = random_floats(5 * kN, 1);
  std::vector<uint16_t> narrow;
  for (const float value : table) {
    narrow.push_back(GetParam() == Type::kBF16 ? ops::float_to_bf16(value)
                                               : ops::float_to_f16(value));
  }
  const bool wide = GetParam() == Type::kF32;
  const DeviceArray<float> wide_table(*device, table);
  const DeviceArray<uint16_t> narrow_table(*device, narrow);
  const DeviceArray<int32_t> tokens(*device, std::vector<int32_t>{104, 99, 100, 105});
  const DeviceArray<StepCounts> counts(*device, std::vector<StepCounts>{{.num_rows = 4}});
  DeviceArray<float> out(*device, std::vector<float>(5 * kN, -1.0f));
  ops.embed(*stream,
            {.out = out.device(),
             .table = wide ? static_cast<const void*>(wide_table.device()) : narrow_table.device(),
             .type = GetParam(),
             .n_rows = 5,
             .n = kN,
             .first_id = kFirstId,
             .max_rows = 5,
             .step = {.counts = counts.device(), .tokens = tokens.device()}});
  stream->wait();
  out.pull();
  for (size_t row = 0; row < 4; ++row) {
    for (size_t i = 0; i < kN; ++i) {
      const int32_t id = tokens[row] - kFirstId;
      float expected = 0.0f;
      if (id >= 0 && id < 5) {
        const size_t at = static_cast<size_t>(id) * kN + i;
        expected = wide                        ? table[at]
                   : GetParam() == Type::kBF16 ? ops::bf16_to_float(narrow[at])
                                               : ops::f16_to_float(narrow[at]);
      }
      EXPECT_EQ(out[row * kN + i], expected);
    }
  }
  EXPECT_EQ(out[4 * kN], -1.0f);  // a row the step does not have
}

// In double precision; `selected`: of row 2 alone, and x is left as it is.
void Rows::expect_norm(int32_t n, bool selected) {
  const auto width = static_cast<size_t>(n);
  const std::vector<float> x = random_floats(3 * width, 2);
  const std::vector<float> part = random_floats(3 * width, 3);
  const std::vector<float> weight = random_floats(width, 4);
  const DeviceArray<float> shared_part(*device, part);
  const DeviceArray<float> shared_weight(*device, weight);
  const DeviceArray<StepCounts> counts(
      *device, std::vector<StepCounts>{{.num_rows = 3, .num_logit_rows = 1}});
  const DeviceArray<int32_t> logit_rows(*device, std::vector<int32_t>{2});
  DeviceArray<float> stream_x(*device, x);
  DeviceArray<float> out(*device, activation_elements(3, n));
  out.poison();
  write_by_predecessor({stream_x.bytes(), shared_part.bytes()});
  ops.norm(*stream,
           {.out = {out.device(), GetParam(), n},
            .x = stream_x.device(),
            .part = shared_part.device(),
            .weight = shared_weight.device(),
            .eps = 1e-5f,
            .selected = selected,
            .max_rows = 3,
            .step = {.counts = counts.device(), .logit_rows = logit_rows.device()}});
  stream->wait();
  out.pull();
  stream_x.pull();
  for (int32_t row = 0; row < (selected ? 1 : 3); ++row) {
    const auto from = static_cast<size_t>(selected ? 2 : row) * width;
    double squares = 0.0;
    for (size_t i = 0; i < width; ++i) squares += std::pow(double{x[from + i]} + part[from + i], 2);
    for (int32_t i = 0; i < n; ++i) {
      const auto at = from + static_cast<size_t>(i);
      const double expected = (double{x[at]} + part[at]) / std::sqrt(squares / n + 1e-5) *
                              weight[static_cast<size_t>(i)];
      const bool is_wide = GetParam() == Type::kF32;
      const auto where = static_cast<size_t>(row * n + i);
      const double found =
          widen(GetParam(), out.host(), is_wide ? where : activation_offset(row, i, n));
      const double tolerance = GetParam() == Type::kF32 ? 1e-5 : 4e-3;
      ASSERT_TRUE(std::fabs(found - expected) <= tolerance * (1 + std::fabs(expected)))
          << "element " << i << " of " << n;
      EXPECT_EQ(stream_x[at], selected ? x[at] : x[at] + part[at]);
    }
  }
}

// Rows of whole vectors, of more than a block takes at once, and of other lengths.
TEST_P(Rows, NormAddsAndScales) {
  for (const int32_t n : {72, 70, 67, 9000}) {
    expect_norm(n, false);
    expect_norm(n, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Rows, ::testing::Values(Type::kF32, Type::kBF16, Type::kF16));

}  // namespace
}  // namespace outrider::gpu
