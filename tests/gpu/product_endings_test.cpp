// The fused endings of a product: the same bits as the plain product and what would follow it.
#include "runtime/ops/ops.h"
#include "tests/gpu/product_case.h"

namespace outrider::gpu {
namespace {

struct Kind {
  Type weights;
  Type inputs;
};

class Endings : public ProductTest, public ::testing::WithParamInterface<Kind> {
 protected:
  Type weight_type = GetParam().weights;
  Type input_type = GetParam().inputs;

  Table random_weights(int32_t n_out, int32_t n_in, unsigned seed) {
    Table table = random_table(n_out, n_in, inputs_for(weight_type), seed);
    for (float& value : table.values) value = rounded(value / 8, inputs_for(weight_type));
    return table;
  }

  // gate and up in `order`; [max_rows, ffn] activations.
  DeviceArray<std::byte> swiglu(const TestMatrix& weights,
                                const TestInputs& in,
                                int32_t num_rows,
                                int32_t max_rows,
                                const std::vector<float>& bias) {
    const int32_t ffn = weights.matrix.n_out / 2;
    const DeviceArray<StepCounts> counts(*device, std::vector{StepCounts{.num_rows = num_rows}});
    const DeviceArray<float> packed_bias(*device, weights.packed(bias));
    DeviceArray<std::byte> out(*device,
                               activation_elements(max_rows, ffn) * type_bytes(input_type));
    out.poison();
    ops.swiglu_product(*stream,
                       {.in = in.activations,
                        .weights = weights.matrix,
                        .bias = packed_bias.device(),
                        .max_rows = max_rows,
                        .step = {.counts = counts.device()}},
                       {.out = {out.device(), input_type, ffn}});
    stream->wait();
    out.pull();
    return out;
  }
};

TEST_P(Endings, SwigluIsTheProductThenTheCpusSilu) {
  constexpr int32_t kIn = 296;
  ops::Context ctx(1);
  for (const auto& [ffn, num_rows, max_rows] :
       {std::tuple{72, 1, 1}, {40, 5, 7}, {24, 20, 32}, {200, 40, 70}}) {
    const Table values = random_weights(2 * ffn, kIn, 1);
    const std::vector<float> bias = random_table(1, 2 * ffn, Type::kF32, 2).values;
    const TestInputs in(*device, random_table(max_rows, kIn, input_type, 3), input_type);
    const TestMatrix plain(*device, values, weight_type);
    const TestMatrix paired(*device, values, weight_type, {RowOrder::kPairs, ffn});
    const std::vector<float> sums = store(plain, in.activations, num_rows, max_rows, bias);
    std::vector<float> expected(static_cast<size_t>(num_rows) * static_cast<size_t>(ffn));
    ops::activate_mul(ctx, expected.data(), sums.data(), num_rows, ffn, ops::ActivationKind::kSilu);
    const auto found = swiglu(paired, in, num_rows, max_rows, bias);
    const auto mistaken = swiglu(plain, in, num_rows, max_rows, bias);
    const Activations shape = {nullptr, input_type, ffn};
    int num_wrong = 0;
    int num_wrong_of_mistaken = 0;
    for (int32_t row = 0; row < num_rows; ++row) {
      for (int32_t i = 0; i < ffn; ++i) {
        const float is = rounded(
            expected[static_cast<size_t>(row) * static_cast<size_t>(ffn) + static_cast<size_t>(i)],
            input_type);
        num_wrong += widen(input_type, found.host(), place(shape, row, i)) != is;
        num_wrong_of_mistaken += widen(input_type, mistaken.host(), place(shape, row, i)) != is;
      }
      if (input_type == Type::kF32) continue;
      for (int32_t i = ffn; i < padded(ffn, kTileInner); ++i) {
        EXPECT_EQ(widen(input_type, found.host(), place(shape, row, i)), 0.0f);
      }
    }
    EXPECT_EQ(num_wrong, 0) << ffn << " units, " << num_rows << " rows";
    EXPECT_GT(num_wrong_of_mistaken, 0);
    if (num_rows < max_rows) {
      EXPECT_TRUE(std::isnan(widen(input_type, found.host(), place(shape, num_rows, 0))));
    }
  }
}

// Memory of one layer's pages and queries, as bits.
struct Written {
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  std::vector<std::byte> queries;
  bool operator==(const Written&) const = default;
};

constexpr int32_t kHeads = 3;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 48;
constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumBlocks = 40;
constexpr int32_t kMaxPosition = 64;

TEST_P(Endings, QkvIsTheProductThenRopeWrite) {
  constexpr int32_t kIn = 520;
  constexpr int32_t kOut = (kHeads + 2 * kKvHeads) * kHeadDim;
  const Type kv_type = input_type;
  const Table values = random_weights(kOut, kIn, 4);
  const std::vector<float> bias = random_table(1, kOut, Type::kF32, 5).values;
  const TestMatrix plain(*device, values, weight_type);
  const TestMatrix halved(*device, values, weight_type, {RowOrder::kHalves, kHeadDim / 2});
  const DeviceArray<float> angles(*device,
                                  random_table(kMaxPosition, kHeadDim, Type::kF32, 6).values);
  for (const auto& [num_rows, max_rows] : {std::pair{1, 1}, {13, 16}, {45, 60}}) {
    // Two sequences, rows of the second first; positions ascend in each.
    std::vector<int32_t> positions;
    std::vector<int32_t> sequences;
    for (int32_t row = 0; row < max_rows; ++row) {
      sequences.push_back(row < num_rows / 3 ? 1 : 0);
      positions.push_back(row < num_rows / 3 ? row + 2 : row - num_rows / 3 + 9);
    }
    std::vector<int32_t> tables(2 * 17);
    for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i * 7 % 34);
    const TestStep step(*device, positions, sequences, tables, 17, num_rows);
    const TestInputs in(*device, random_table(max_rows, kIn, input_type, 7), input_type);
    const std::vector<float> sums = store(plain, in.activations, num_rows, max_rows, bias);
    const DeviceArray<float> qkv(*device, sums);

    const size_t page_bytes =
        size_t{kNumBlocks} * kKvHeads * kBlockSize * kHeadDim * type_bytes(kv_type);
    DeviceArray<std::byte> keys(*device, page_bytes);
    DeviceArray<std::byte> slot_values(*device, page_bytes);
    DeviceArray<std::byte> queries(
        *device, static_cast<size_t>(max_rows) * kHeads * kHeadDim * type_bytes(kv_type));
    const QkvArgs to = {.queries = queries.device(),
                        .n_heads = kHeads,
                        .kv = {keys.device(),
                               slot_values.device(),
                               kv_type,
                               kNumBlocks,
                               kKvHeads,
                               kBlockSize,
                               kHeadDim},
                        .rotary = {angles.device(), kHeadDim}};
    const auto written_by = [&](const auto& op) {
      for (auto* memory : {&keys, &slot_values, &queries}) memory->poison();
      op();
      stream->wait();
      return Written{keys.pull(), slot_values.pull(), queries.pull()};
    };
    const auto fused_with = [&, max_rows = max_rows](const TestMatrix& weights) {
      const DeviceArray<float> packed_bias(*device, weights.packed(bias));
      return written_by([&] {
        ops.qkv_product(*stream,
                        {.in = in.activations,
                         .weights = weights.matrix,
                         .bias = packed_bias.device(),
                         .max_rows = max_rows,
                         .step = step.view},
                        to);
      });
    };
    const Written expected = written_by([&, max_rows = max_rows] {
      ops.rope_write(*stream,
                     {.qkv = qkv.device(), .to = to, .max_rows = max_rows, .step = step.view});
    });
    EXPECT_TRUE(fused_with(halved) == expected) << num_rows << " rows";
    EXPECT_FALSE(fused_with(plain) == expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         Endings,
                         ::testing::Values(Kind{Type::kF32, Type::kF32},
                                           Kind{Type::kBF16, Type::kBF16},
                                           Kind{Type::kF16, Type::kF16},
                                           Kind{Type::kE4M3, Type::kBF16}));

// f32 has the CPU backend's bits, whole or cut into slices that end anywhere (there: at even
// inputs).
using LikeTheCpu = ProductTest;
TEST_F(LikeTheCpu, F32HasItsBits) {
  constexpr int32_t kOut = 70;
  constexpr int32_t kIn = 700;
  constexpr int32_t kRows = 19;
  ops::Context ctx(1);
  const Table values = random_table(kOut, kIn, Type::kF32, 11);
  const Table inputs = random_table(kRows, kIn, Type::kF32, 12);
  const std::vector<float> bias = random_table(1, kOut, Type::kF32, 13).values;
  TestMatrix weights(*device, values, Type::kF32);
  const TestInputs in(*device, inputs, Type::kF32);
  ops::PackedMatrix packed(kOut, kIn, ops::DType::kF32);
  packed.fill_rows(0, values.values.data(), kOut, kIn, ops::DType::kF32);
  for (const SliceEnds& ends : {SliceEnds{1, {kIn}},
                                SliceEnds{2, {350, kIn}},
                                SliceEnds{8, {2, 90, 176, 400, 400, 500, 658, kIn}}}) {
    const std::vector<int64_t> cpu_ends(ends.slice_ends, ends.slice_ends + ends.num_slices);
    std::vector<float> expected(static_cast<size_t>(kRows) * kOut);
    ops::linear(ctx,
                expected.data(),
                inputs.values.data(),
                kRows,
                packed,
                {.bias = bias.data(), .slice_ends = cpu_ends});
    weights.cut(ends);
    const std::vector<float> found = store(weights, in.activations, kRows, kRows, bias);
    EXPECT_EQ(found, expected) << ends.num_slices << " slices";
  }
}

}  // namespace
}  // namespace outrider::gpu
