// Decisions do not depend on the sharding, the batch, or the instruction set; bad rows fail on
// every rank.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "scheduler/row_kernels.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

TestRound random_round(int32_t vocab_size, int num_sequences, std::mt19937_64& generator) {
  TestRound round;
  round.vocab_size = vocab_size;
  for (int i = 0; i < num_sequences; ++i) {
    round.sequences.push_back(random_sequence(vocab_size, generator));
  }
  return round;
}

TEST(Shards, SameDecisionsForAnyNumberOfShards) {
  std::mt19937_64 generator(21);
  int num_decisions = 0;
  int num_accepted = 0;
  int num_compared = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const int32_t sizes[] = {1, 2, 5, 37, 259, 1031, 2500};
    const int32_t vocab_size = sizes[trial % 7];
    const TestRound round = random_round(vocab_size, 24, generator);
    const std::vector<SequenceDecision> alone = verify_alone(round);
    for (const SequenceDecision& decision : alone) {
      ++num_decisions;
      num_accepted += decision.num_accepted;
      ASSERT_FALSE(decision.failed);
      ASSERT_TRUE(decision.next_token >= 0 && decision.next_token < vocab_size);
    }
    for (int num_shards : {1, 2, 3, 4, 8}) {
      const bool even = generator() % 2 == 0;
      const std::vector<int32_t> cuts =
          even ? even_cuts(vocab_size, num_shards) : random_cuts(vocab_size, num_shards, generator);
      for (const ShardRun& run : verify_on_shards(round, cuts)) {
        ASSERT_EQ(run.decisions.size(), alone.size());
        for (size_t i = 0; i < alone.size(); ++i) {
          ++num_compared;
          ASSERT_TRUE(same(run.decisions[i], alone[i]))
              << "trial " << trial << " sequence " << i << " of " << num_shards << " shards";
        }
      }
    }
  }
  EXPECT_GT(num_compared, 100000);
  EXPECT_GT(num_accepted, num_decisions / 3);  // the drafts were worth something
}

TEST(Shards, TiedRowsTakeTheLowestTokenOnEverySharding) {
  TestRound round;
  round.vocab_size = 100;
  TestSequence sequence;
  sequence.params.temperature = 0.0f;
  sequence.tokens = {1};
  sequence.rows = {std::vector<float>(100, -0.0f)};
  for (size_t i = 37; i < 100; ++i) sequence.rows[0][i] = 0.0f;
  sequence.rows[0][20] = -1.0f;
  round.sequences = {sequence};
  for (int num_shards : {1, 3, 8}) {
    for (const ShardRun& run : verify_on_shards(round, even_cuts(100, num_shards))) {
      EXPECT_EQ(run.decisions[0].next_token, 0);
    }
  }
}

TEST(Shards, ASequenceDecidesTheSameAloneAndInABatch) {
  std::mt19937_64 generator(22);
  const TestRound round = random_round(300, 40, generator);
  const std::vector<SequenceDecision> together = verify_alone(round);
  for (size_t i = 0; i < round.sequences.size(); ++i) {
    SequenceDecision alone = verify_alone({round.vocab_size, {round.sequences[i]}})[0];
    alone.sequence_id = together[i].sequence_id;
    EXPECT_TRUE(same(alone, together[i])) << i;
  }
}

TEST(Shards, BadLogitsFailTheirSequenceOnEveryRankAndNoOther) {
  std::mt19937_64 generator(23);
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              2e30f};
  for (int trial = 0; trial < 40; ++trial) {
    TestRound round = random_round(97, 10, generator);
    const std::vector<SequenceDecision> before = verify_alone(round);
    const size_t victim = generator() % 10;
    std::vector<std::vector<float>>& rows = round.sequences[victim].rows;
    rows[generator() % rows.size()][generator() % 97] = bad_values[trial % 5];
    for (int num_shards : {1, 4}) {
      for (const ShardRun& run : verify_on_shards(round, even_cuts(97, num_shards))) {
        for (size_t i = 0; i < before.size(); ++i) {
          if (i == victim) {
            EXPECT_TRUE(run.decisions[i].failed);
            EXPECT_EQ(run.decisions[i].next_token, -1);
            EXPECT_EQ(run.decisions[i].num_accepted, 0);
          } else {
            EXPECT_TRUE(same(run.decisions[i], before[i]));
          }
        }
      }
    }
  }
}

TEST(Shards, ABadValueUnderAMaskIsStillSeen) {
  TestRound round;
  round.vocab_size = 8;
  TestSequence sequence;
  sequence.tokens = {1};
  sequence.params.stop_token_ids = {5};
  sequence.params.min_tokens = 3;
  sequence.rows = {std::vector<float>(8, 0.5f)};
  round.sequences = {sequence};
  EXPECT_FALSE(verify_alone(round)[0].failed);  // the mask itself is no fault
  round.sequences[0].rows[0][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(verify_alone(round)[0].failed);
}

TEST(Shards, AWhollyMaskedRowKeepsItsLowestToken) {
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kCoupled}) {
    for (float temperature : {0.0f, 1.0f}) {
      for (int filter = 0; filter < 4; ++filter) {
        TestSequence sequence;
        sequence.params.verify_mode = mode;
        sequence.params.temperature = temperature;
        if (filter == 1) sequence.params.top_p = 0.5f;
        if (filter == 2) sequence.params.top_k = 2;
        if (filter == 3) sequence.params.min_p = 0.5f;
        sequence.tokens = {1};
        for (int32_t v = 0; v < 6; ++v) {
          sequence.params.logit_bias.emplace_back(v, -std::numeric_limits<float>::infinity());
        }
        sequence.draft = {{3, {}}};
        sequence.rows = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}};
        for (const ShardRun& run : verify_on_shards({6, {sequence}}, even_cuts(6, 3))) {
          EXPECT_FALSE(run.decisions[0].failed);
          EXPECT_EQ(run.decisions[0].num_accepted, 0);
          EXPECT_EQ(run.decisions[0].next_token, 0);
        }
      }
    }
  }
}

// ---- how much crosses the links
// -------------------------------------------------------------------------------

ShardRun run_plain(VerifyMode mode, float temperature, int num_sequences, int draft_len) {
  std::mt19937_64 generator(24);
  TestRound round;
  round.vocab_size = 4000;
  for (int i = 0; i < num_sequences; ++i) {
    TestSequence sequence;
    sequence.params.verify_mode = mode;
    sequence.params.temperature = temperature;
    sequence.params.noise_seed = generator();
    sequence.tokens = {1, 2, 3};
    for (int k = 0; k <= draft_len; ++k) {
      sequence.rows.push_back(random_logits(4000, false, generator));
      if (k < draft_len) sequence.draft.push_back({7, {}});
    }
    round.sequences.push_back(std::move(sequence));
  }
  return verify_on_shards(round, even_cuts(4000, 2))[0];
}

TEST(Wire, CoupledGreedyAndPlainCostOneMaximum) {
  for (int num_sequences : {1, 16}) {
    const auto words = [&](int rows) {
      return static_cast<size_t>(8 * num_sequences * (rows + 1));
    };
    const ShardRun coupled = run_plain(VerifyMode::kCoupled, 1.0f, num_sequences, 7);
    EXPECT_EQ(coupled.num_collectives, 1);
    EXPECT_EQ(coupled.num_bytes, words(8));
    const ShardRun greedy = run_plain(VerifyMode::kStandard, 0.0f, num_sequences, 7);
    EXPECT_EQ(greedy.num_collectives, 1);
    EXPECT_EQ(greedy.num_bytes, words(8));
    const ShardRun plain = run_plain(VerifyMode::kStandard, 1.0f, num_sequences, 0);
    EXPECT_EQ(plain.num_collectives, 1);
    EXPECT_EQ(plain.num_bytes, words(1));
  }
}

TEST(Wire, StandardCostsThreeSmallCollectives) {
  for (int num_sequences : {1, 16}) {
    const ShardRun run = run_plain(VerifyMode::kStandard, 1.0f, num_sequences, 7);
    EXPECT_EQ(run.num_collectives, 3);
    // MAX: 8 rows and a flag; SUM: mass and weight of 7 rows; MAX: two keys.
    EXPECT_EQ(run.num_bytes, static_cast<size_t>(8 * num_sequences * (9 + 14 + 2)));
  }
}

TEST(Wire, NothingToDoCostsNothing) {
  for (const ShardRun& run : verify_on_shards({50, {}}, even_cuts(50, 2))) {
    EXPECT_EQ(run.num_collectives, 0);
    EXPECT_TRUE(run.decisions.empty());
  }
}

// ---- kernels
// --------------------------------------------------------------------------------------------------

TEST(RowKernels, EveryInstructionSetGivesTheSameBits) {
  std::mt19937_64 generator(25);
  const RowKernels& plain = [] {
    const RowKernels* last = all_row_kernels();
    while (last[1].name != nullptr) ++last;
    return *last;
  }();
  EXPECT_STREQ(plain.name, "plain");
  for (const RowKernels* kernels = all_row_kernels(); kernels->name != nullptr; ++kernels) {
    for (int32_t count : {0, 1, 3, 8, 77, 511, 512}) {
      std::vector<float> values = random_logits(1000, count % 2 == 0, generator);
      if (count == 77) values[5] = -std::numeric_limits<float>::infinity();
      const WeightScale scale{1.0f / 0.7f, 9.25, count == 511 ? 0.5f : -3e38f};
      EXPECT_EQ(kernels->range(values.data(), count).max, plain.range(values.data(), count).max);
      EXPECT_EQ(kernels->range(values.data(), count).largest_magnitude,
                plain.range(values.data(), count).largest_magnitude);
      EXPECT_EQ(kernels->mass(values.data(), count, scale),
                plain.mass(values.data(), count, scale));
      std::vector<uint64_t> weights(static_cast<size_t>(count));
      std::vector<uint64_t> expected(static_cast<size_t>(count));
      kernels->weights(values.data(), count, scale, weights.data());
      plain.weights(values.data(), count, scale, expected.data());
      EXPECT_EQ(weights, expected);
      const NoiseKey key{generator(), 5, Stream::kResidual, 2};
      std::vector<uint32_t> noise(static_cast<size_t>(kTileNoise));
      const int32_t num_blocks = count / 4;
      kernels->noise(key, 1000, num_blocks, noise.data());
      for (int32_t i = 0; i < 4 * num_blocks; ++i) {
        ASSERT_EQ(noise[static_cast<size_t>(i)], noise_bits(key, 4000 + i)) << kernels->name;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
