// What a product's bits may not depend on: the other rows, the kernel that the number of rows
// chooses, how many output tiles a warp takes, the number of ranks under strict numerics.
#include "runtime/base/numbers/fold_tree.h"
#include "tests/gpu/product_case.h"

namespace outrider::gpu {
namespace {

class SameBits : public ProductTest, public ::testing::WithParamInterface<Type> {
 protected:
  Type weight_type = GetParam();
  Type input_type = inputs_for(weight_type);

  static bool same(const float* a, const float* b, size_t count) {
    return std::memcmp(a, b, count * sizeof(float)) == 0;
  }
};

// Times 2^-7 to 2^7, so that what is added differs in size.
Table spread(Table table, unsigned seed) {
  std::mt19937 random(seed);
  for (float& value : table.values) value = std::ldexp(value, static_cast<int>(random() % 15) - 7);
  return table;
}

// Row r of a call of 1, 5, 17, 32, 40, 64 and 70 rows: warps multiply alone or four together.
TEST_P(SameBits, WhateverOtherRowsThereAre) {
  constexpr int32_t kOut = 88;
  constexpr int32_t kRows = 70;
  for (const int32_t n_in : {600, 72}) {
    const TestMatrix weights(
        *device, spread(random_table(kOut, n_in, inputs_for(weight_type), 1), 3), weight_type);
    const Table inputs = spread(random_table(kRows, n_in, input_type, 2), 4);
    const TestInputs all(*device, inputs, input_type);
    const std::vector<float> bias = random_table(1, kOut, Type::kF32, 3).values;
    const std::vector<float> wide = store(weights, all.activations, kRows, kRows, bias);
    for (const int32_t rows : {5, 17, 32, 40, 64}) {
      choose_thread_order(static_cast<unsigned>(rows));
      const std::vector<float> some = store(weights, all.activations, rows, rows, bias);
      EXPECT_TRUE(same(some.data(), wide.data(), some.size())) << rows << " rows";
    }
    for (const int32_t row : {0, 3, 31, 69}) {
      Table one = {1, n_in, {}};
      for (int32_t k = 0; k < n_in; ++k) one.values.push_back(inputs.at(row, k));
      const TestInputs alone(*device, one, input_type);
      const std::vector<float> found = store(weights, alone.activations, 1, 1, bias);
      EXPECT_TRUE(same(found.data(), wide.data() + row * kOut, kOut)) << "row " << row;
    }
  }
}

// Orders of blocks, threads and arriving copies.
TEST_P(SameBits, UnderEverySeed) {
  const TestMatrix weights(*device, random_table(50, 400, inputs_for(weight_type), 4), weight_type);
  const TestInputs in(*device, random_table(70, 400, input_type, 5), input_type);
  for (const int32_t rows : {7, 70}) {
    const std::vector<float> first = store(weights, in.activations, rows, rows);
    for (unsigned seed = 10; seed < 16; ++seed) {
      choose_thread_order(seed);
      const std::vector<float> again = store(weights, in.activations, rows, rows);
      EXPECT_TRUE(same(again.data(), first.data(), first.size())) << "seed " << seed;
    }
  }
}

// 8 slices of the whole, or 8 / R on each of R ranks whose results are folded in the same tree.
TEST_P(SameBits, WhateverTheNumberOfRanks) {
  constexpr int32_t kOut = 24;
  constexpr int32_t kIn = 256;
  const SliceEnds whole = {8, {32, 48, 96, 96, 128, 176, 240, 256}};  // one is empty
  const Table values = random_table(kOut, kIn, inputs_for(weight_type), 6);
  const std::vector<float> bias = random_table(1, kOut, Type::kF32, 7).values;
  for (const int32_t rows : {4, 40, 70}) {
    const Table inputs = random_table(rows, kIn, input_type, 8);
    TestMatrix weights(*device, values, weight_type);
    weights.cut(whole);
    const TestInputs in(*device, inputs, input_type);
    const std::vector<float> expected = store(weights, in.activations, rows, rows, bias);
    weights.cut({1, {kIn}});
    const std::vector<float> uncut = store(weights, in.activations, rows, rows, bias);
    EXPECT_FALSE(same(uncut.data(), expected.data(), expected.size()));  // the cut can be seen
    for (const int32_t ranks : {2, 4}) {
      std::vector<float> parts;
      const int32_t per_rank = 8 / ranks;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const int32_t begin = rank == 0 ? 0 : whole.slice_ends[rank * per_rank - 1];
        const int32_t end = whole.slice_ends[(rank + 1) * per_rank - 1];
        Table part_inputs = {rows, end - begin, {}};
        for (int32_t row = 0; row < rows; ++row) {
          for (int32_t k = begin; k < end; ++k) part_inputs.values.push_back(inputs.at(row, k));
        }
        TestMatrix shard = weights.part(*device, begin, end);
        SliceEnds ends = {.num_slices = per_rank};
        for (int32_t s = 0; s < per_rank; ++s) {
          ends.slice_ends[s] = whole.slice_ends[rank * per_rank + s] - begin;
        }
        shard.cut(ends);
        const TestInputs part_in(*device, part_inputs, input_type);
        const std::vector<float> part =
            store(shard, part_in.activations, rows, rows, rank == 0 ? bias : std::vector<float>());
        parts.insert(parts.end(), part.begin(), part.end());
      }
      fold_in_tree(parts.data(), static_cast<size_t>(ranks), expected.size());
      EXPECT_TRUE(same(parts.data(), expected.data(), expected.size())) << ranks << " ranks";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         SameBits,
                         ::testing::Values(Type::kF32, Type::kBF16, Type::kF16, Type::kE4M3));

// Matrices so tall that blocks have another shape than for some of their outputs alone.
class TallMatrix : public ProductTest {
 protected:
  void expect_bits_of_some(Type weight_type, int32_t n_out, int32_t n_in, int32_t rows) {
    const Type input_type = inputs_for(weight_type);
    const Table values = random_table(n_out, n_in, input_type, static_cast<unsigned>(rows));
    const TestInputs in(*device, random_table(rows, n_in, input_type, 2), input_type);
    const TestMatrix tall(*device, values, weight_type);
    const std::vector<float> found = store(tall, in.activations, rows, rows);
    for (const int32_t first : {0, n_out / 32 * 16, n_out - 64}) {
      Table some = {64, n_in, {}};
      const auto from = values.values.begin() + static_cast<ptrdiff_t>(first) * n_in;
      some.values.assign(from, from + 64 * n_in);
      const TestMatrix low(*device, some, weight_type);
      const std::vector<float> expected = store(low, in.activations, rows, rows);
      for (int32_t row = 0; row < rows; ++row) {
        EXPECT_EQ(std::memcmp(found.data() + static_cast<ptrdiff_t>(row) * n_out + first,
                              expected.data() + row * 64,
                              64 * sizeof(float)),
                  0)
            << n_out << " outputs from " << first << ", row " << row;
      }
    }
  }
};

// Warps take two, three or four output tiles each, blocks more than one turn.
TEST_F(TallMatrix, TilesPerWarpAndTurnsDoNotShow) {
  struct Size {
    int32_t n_out;
    int32_t n_in;
    int32_t rows;
  };
  for (const auto& [n_out, n_in, rows] : {Size{6720, 528, 8},
                                          {12832, 528, 3},
                                          {17008, 528, 12},
                                          {8448 + 16, 512, 3},
                                          {8448, 512, 12},
                                          {8448, 512, 28},
                                          {16896 + 48, 512, 20},
                                          {16896, 512, 32},
                                          {4096 + 16, 528, 64},
                                          {6720 + 16, 528, 40}}) {
    expect_bits_of_some(Type::kBF16, n_out, n_in, rows);
  }
}

// Blocks of 128 outputs x 128 rows, of which the last has 16 outputs and 2 rows in a group; 8
// slices, which end in the midst of a stage. And 4 slices.
TEST_F(TallMatrix, BlocksOfManyRowsDoNotShow) {
  for (const Type type : {Type::kBF16, Type::kF16, Type::kE4M3}) {
    expect_bits_of_some(type, 8192 + 16, 600, 130);
  }
  expect_bits_of_some(Type::kBF16, 16896 - 16, 264, 70);
  expect_bits_of_some(Type::kBF16, 8192 + 16, 264, 200);
}

}  // namespace
}  // namespace outrider::gpu
