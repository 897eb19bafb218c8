// Products against sums in doubles: every type, odd sizes, few rows and many.
#include "runtime/base/error.h"
#include "tests/gpu/product_case.h"

namespace outrider::gpu {
namespace {

struct Shape {
  int32_t n_out;
  int32_t n_in;
};

class EveryType : public ProductTest, public ::testing::WithParamInterface<std::pair<Type, Type>> {
 protected:
  Type weight_type = GetParam().first;
  Type input_type = GetParam().second;
  double tolerance = weight_type == Type::kF32 ? 1e-6 : 1e-4;

  // How many outputs are not what doubles give.
  int num_wrong(const std::vector<float>& found,
                const Table& weights,
                const Table& inputs,
                int32_t num_rows,
                const std::vector<float>& bias) {
    int wrong = 0;
    for (int32_t row = 0; row < num_rows; ++row) {
      for (int32_t out = 0; out < weights.rows; ++out) {
        const Exact exact = exact_product(weights, out, inputs, row);
        const double added = bias.empty() ? 0.0 : bias[static_cast<size_t>(out)];
        const double error = found[static_cast<size_t>(row) * static_cast<size_t>(weights.rows) +
                                   static_cast<size_t>(out)] -
                             (exact.sum + added);
        wrong += !(std::fabs(error) <= tolerance * (exact.magnitude + std::fabs(added)));
      }
    }
    return wrong;
  }
};

TEST_P(EveryType, GivesTheSum) {
  unsigned seed = 1;
  for (const Shape& shape : {Shape{40, 72}, {16, 16}, {130, 300}, {7, 1000}, {3, 5}}) {
    for (const auto& [num_rows, max_rows] :
         {std::pair{1, 1}, {5, 6}, {9, 16}, {17, 24}, {32, 32}, {33, 50}, {70, 130}}) {
      choose_thread_order(seed);
      const Table values = random_table(shape.n_out, shape.n_in, inputs_for(weight_type), ++seed);
      const Table inputs = random_table(max_rows, shape.n_in, input_type, ++seed);
      const TestMatrix weights(*device, values, weight_type);
      const TestInputs in(*device, inputs, input_type);
      const std::vector<float> bias = random_table(1, shape.n_out, Type::kF32, ++seed).values;
      for (const bool with_bias : {false, true}) {
        const std::vector<float> found = store(
            weights, in.activations, num_rows, max_rows, with_bias ? bias : std::vector<float>());
        EXPECT_EQ(
            num_wrong(
                found, weights.values(), inputs, num_rows, with_bias ? bias : std::vector<float>()),
            0)
            << shape.n_out << " x " << shape.n_in << ", rows " << num_rows;
        for (size_t i = static_cast<size_t>(num_rows) * static_cast<size_t>(shape.n_out);
             i < found.size();
             ++i) {
          ASSERT_TRUE(std::isnan(found[i])) << "a row that the step does not have";
        }
      }
    }
  }
}

// The comparison above sees a wrong map: two weights exchanged in one tile.
TEST_P(EveryType, AWrongPlaceShows) {
  const Table values = random_table(32, 64, inputs_for(weight_type), 5);
  const Table inputs = random_table(3, 64, input_type, 6);
  TestMatrix weights(*device, values, weight_type);
  const TestInputs in(*device, inputs, input_type);
  Table exchanged = weights.values();
  std::swap(exchanged.values[64 * 20 + 33], exchanged.values[64 * 20 + 34]);
  const std::vector<float> found = store(weights, in.activations, 3, 3);
  EXPECT_EQ(num_wrong(found, weights.values(), inputs, 3, {}), 0);
  EXPECT_GT(num_wrong(found, exchanged, inputs, 3, {}), 0);
}

TEST_P(EveryType, SelectedRowsAreCountedApart) {
  const Table inputs = random_table(8, 48, input_type, 8);
  const TestMatrix weights(*device, random_table(20, 48, inputs_for(weight_type), 7), weight_type);
  const TestInputs in(*device, inputs, input_type);
  const StepCounts counts = {.num_rows = 8, .num_logit_rows = 2};
  const std::vector<float> found = store(weights, in.activations, counts, 8, {}, true);
  EXPECT_EQ(num_wrong(found, weights.values(), inputs, 2, {}), 0);
  EXPECT_TRUE(std::isnan(found[40]));
}

// What the launch before writes is not read before it has ended; weights and the step's counts are.
TEST_P(EveryType, ActivationsAreReadBehindTheWait) {
  const TestMatrix weights(*device, random_table(16, 600, inputs_for(weight_type), 9), weight_type);
  for (const int32_t rows : {1, 13, 20, 30, 40}) {
    const Table inputs = random_table(rows, 600, input_type, 10);
    const TestInputs in(*device, inputs, input_type);
    write_by_predecessor({in.bytes()});
    const std::vector<float> found = store(weights, in.activations, rows, rows);
    EXPECT_EQ(num_wrong(found, weights.values(), inputs, rows, {}), 0) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         EveryType,
                         ::testing::Values(std::pair{Type::kF32, Type::kF32},
                                           std::pair{Type::kBF16, Type::kBF16},
                                           std::pair{Type::kF16, Type::kF16},
                                           std::pair{Type::kE4M3, Type::kBF16}));

using Refusals = ProductTest;

TEST_F(Refusals, WhatDoesNotFitIsASentence) {
  TestMatrix weights(*device, random_table(16, 64, Type::kBF16, 1), Type::kBF16);
  const TestInputs in(*device, random_table(1, 64, Type::kBF16, 2), Type::kBF16);
  EXPECT_NO_THROW(store(weights, in.activations, 1, 1));
  const SliceEnds good = default_slice_ends(64);
  for (const SliceEnds& ends : {SliceEnds{3, {16, 32, 64}},
                                SliceEnds{2, {24, 64}},
                                SliceEnds{2, {48, 32}},
                                SliceEnds{2, {32, 48}},
                                SliceEnds{0, {}}}) {
    weights.cut(ends);
    EXPECT_THROW(store(weights, in.activations, 1, 1), Error);
  }
  weights.cut(good);
  Activations other = in.activations;
  other.type = Type::kF16;
  EXPECT_THROW(store(weights, other, 1, 1), Error);
  other = in.activations;
  other.n = 48;
  EXPECT_THROW(store(weights, other, 1, 1), Error);
  weights.matrix.type = Type::kE4M3;
  EXPECT_THROW(store(weights, in.activations, 1, 1), Error);
  // The empty slice would have the last tile once more.
  TestMatrix ragged(*device, random_table(16, 40, Type::kBF16, 1), Type::kBF16);
  const TestInputs in_ragged(*device, random_table(1, 40, Type::kBF16, 2), Type::kBF16);
  ragged.cut({2, {40, 40}});
  EXPECT_THROW(store(ragged, in_ragged.activations, 1, 1), Error);
}

}  // namespace
}  // namespace outrider::gpu
