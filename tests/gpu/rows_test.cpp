// The ops that go row by row, against plain arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runtime/ops/gpu/tiles.h"
#include "runtime/ops/ops.h"
#include "tests/gpu/gpu_testing.h"

namespace outrider::gpu {
namespace {

class Rows : public GpuTest, public ::testing::WithParamInterface<Type> {
 protected:
  void expect_norm(int32_t n, bool selected);
  // Whether element (row, i) of a product's input of n is that, as its type can say it.
  void expect_element(
      const DeviceArray<float>& out, int32_t n, int32_t row, int32_t i, double expected) const {
    const size_t at = place({nullptr, GetParam(), n}, row, i);
    const double off = std::fabs(widen(GetParam(), out.host(), at) - expected);
    ASSERT_TRUE(off <= (GetParam() == Type::kF32 ? 1e-5 : 4e-3) * (1 + std::fabs(expected)))
        << "row " << row << " element " << i << " of " << n;
  }
};

TEST_P(Rows, EmbedGivesTheTablesRowsOrZeros) {
  constexpr int32_t kN = 40;
  constexpr int32_t kFirstId = 100;
  const std::vector<float> table = random_floats(5 * kN, 1);
  DeviceArray<std::byte> on_device(*device, table.size() * type_bytes(GetParam()));
  for (size_t i = 0; i < table.size(); ++i) narrow(GetParam(), on_device.host(), i, table[i]);
  on_device.push();
  const DeviceArray<int32_t> tokens(*device, std::vector<int32_t>{104, 99, 100, 105});
  const DeviceArray<StepCounts> counts(*device, std::vector<StepCounts>{{.num_rows = 4}});
  DeviceArray<float> out(*device, std::vector<float>(5 * kN, -1.0f));
  ops.embed(*stream,
            {.out = out.device(),
             .table = on_device.device(),
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
      const bool is_there = id >= 0 && id < 5;
      EXPECT_EQ(out[row * kN + i],
                is_there ? rounded(table[static_cast<size_t>(id) * kN + i], GetParam()) : 0.0f);
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
      expect_element(out, n, row, i, expected);
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

// What a family's norms may be; against the CPU's ops.
struct NormCase {
  bool has_part = true;
  bool norms_part = false;
  bool has_weight = true;
  bool is_layer_norm = false;
  bool selected = false;
  float scale = 1.0f;
};

TEST_P(Rows, AddNormIsEveryKindOfNorm) {
  const NormCase cases[] = {{},
                            {.norms_part = true},
                            {.is_layer_norm = true},
                            {.norms_part = true, .is_layer_norm = true, .selected = true},
                            {.has_part = false, .has_weight = false},
                            {.norms_part = true, .has_weight = false},
                            {.norms_part = true, .has_weight = false, .scale = 0.7f},
                            {.has_part = false, .is_layer_norm = true}};
  constexpr int32_t kRows = 3;
  ops::Context ctx(1);
  for (const NormCase& kind : cases) {
    for (const int32_t n : {67, 1600}) {
      const auto count = static_cast<size_t>(kRows * n);
      const auto width = static_cast<size_t>(n);
      std::vector<float> x = random_floats(count, 5);
      std::vector<float> part = random_floats(count, 6);
      const DeviceArray<float> part_on_device(*device, part);
      DeviceArray<float> x_on_device(*device, x);
      const DeviceArray<float> weight(*device, random_floats(width, 7));
      const DeviceArray<float> bias(*device, random_floats(width, 8));
      const DeviceArray<float> part_weight(*device, random_floats(width, 9));
      const DeviceArray<StepCounts> counts(*device, {{.num_rows = kRows, .num_logit_rows = 1}});
      const DeviceArray<int32_t> logit_rows(*device, std::vector<int32_t>{2});
      DeviceArray<float> out(*device, activation_elements(kRows, n));
      out.poison();
      ops.add_norm(
          *stream,
          {.norm = {.out = {out.device(), GetParam(), n},
                    .x = x_on_device.device(),
                    .part = kind.has_part ? part_on_device.device() : nullptr,
                    .weight = kind.has_weight ? weight.device() : nullptr,
                    .eps = 1e-5f,
                    .selected = kind.selected,
                    .max_rows = kRows,
                    .step = {.counts = counts.device(), .logit_rows = logit_rows.device()}},
           .part_weight = kind.norms_part ? part_weight.device() : nullptr,
           .factor = 0.3f,
           .scale = kind.scale,
           .subtracts_mean = kind.is_layer_norm,
           .bias = kind.is_layer_norm ? bias.device() : nullptr});
      stream->wait();
      const std::vector<float> before = x;
      if (kind.norms_part) {
        ops::rms_norm(ctx, part.data(), part.data(), part_weight.host(), kRows, n, 1e-5f);
      }
      const auto all = static_cast<int64_t>(count);
      if (kind.has_part) ops::add_scaled(ctx, x.data(), part.data(), 0.3f, all);
      ops::scale(ctx, x.data(), kind.scale, all);
      std::vector<float> expected = x;
      if (kind.is_layer_norm) {
        const ops::LayerNorm norm = {weight.host(), bias.host(), 1e-5f};
        ops::layer_norm(ctx, expected.data(), x.data(), norm, kRows, n);
      } else if (kind.has_weight) {
        ops::rms_norm(ctx, expected.data(), x.data(), weight.host(), kRows, n, 1e-5f);
      }
      out.pull();
      x_on_device.pull();
      for (int32_t row = 0; row < (kind.selected ? 1 : kRows); ++row) {
        const auto from = static_cast<size_t>(kind.selected ? 2 : row) * width;
        for (int32_t i = 0; i < n; ++i) {
          const size_t at = from + static_cast<size_t>(i);
          expect_element(out, n, row, i, expected[at]);
          EXPECT_NEAR(x_on_device[at], kind.selected ? before[at] : x[at], 1e-5);
        }
      }
    }
  }
}

// The residual stream alone, where nothing reads a norm of it.
TEST_P(Rows, AddNormMayHaveNoOutput) {
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 1}});
  DeviceArray<float> x(*device, std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  const DeviceArray<float> part(*device, std::vector<float>{2.0f, 4.0f, 6.0f, 8.0f, 1.0f, 1.0f});
  ops.add_norm(*stream,
               {.norm = {.out = {.data = nullptr, .n = 4},
                         .x = x.device(),
                         .part = part.device(),
                         .max_rows = 1,
                         .step = {.counts = counts.device()}},
                .factor = 0.5f});
  stream->wait();
  EXPECT_EQ(x.pull(), (std::vector<float>{2.0f, 4.0f, 6.0f, 8.0f, 5.0f, 6.0f}));
}

TEST_P(Rows, ActivateIsThatOfTheCpu) {
  using ops::ActivationKind;
  constexpr int32_t kN = 1040;  // more than a block takes
  ops::Context ctx(1);
  for (const ActivationKind kind : {ActivationKind::kSilu,
                                    ActivationKind::kGelu,
                                    ActivationKind::kGeluTanh,
                                    ActivationKind::kRelu}) {
    for (const bool is_gated : {false, true}) {
      const int32_t width = is_gated ? 2 * kN : kN;
      std::vector<float> values = random_floats(static_cast<size_t>(2 * width), 10);
      for (float& value : values) value *= 3.0f;
      values[3] = 200.0f;
      values[4] = -200.0f;
      const DeviceArray<float> x(*device, values);
      const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2}});
      DeviceArray<float> out(*device, activation_elements(3, kN));
      out.poison();
      ops.activate(*stream,
                   {.out = {out.device(), GetParam(), kN},
                    .x = x.device(),
                    .kind = kind,
                    .is_gated = is_gated,
                    .max_rows = 3,
                    .step = {.counts = counts.device()}});
      stream->wait();
      out.pull();
      std::vector<float> expected(size_t{2} * kN);
      if (is_gated) {
        ops::activate_mul(ctx, expected.data(), values.data(), 2, kN, kind);
      } else {
        ops::activate(ctx, values.data(), 2 * kN, kind);
        expected = values;
      }
      for (int32_t i = 0; i < 2 * kN; ++i) {
        expect_element(out, kN, i / kN, i % kN, expected[static_cast<size_t>(i)]);
      }
    }
  }
}

TEST_P(Rows, ActivateTakesFactorsOfAnotherArray) {
  constexpr int32_t kN = 20;
  constexpr int32_t kStride = 3 * kN;
  ops::Context ctx(1);
  std::vector<float> values = random_floats(2 * kN, 14);
  const DeviceArray<float> x(*device, values);
  const DeviceArray<float> factors(*device, random_floats(2 * kStride, 15));
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2}});
  DeviceArray<float> out(*device, activation_elements(3, kN));
  out.poison();
  ops.activate(*stream,
               {.out = {out.device(), GetParam(), kN},
                .x = x.device(),
                .kind = ops::ActivationKind::kGeluTanh,
                .max_rows = 3,
                .step = {.counts = counts.device()},
                .factors = factors.device() + kN,
                .factors_stride = kStride});
  stream->wait();
  out.pull();
  ops::activate(ctx, values.data(), 2 * kN, ops::ActivationKind::kGeluTanh);
  for (int32_t i = 0; i < 2 * kN; ++i) {
    const auto at = static_cast<size_t>(i / kN * kStride + kN + i % kN);
    expect_element(out, kN, i / kN, i % kN, values[static_cast<size_t>(i)] * factors[at]);
  }
}

TEST_P(Rows, PerLayerInputsJoinTokensAndEmbedding) {
  constexpr int32_t kLayers = 9;  // more than a block takes
  constexpr int32_t kDim = 40;
  constexpr size_t kWidth = size_t{kLayers} * kDim;
  ops::Context ctx(1);
  const std::vector<float> before = random_floats(3 * kWidth, 16);
  std::vector<float> normed = random_floats(2 * kWidth, 17);
  const DeviceArray<float> projected(*device, normed);
  const DeviceArray<float> weight(*device, random_floats(kDim, 18));
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2}});
  DeviceArray<float> vectors(*device, before);
  ops.per_layer_inputs(*stream,
                       {.vectors = vectors.device(),
                        .projected = projected.device(),
                        .weight = weight.device(),
                        .scale = 6.0f,
                        .factor = 0.2f,
                        .eps = 1e-3f,
                        .n_layers = kLayers,
                        .dim = kDim,
                        .max_rows = 3,
                        .step = {.counts = counts.device()}});
  stream->wait();
  vectors.pull();
  ops::scale(ctx, normed.data(), 0.2f, 2 * kWidth);
  ops::rms_norm(ctx, normed.data(), normed.data(), weight.host(), 2 * kLayers, kDim, 1e-3f);
  for (size_t i = 0; i < 2 * kWidth; ++i) {
    ASSERT_NEAR(vectors[i], (6.0f * before[i] + normed[i]) * std::sqrt(0.5f), 1e-5) << i;
  }
  EXPECT_EQ(vectors[2 * kWidth], before[2 * kWidth]);  // a row the step does not have
}

TEST_P(Rows, AddPositionsScalesAndAddsRowsOfTheTable) {
  constexpr int32_t kN = 40;
  const std::vector<float> before = random_floats(3 * kN, 11);
  const DeviceArray<float> table(*device, random_floats(9 * kN, 12));
  const DeviceArray<int32_t> positions(*device, std::vector<int32_t>{7, 0});
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2}});
  for (const bool has_table : {true, false}) {
    DeviceArray<float> x(*device, before);
    ops.add_positions(*stream,
                      {.x = x.device(),
                       .table = has_table ? table.device() : nullptr,
                       .factor = 3.0f,
                       .n = kN,
                       .max_rows = 3,
                       .step = {.counts = counts.device(), .positions = positions.device()}});
    stream->wait();
    x.pull();
    for (size_t i = 0; i < 2 * kN; ++i) {
      const auto position = static_cast<size_t>(positions[i / kN]);
      const float learned = has_table ? table[position * kN + i % kN] : 0.0f;
      EXPECT_EQ(x[i], before[i] * 3.0f + learned);
    }
    EXPECT_EQ(x[2 * kN], before[2 * kN]);  // a row the step does not have
  }
}

TEST_P(Rows, BendLogitsScalesAndCaps) {
  constexpr int32_t kN = 5000;  // more than a block takes
  ops::Context ctx(1);
  const std::vector<float> before = random_floats(2 * kN, 13);
  const DeviceArray<StepCounts> counts(*device, {{.num_rows = 2, .num_logit_rows = 1}});
  for (const float cap : {0.0f, 1.5f}) {
    DeviceArray<float> logits(*device, before);
    ops.bend_logits(*stream,
                    {.logits = logits.device(),
                     .n = kN,
                     .factor = 2.0f,
                     .cap = cap,
                     .max_rows = 2,
                     .step = {.counts = counts.device()}});
    stream->wait();
    logits.pull();
    std::vector<float> expected = before;
    ops::scale(ctx, expected.data(), 2.0f, kN);
    if (cap != 0.0f) ops::softcap(ctx, expected.data(), cap, kN);
    for (size_t i = 0; i < 2 * kN; ++i) ASSERT_NEAR(logits[i], expected[i], 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Rows, ::testing::Values(Type::kF32, Type::kBF16, Type::kF16));

}  // namespace
}  // namespace outrider::gpu
