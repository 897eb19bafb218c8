// Mixtures of experts on a GPU: who is chosen, how rows are laid into tiles, that products of
// experts have the bits of each expert's matrix by itself, and the order in which they are added
// up.
#include "runtime/ops/gpu/experts.h"

#include "runtime/base/numbers/fold_tree.h"
#include "runtime/ops/ops.h"
#include "tests/gpu/product_case.h"

namespace outrider::gpu {
namespace {

struct Sizes {
  int32_t num_rows = 0;  // of the step
  int32_t first_row = 0;
  int32_t max_rows = 0;  // of the piece
  int32_t num_experts = 0;
  int32_t per_row = 0;
  int32_t rows_of_piece() const { return std::clamp(num_rows - first_row, 0, max_rows); }
};

// A piece's memory.
struct Routed {
  Routed(Device& device, const Sizes& sizes)
      : of(sizes),
        counts(device, std::vector{StepCounts{.num_rows = sizes.num_rows}}),
        tile_rows(expert_tile_rows(sizes.max_rows, sizes.num_experts, sizes.per_row)),
        max_tiles(max_expert_tiles(sizes.max_rows * sizes.per_row, sizes.num_experts, tile_rows)),
        ids(device, size(sizes.max_rows * sizes.per_row)),
        weights(device, size(sizes.max_rows * sizes.per_row)),
        pairs(device, size(max_tiles * tile_rows)),
        tiles(device, size(max_tiles)),
        num_tiles(device, 1) {
    for (auto* memory : {&ids, &pairs, &num_tiles}) memory->poison();
    weights.poison();
    tiles.poison();
  }
  RoutedRows view() const {
    return {.first_row = of.first_row,
            .max_rows = of.max_rows,
            .num_experts = of.num_experts,
            .per_row = of.per_row,
            .tile_rows = tile_rows,
            .ids = ids.device(),
            .weights = weights.device(),
            .pairs = pairs.device(),
            .tiles = tiles.device(),
            .num_tiles = num_tiles.device()};
  }
  StepView step() const { return {.counts = counts.device()}; }
  void pull() {
    for (auto* memory : {&ids, &pairs, &num_tiles}) memory->pull();
    weights.pull();
    tiles.pull();
  }
  // Calls each(slot, expert, pair) for every pair of the tiles.
  template <typename Each>
  void for_slots(const Each& each) const {
    for (int32_t t = 0; t < num_tiles[0]; ++t) {
      for (int32_t i = 0; i < tiles[size(t)].num_rows; ++i) {
        const int32_t slot = t * tile_rows + i;
        each(slot, tiles[size(t)].expert, pairs[size(slot)]);
      }
    }
  }

  static size_t size(int32_t n) { return static_cast<size_t>(n); }
  Sizes of;
  DeviceArray<StepCounts> counts;
  int32_t tile_rows;
  int32_t max_tiles;
  DeviceArray<int32_t> ids;
  DeviceArray<float> weights;
  DeviceArray<int32_t> pairs;
  DeviceArray<ExpertTile> tiles;
  DeviceArray<int32_t> num_tiles;
};

constexpr size_t at(int32_t row, int32_t width, int32_t i = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(i);
}

class Experts : public ProductTest {
 protected:
  static constexpr int32_t kHidden = 52;
  static constexpr float kEps = 1e-5f;

  // [rows of the piece, num_logits]; others are NaN.
  std::vector<float> route(Routed& to,
                           const std::vector<float>& x,
                           const std::vector<float>& router,
                           const ops::ExpertChoice& choice,
                           int32_t num_logits) {
    DeviceArray<float> logits(*device, at(to.of.max_rows, num_logits));
    logits.poison();
    const DeviceArray<float> shared_x(*device, x);
    const DeviceArray<float> norm(*device, norm_weight());
    const DeviceArray<float> shared_router(*device, router);
    const DeviceArray<float> shared_bias(*device, bias_of(num_logits));
    ops.route_rows(*stream,
                   {.to = to.view(),
                    .logits = logits.device(),
                    .x = shared_x.device(),
                    .norm_weight = norm.device(),
                    .eps = kEps,
                    .n = kHidden,
                    .router = shared_router.device(),
                    .bias = shared_bias.device(),
                    .num_logits = num_logits,
                    .choice = choice,
                    .step = to.step()});
    stream->wait();
    to.pull();
    return logits.pull();
  }
  static std::vector<float> norm_weight() { return random_floats(kHidden, 77); }
  static std::vector<float> bias_of(int32_t num_logits) {
    return std::vector<float>(static_cast<size_t>(num_logits), 0.125f);
  }
  static double exact_logit(const float* x, const float* router) {
    const std::vector<float> weight = norm_weight();
    double squares = 0.0;
    for (int32_t i = 0; i < kHidden; ++i) squares += double{x[i]} * x[i];
    const double factor = 1.0 / std::sqrt(squares / kHidden + kEps);
    double sum = 0.125;
    for (int32_t i = 0; i < kHidden; ++i) {
      sum += double{x[i]} * factor * weight[static_cast<size_t>(i)] * router[i];
    }
    return sum;
  }
  static void expect_tiles(const Routed& to) {
    const int32_t num_pairs = to.of.rows_of_piece() * to.of.per_row;
    ASSERT_LE(to.num_tiles[0], to.max_tiles);
    std::vector<int> seen(static_cast<size_t>(num_pairs));
    std::pair last = {-1, -1};
    to.for_slots([&](int32_t, int32_t expert, int32_t pair) {
      ASSERT_TRUE(pair >= 0 && pair < num_pairs);
      ++seen[static_cast<size_t>(pair)];
      EXPECT_EQ(to.ids[static_cast<size_t>(pair)], expert);
      EXPECT_LT(last, std::pair(expert, pair));
      last = {expert, pair};
    });
    EXPECT_EQ(std::ranges::count(seen, 1), num_pairs);
    for (int32_t t = 0; t < to.num_tiles[0]; ++t) {  // only an expert's last is not full
      const ExpertTile& tile = to.tiles[static_cast<size_t>(t)];
      const bool goes_on =
          t + 1 < to.num_tiles[0] && to.tiles[static_cast<size_t>(t) + 1].expert == tile.expert;
      EXPECT_TRUE(goes_on ? tile.num_rows == to.tile_rows
                          : tile.num_rows >= 1 && tile.num_rows <= to.tile_rows);
    }
  }
};

struct Case {
  Sizes sizes;
  ops::ExpertChoice choice;
  int32_t num_logits = 0;
};
std::vector<Case> choices() {
  static const std::vector<float> correction = random_floats(96, 5);
  return {{{1, 0, 8, 6, 2}, {.count = 6, .per_row = 2, .normalised = true}, 6},
          {{37, 0, 40, 70, 5}, {.count = 70, .per_row = 5, .scale = 2.5f}, 71},
          {{37, 16, 16, 3, 3}, {.count = 3, .per_row = 3}, 4},
          {{21, 16, 16, 5, 1}, {.count = 5, .per_row = 1, .sigmoid = true}, 5},
          {{50, 0, 64, 96, 9},
           {.count = 96,
            .per_row = 9,
            .sigmoid = true,
            .correction = correction.data(),
            .groups = 48,
            .chosen_groups = 7,
            .normalised = true},
           96}};
}

TEST_F(Experts, AreChosenAsTheCpuChooses) {
  ops::Context ctx(1);
  unsigned seed = 1;
  for (Case c : choices()) {
    const Sizes& sizes = c.sizes;
    std::vector<float> x = random_floats(at(sizes.num_rows, kHidden), ++seed);
    std::vector<float> router = random_floats(at(c.num_logits, kHidden), ++seed);
    // Experts that nobody can tell apart, far from each other and near.
    std::copy_n(router.begin() + kHidden, kHidden, router.begin() + 2 * kHidden);
    std::copy_n(router.begin(), kHidden, router.begin() + (sizes.num_experts - 1) * kHidden);
    ops::ExpertChoice on_device = c.choice;
    std::vector<float> correction;
    if (c.choice.correction != nullptr) {
      correction.assign(c.choice.correction, c.choice.correction + sizes.num_experts);
    }
    const DeviceArray<float> shared(*device, correction);
    if (!correction.empty()) on_device.correction = shared.device();
    Routed to(*device, sizes);
    std::vector<float> logits = route(to, x, router, on_device, c.num_logits);
    const int32_t rows = sizes.rows_of_piece();
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t e = 0; e < c.num_logits; ++e) {
        EXPECT_NEAR(logits[at(r, c.num_logits, e)],
                    exact_logit(&x[at(sizes.first_row + r, kHidden)], &router[at(e, kHidden)]),
                    1e-4);
      }
    }
    std::vector<int32_t> ids(at(rows, sizes.per_row));
    std::vector<float> weights(ids.size());
    ops::choose_experts(
        ctx, ids.data(), weights.data(), {logits.data(), rows, c.num_logits}, c.choice);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(to.ids[i], ids[i]) << "pair " << i << " of " << sizes.num_experts << " experts";
      EXPECT_NEAR(to.weights[i], weights[i], 1e-6f * std::max(1.0f, std::fabs(weights[i])));
    }
    expect_tiles(to);
  }
}

TEST_F(Experts, ARowsChoiceDoesNotDependOnItsStep) {
  const ops::ExpertChoice choice = {.count = 40, .per_row = 6, .normalised = true};
  const std::vector<float> x = random_floats(at(33, kHidden), 3);
  const std::vector<float> router = random_floats(at(40, kHidden), 4);
  Routed together(*device, {33, 0, 40, 40, 6});
  route(together, x, router, choice, 40);
  for (const int32_t row : {0, 7, 32}) {
    Routed alone(*device, {1, 0, 1, 40, 6});
    const auto first = x.begin() + row * kHidden;
    route(alone, std::vector<float>(first, first + kHidden), router, choice, 40);
    for (int32_t i = 0; i < 6; ++i) {
      EXPECT_EQ(alone.ids[at(0, 6, i)], together.ids[at(row, 6, i)]);
      EXPECT_EQ(alone.weights[at(0, 6, i)], together.weights[at(row, 6, i)]);
    }
  }
}

TEST_F(Experts, RowsThatAreNotNumbersStillNameExperts) {
  const ops::ExpertChoice choice = {.count = 9, .per_row = 4, .normalised = true};
  std::vector<float> x = random_floats(at(3, kHidden), 3);
  x[kHidden + 5] = std::numeric_limits<float>::quiet_NaN();
  Routed to(*device, {3, 0, 8, 9, 4});
  route(to, x, random_floats(at(9, kHidden), 4), choice, 9);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(to.ids[at(1, 4, i)], i);
    EXPECT_FALSE(std::isfinite(to.weights[at(1, 4, i)]));
    EXPECT_TRUE(std::isfinite(to.weights[at(0, 4, i)]));
  }
  expect_tiles(to);
}

struct Kind {
  Type weights;
  Type inputs;
};

class ExpertProducts : public Experts, public ::testing::WithParamInterface<Kind> {
 protected:
  static constexpr int32_t kExperts = 5;
  Type weight_type = GetParam().weights;
  Type input_type = GetParam().inputs;

  // Rows of one step by experts drawn here.
  Routed drawn(const Sizes& sizes) {
    Routed to(*device, sizes);
    const ops::ExpertChoice choice = {.count = kExperts, .per_row = sizes.per_row};
    route(to,
          random_floats(at(sizes.num_rows, kHidden), 31),
          random_floats(at(kExperts, kHidden), 32),
          choice,
          kExperts);
    return to;
  }
  Table weights_of(int32_t n_out, int32_t n_in, unsigned seed) const {
    Table table = random_table(kExperts * n_out, n_in, inputs_for(weight_type), seed);
    for (float& value : table.values) value = rounded(value / 8, inputs_for(weight_type));
    return table;
  }
  static Table of_expert(const Table& all, int32_t e) {
    const int32_t n_out = all.rows / kExperts;
    const auto first = all.values.begin() + static_cast<ptrdiff_t>(at(e * n_out, all.n));
    return {n_out, all.n, {first, first + static_cast<ptrdiff_t>(at(n_out, all.n))}};
  }
  static std::vector<float> of_expert(const std::vector<float>& all, int32_t e) {
    const auto n = static_cast<ptrdiff_t>(all.size()) / kExperts;
    return {all.begin() + e * n, all.begin() + (e + 1) * n};
  }
  static std::vector<Sizes> sizes() {
    return {{1, 0, 8, kExperts, 2}, {13, 0, 16, kExperts, 3}, {70, 32, 48, kExperts, 4}};
  }
};

TEST_P(ExpertProducts, GateAndUpHaveTheBitsOfEachMatrixByItself) {
  constexpr int32_t kIn = 296;
  constexpr int32_t kFfn = 48;
  const Table values = weights_of(2 * kFfn, kIn, 1);
  TestMatrix all(*device, values, weight_type, {RowOrder::kPairs, kFfn});
  const std::vector<float> bias = random_floats(static_cast<size_t>(values.rows), 2);
  const DeviceArray<float> packed_bias(*device, all.packed(bias));
  all.matrix.n_out = 2 * kFfn;
  for (const Sizes& sizes : sizes()) {
    Routed routed = drawn(sizes);
    const TestInputs in(*device, random_table(sizes.num_rows, kIn, input_type, 3), input_type);
    const auto run = [&](int32_t rows, const auto& op) {
      DeviceArray<std::byte> out(*device, activation_elements(rows, kFfn) * type_bytes(input_type));
      out.poison();
      op(Activations{out.device(), input_type, kFfn});
      stream->wait();
      out.pull();
      return out;
    };
    const auto found = run(routed.max_tiles * routed.tile_rows, [&](const Activations& to) {
      ops.expert_gate_up(*stream,
                         {.in = in.activations,
                          .weights = all.matrix,
                          .bias = packed_bias.device(),
                          .max_rows = sizes.num_rows,
                          .step = routed.step()},
                         {.rows = routed.view(), .out = to});
    });
    std::vector<DeviceArray<std::byte>> expected;
    for (int32_t e = 0; e < kExperts; ++e) {
      const TestMatrix one(*device, of_expert(values, e), weight_type, {RowOrder::kPairs, kFfn});
      const DeviceArray<float> own_bias(*device, one.packed(of_expert(bias, e)));
      expected.push_back(run(sizes.num_rows, [&](const Activations& to) {
        ops.swiglu_product(*stream,
                           {.in = in.activations,
                            .weights = one.matrix,
                            .bias = own_bias.device(),
                            .max_rows = sizes.num_rows,
                            .step = routed.step()},
                           {to});
      }));
    }
    const Activations shape = {nullptr, input_type, kFfn};
    int num_wrong = 0;
    routed.for_slots([&](int32_t slot, int32_t e, int32_t pair) {
      const int32_t row = sizes.first_row + pair / sizes.per_row;
      const std::byte* const own = expected[static_cast<size_t>(e)].host();
      for (int32_t i = 0; i < kFfn; ++i) {
        const float is = widen(input_type, found.host(), place(shape, slot, i));
        num_wrong += !(is == widen(input_type, own, place(shape, row, i)));
      }
    });
    EXPECT_EQ(num_wrong, 0) << sizes.num_rows << " rows";
  }
}

TEST_P(ExpertProducts, DownHasTheBitsOfEachMatrixByItself) {
  constexpr int32_t kIn = 304;
  constexpr int32_t kOut = 40;  // padded to 48
  Table values = weights_of(48, kIn, 4);
  TestMatrix all(*device, values, weight_type);
  const SliceEnds ends = {4, {64, 128, 128, kIn}};
  all.cut(ends);
  const std::vector<float> bias = random_floats(static_cast<size_t>(values.rows), 5);
  const DeviceArray<float> all_bias(*device, bias);
  all.matrix.n_out = kOut;
  for (const Sizes& sizes : sizes()) {
    Routed routed = drawn(sizes);
    const int32_t num_slots = routed.max_tiles * routed.tile_rows;
    const int32_t num_pairs = sizes.max_rows * sizes.per_row;
    const TestInputs in(*device, random_table(num_slots, kIn, input_type, 6), input_type);
    const auto run = [&](bool keeps_slices) {
      const int32_t num_stored = keeps_slices ? ends.num_slices : 1;
      DeviceArray<float> out(*device, at(num_pairs * num_stored, kOut));
      out.poison();
      ops.expert_down(*stream,
                      {.in = in.activations,
                       .weights = all.matrix,
                       .bias = all_bias.device(),
                       .max_rows = sizes.num_rows,
                       .step = routed.step()},
                      {routed.view(), out.device(), keeps_slices});
      stream->wait();
      return out.pull();
    };
    const std::vector<float> folded = run(false);
    std::vector<float> kept = run(true);
    std::vector<std::vector<float>> expected;
    for (int32_t e = 0; e < kExperts; ++e) {
      TestMatrix one(*device, of_expert(values, e), weight_type);
      one.cut(ends);
      expected.push_back(store(one, in.activations, num_slots, num_slots, of_expert(bias, e)));
    }
    int num_wrong = 0;
    routed.for_slots([&](int32_t slot, int32_t e, int32_t pair) {
      float* const slices = &kept[at(pair * ends.num_slices, kOut)];
      fold_in_tree(slices, static_cast<size_t>(ends.num_slices), static_cast<size_t>(kOut));
      for (int32_t i = 0; i < kOut; ++i) {
        const float is = expected[static_cast<size_t>(e)][at(slot, 48, i)];
        num_wrong += !(folded[at(pair, kOut, i)] == is) + !(slices[i] == is);
      }
    });
    EXPECT_EQ(num_wrong, 0) << sizes.num_rows << " rows";
    for (int32_t pair = sizes.rows_of_piece() * sizes.per_row; pair < num_pairs; ++pair) {
      EXPECT_TRUE(std::isnan(folded[at(pair, kOut)])) << "a row that is not there";
    }
  }
}

// As a shared expert: every row of the piece, one matrix.
TEST_P(ExpertProducts, WithoutTilesEveryRowHasOneMatrix) {
  constexpr int32_t kIn = 304;
  constexpr int32_t kOut = 40;
  const TestMatrix one(*device, random_table(kOut, kIn, inputs_for(weight_type), 8), weight_type);
  for (const Sizes& sizes : sizes()) {
    Routed routed(*device, sizes);
    const TestInputs in(*device, random_table(sizes.num_rows, kIn, input_type, 9), input_type);
    DeviceArray<float> out(*device, at(sizes.max_rows, kOut));
    RoutedRows every = routed.view();
    every.tiles = nullptr;
    ops.expert_down(*stream,
                    {.in = in.activations,
                     .weights = one.matrix,
                     .max_rows = sizes.num_rows,
                     .step = routed.step()},
                    {every, out.device(), false});
    stream->wait();
    out.pull();
    const std::vector<float> expected = store(one, in.activations, sizes.num_rows, sizes.num_rows);
    for (int32_t r = 0; r < sizes.rows_of_piece(); ++r) {
      for (int32_t i = 0; i < kOut; ++i) {
        EXPECT_EQ(out[at(r, kOut, i)], expected[at(sizes.first_row + r, kOut, i)]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         ExpertProducts,
                         ::testing::Values(Kind{Type::kF32, Type::kF32},
                                           Kind{Type::kBF16, Type::kBF16},
                                           Kind{Type::kF16, Type::kF16},
                                           Kind{Type::kE4M3, Type::kBF16}));

TEST_F(Experts, ClampedSwigluIsTheCpus) {
  constexpr int32_t kFfn = 16;
  constexpr int32_t kIn = 16;
  constexpr ops::ClampedSwiglu kClamp = {.alpha = 1.702f, .limit = 1.5f};
  ops::Context ctx(1);
  Table values = random_table(2 * kFfn, kIn, Type::kF32, 1);
  const TestMatrix weights(*device, values, Type::kF32, {RowOrder::kPairs, kFfn});
  const TestInputs in(*device, random_table(3, kIn, Type::kF32, 2), Type::kF32);
  Routed routed(*device, {3, 0, 8, 1, 1});
  const ops::ExpertChoice choice = {.count = 1, .per_row = 1};
  route(routed, random_floats(at(3, kHidden), 3), random_floats(kHidden, 4), choice, 1);
  DeviceArray<float> out(*device, at(8, kFfn));
  ops.expert_gate_up(
      *stream,
      {.in = in.activations, .weights = weights.matrix, .max_rows = 3, .step = routed.step()},
      {.rows = routed.view(), .out = {out.device(), Type::kF32, kFfn}, .clamp = kClamp});
  stream->wait();
  out.pull();
  const TestMatrix plain(*device, values, Type::kF32);
  const std::vector<float> sums = store(plain, in.activations, 3, 3);
  for (int32_t r = 0; r < 3; ++r) {
    std::vector<float> turns;
    for (int32_t i = 0; i < kFfn; ++i) {
      turns.push_back(sums[at(r, 2 * kFfn, i)]);
      turns.push_back(sums[at(r, 2 * kFfn, kFfn + i)]);
    }
    std::vector<float> expected(kFfn);
    ops::clamped_swiglu(ctx, expected.data(), turns.data(), kFfn, kClamp);
    for (int32_t i = 0; i < kFfn; ++i) {
      EXPECT_EQ(out[at(r, kFfn, i)], expected[static_cast<size_t>(i)]);
    }
  }
}

TEST_F(Experts, AreAddedUpInOneChainForEachSlice) {
  constexpr int32_t kOut = 1100;  // more than a block's piece
  for (const int32_t num_slices : {1, 4}) {
    const Sizes sizes = {11, 4, 16, 5, 3};
    Routed routed(*device, sizes);
    routed.weights = DeviceArray<float>(*device, random_floats(at(sizes.max_rows, 3), 1));
    const std::vector<float> products = random_floats(at(16 * 3 * num_slices, kOut), 2);
    const std::vector<float> shared = random_floats(at(16 * num_slices, kOut), 3);
    const std::vector<float> gates = random_floats(16 * 2, 4);
    const DeviceArray<float> of_products(*device, products);
    const DeviceArray<float> of_shared(*device, shared);
    const DeviceArray<float> of_gates(*device, gates);
    DeviceArray<float> part(*device, at(sizes.num_rows, kOut));
    part.poison();
    ops.sum_experts(*stream,
                    {.rows = routed.view(),
                     .part = part.device(),
                     .products = of_products.device(),
                     .shared = of_shared.device(),
                     .gates = of_gates.device() + 1,
                     .gate_stride = 2,
                     .num_slices = num_slices,
                     .n = kOut,
                     .step = routed.step()});
    stream->wait();
    part.pull();
    ops::Context ctx(1);
    int num_wrong = 0;
    for (int32_t r = 0; r < sizes.rows_of_piece(); ++r) {
      float gate = gates[at(r, 2, 1)];
      ops::sigmoid(ctx, &gate, 1);
      std::vector<float> slices(at(num_slices, kOut));
      for (int32_t s = 0; s < num_slices; ++s) {
        for (int32_t i = 0; i < kOut; ++i) {
          float& sum = slices[at(s, kOut, i)];
          for (int32_t j = 0; j < 3; ++j) {
            const int32_t pair = r * 3 + j;
            sum += routed.weights[at(pair, 1)] * products[at(pair * num_slices + s, kOut, i)];
          }
          sum += gate * shared[at(r * num_slices + s, kOut, i)];
        }
      }
      fold_in_tree(slices.data(), static_cast<size_t>(num_slices), size_t{kOut});
      for (int32_t i = 0; i < kOut; ++i) {
        num_wrong += !(part[at(4 + r, kOut, i)] == slices[static_cast<size_t>(i)]);
      }
    }
    EXPECT_EQ(num_wrong, 0) << num_slices << " slices";
    EXPECT_TRUE(std::isnan(part[at(3, kOut)]));
  }
}

}  // namespace
}  // namespace outrider::gpu
