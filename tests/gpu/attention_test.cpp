// Attention: against double precision, and a row's bits whatever shares the
// step with it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/attention_case.h"

namespace outrider::gpu {
namespace {

// The largest error of a head over the head's largest value.
double worst_error(const AttentionShape& shape,
                   const std::vector<float>& found,
                   const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  double worst = 0.0;
  for (size_t head = 0; head < expected.size(); head += head_dim) {
    double error = 0.0;
    double largest = 0.0;
    for (size_t i = head; i < head + head_dim; ++i) {
      const double off = std::fabs(found[i] - expected[i]);
      if (!(off <= error)) error = off;  // NaN stays
      largest = std::max(largest, std::fabs(expected[i]));
    }
    if (!(error / largest <= worst)) worst = error / largest;
  }
  return worst;
}

void expect_close(const AttentionCase& batch, const std::vector<RunOfRows>& runs) {
  const double tolerance = batch.shape().type == Type::kF32 ? 1e-5 : 1e-2;
  const AttentionCase::Run run = batch.run(runs);
  EXPECT_TRUE(run.padding_is_zero);
  const double worst = worst_error(batch.shape(), run.rows, batch.expected(runs));
  EXPECT_TRUE(worst <= tolerance) << "worst error " << worst;
}

struct Named {
  const char* name;
  AttentionShape shape;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

class Attention : public ::testing::TestWithParam<Named> {};

// Prompts in chunks, rows to verify and single rows, with lengths on both sides of a split's edge.
TEST_P(Attention, IsThatOfDoublePrecision) {
  for (const uint64_t seed : {1u, 2u}) {
    choose_thread_order(seed);
    const AttentionCase batch(GetParam().shape, {530, 33, 257, 1}, static_cast<unsigned>(seed));
    expect_close(batch, {{0, 513, 17}, {1, 0, 33}, {2, 255, 2}, {3, 0, 1}});
  }
}

// The same rows in steps of other company: alone, in pieces, with all before them, in items and
// launches of other sizes.
TEST_P(Attention, ARowsBitsAreItsOwn) {
  const auto width = static_cast<size_t>(GetParam().shape.width());
  const AttentionCase batch(GetParam().shape, {522, 40}, 7);
  choose_thread_order(3);
  const std::vector<float> together = batch.run({{0, 508, 9}}).rows;
  for (int32_t i = 0; i < 9; i += 4) {
    const auto from = together.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(i) * width);
    const std::vector<float> expected(from, from + static_cast<ptrdiff_t>(width));
    EXPECT_EQ(batch.run({{0, 508 + i, 1}}).rows, expected);
  }
  std::vector<float> among_others =
      batch.run({{1, 3, 5}, {0, 503, 14}, {1, 39, 1}}, {.rows_per_item = kMaxItemRows}).rows;
  among_others.erase(among_others.begin(),
                     among_others.begin() + static_cast<ptrdiff_t>(10 * width));
  among_others.resize(9 * width);
  EXPECT_EQ(among_others, together);
  struct Other {
    AttentionCase::Launch launch;
    AttentionFold fold;
  };
  const Other others[] = {
      {{.rows_per_item = 1, .max_rows = 100, .times = 2}, AttentionFold::kNextLaunch},
      {{.rows_per_item = 5, .max_rows = 100, .max_items = 11, .max_splits = 8},
       AttentionFold::kNextLaunch},
      {{.max_items = kManyAttentionBlocks, .times = 2}, AttentionFold::kOneBlock}};
  for (const Other& other : others) {
    const AttentionCase::Run run = batch.run({{0, 508, 9}}, other.launch);
    EXPECT_EQ(run.rows, together);
    EXPECT_EQ(run.fold, other.fold);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes,
    Attention,
    ::testing::Values(
        Named{"bf16_64", {.type = Type::kBF16, .group = 4, .head_dim = 64}},
        Named{"bf16_128", {.type = Type::kBF16, .n_kv_heads = 1, .group = 8, .head_dim = 128}},
        Named{"f16_96_of_seven",
              {.type = Type::kF16, .n_kv_heads = 1, .group = 7, .head_dim = 96, .block_size = 8}},
        Named{"f16_80_alone", {.type = Type::kF16, .group = 1, .head_dim = 80, .block_size = 32}},
        Named{"bf16_256", {.type = Type::kBF16, .n_kv_heads = 1, .group = 4, .head_dim = 256}},
        Named{"bf16_64_window",
              {.type = Type::kBF16, .n_kv_heads = 1, .group = 4, .head_dim = 64, .window = 250}},
        Named{"f32_64_capped", {.type = Type::kF32, .group = 4, .head_dim = 64, .softcap = 2.0f}},
        Named{"bf16_128_capped_alibi",
              {.type = Type::kBF16, .group = 2, .head_dim = 128, .softcap = 2.0f, .alibi = true}},
        Named{"f16_64_alibi_window",
              {.type = Type::kF16, .group = 3, .head_dim = 64, .window = 250, .alibi = true}},
        Named{"bf16_64_sinks_window",
              {.type = Type::kBF16, .group = 4, .head_dim = 64, .window = 20, .has_sinks = true}},
        Named{"f32_24_sinks", {.type = Type::kF32, .group = 3, .head_dim = 24, .has_sinks = true}},
        Named{
            "bf16_576_latent",
            {.type = Type::kBF16, .n_kv_heads = 1, .group = 2, .head_dim = 576, .is_latent = true}},
        Named{"f16_64_latent",
              {.type = Type::kF16, .n_kv_heads = 1, .group = 8, .head_dim = 64, .is_latent = true}},
        Named{"bf16_24", {.type = Type::kBF16, .n_kv_heads = 1, .group = 3, .head_dim = 24}},
        Named{"f32_64", {.type = Type::kF32, .group = 4, .head_dim = 64}},
        Named{"f32_20_window",
              {.type = Type::kF32,
               .n_kv_heads = 1,
               .group = 7,
               .head_dim = 20,
               .block_size = 5,
               .window = 40}}),
    [](const auto& param) { return std::string(param.param.name); });

const AttentionShape kSmall = {.type = Type::kBF16, .n_kv_heads = 1, .group = 4, .head_dim = 64};

// Whole prompts at once, with splits apart and in one block, and in chunks as a server cuts them.
TEST(AttentionOfPrompts, ChunksChangeNothing) {
  for (const Type type : {Type::kBF16, Type::kF32}) {
    AttentionShape shape = kSmall;
    shape.head_dim = type == Type::kF32 ? 16 : 64;
    shape.type = type;
    shape.window = type == Type::kF32 ? 100 : 0;
    const AttentionCase batch(shape, {300}, 11);
    const std::vector<float> whole = batch.run({{0, 0, 300}}).rows;
    EXPECT_EQ(batch.run({{0, 0, 300}}, {.max_items = kManyAttentionBlocks}).rows, whole);
    std::vector<float> chunks;
    for (const auto& [first, count] : {std::pair{0, 100}, {100, 163}, {263, 36}, {299, 1}}) {
      const std::vector<float> rows = batch.run({{0, first, count}}).rows;
      chunks.insert(chunks.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(chunks, whole);
  }
}

// Steps as they come, in shapes as they come.
TEST(AttentionOfSteps, AnyMixIsThatOfDoublePrecision) {
  std::mt19937 random(31);
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  constexpr Type kTypes[] = {Type::kBF16, Type::kF16, Type::kF32};
  constexpr int32_t kHeadDims[] = {64, 80, 96, 16};
  constexpr int32_t kBlockSizes[] = {8, 16, 32, 12};
  for (int round = 0; round < 12; ++round) {
    choose_thread_order(static_cast<unsigned>(random()));
    const AttentionShape shape = {.type = kTypes[below(3)],
                                  .n_kv_heads = 1 + below(2),
                                  .group = 1 + below(8),
                                  .head_dim = kHeadDims[below(4)],
                                  .block_size = kBlockSizes[below(4)],
                                  .window = below(3) == 0 ? 1 + below(300) : 0};
    std::vector<int32_t> lengths;
    std::vector<RunOfRows> runs;
    for (int32_t s = 0; s < 1 + below(3); ++s) {
      lengths.push_back(1 + below(below(2) == 0 ? 40 : 600));
      const int32_t count = std::min(lengths.back(), 1 + below(below(3) == 0 ? 24 : 6));
      runs.push_back({s, lengths.back() - count - below(lengths.back() - count + 1), count});
      if (below(4) == 0) lengths.back() += 20;  // slots behind the rows hold something
    }
    SCOPED_TRACE("round " + std::to_string(round));
    expect_close(AttentionCase(shape, lengths, static_cast<unsigned>(round)), runs);
  }
}

TEST(AttentionOfPrompts, SharedBlocksAreReadByBoth) {
  AttentionCase batch(kSmall, {70, 75}, 12);
  const std::vector<float> apart = batch.run({{1, 70, 2}}).rows;
  batch.share_blocks(0, 1, 4);
  expect_close(batch, {{0, 64, 4}, {1, 70, 2}});
  EXPECT_NE(batch.run({{1, 70, 2}}).rows, apart);
}

// What a row does not see is not there: what lies before the window and behind the row's item, and
// in the plain kernel also what the other rows of the item see.
TEST(AttentionMasks, NanThatIsNotSeenChangesNothing) {
  AttentionShape shape = kSmall;
  shape.window = 20;
  for (const Type type : {Type::kBF16, Type::kF32}) {
    shape.type = type;
    AttentionCase batch(shape, {100}, 13);
    const std::vector<float> before = batch.run({{0, 60, 3}}).rows;
    for (const int32_t position : {0, 39, 40, 63, 64}) batch.put_nan(0, position);
    EXPECT_EQ(batch.run({{0, 60, 3}}).rows, before);
    batch.put_nan(0, 62);
    const std::vector<float> after = batch.run({{0, 60, 3}}).rows;
    EXPECT_TRUE(std::isnan(after.back()));
    EXPECT_EQ(batch.run({{0, 60, 2}}).rows[0], before[0]);
    if (type == Type::kF32) {
      EXPECT_EQ(after[0], before[0]);
    }
  }
}

// Whatever bucket a step falls into, the memory asked for once is enough.
TEST(AttentionOfPrompts, ScratchMemoryIsBounded) {
  for (const int32_t most_rows : {1, 17, 2048}) {
    for (const int32_t most_splits : {2, 17, 300}) {
      AttentionArgs args = {.n_heads = 32,
                            .kv = {.n_kv_heads = 8, .head_dim = 128},
                            .max_rows = most_rows,
                            .max_items = most_rows,
                            .max_splits = most_splits};
      const size_t bound = attention_scratch_bound(args);
      EXPECT_LE(bound, size_t{128} << 20);
      for (int32_t splits = 2; splits <= most_splits; ++splits) {
        for (const int32_t items : {1, most_rows}) {
          const AttentionBucket bucket =
              attention_bucket({.num_items = items, .max_splits = splits}, most_rows);
          args.max_items = bucket.max_items;
          args.max_splits = bucket.max_splits;
          const AttentionScratch scratch = attention_scratch(args);
          EXPECT_LE((scratch.num_sums + scratch.num_states) * sizeof(float), bound);
        }
      }
    }
  }
}

}  // namespace
}  // namespace outrider::gpu
