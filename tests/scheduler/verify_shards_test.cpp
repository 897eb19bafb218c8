// Decisions do not depend on the sharding, the batch, or the instruction set; bad rows fail on
// every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "scheduler/rows/row_kernels.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/rows/top_search.h"
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
  int num_dead_ends = 0;  // small vocabularies, wholly masked
  int num_accepted = 0;
  int num_compared = 0;
  for (int trial = 0; trial < 84; ++trial) {  // few meetings of the threads, many sequences
    const int32_t sizes[] = {1, 2, 5, 37, 259, 1031, 2500};
    const int32_t vocab_size = sizes[trial % 7];
    const TestRound round = random_round(vocab_size, 80, generator);
    const std::vector<SequenceDecision> alone = verify_alone(round);
    for (const SequenceDecision& decision : alone) {
      ++num_decisions;
      num_accepted += decision.num_accepted;
      num_dead_ends += decision.no_token_allowed ? 1 : 0;
      ASSERT_EQ(decision.failed, decision.no_token_allowed);
      if (decision.failed) continue;
      ASSERT_TRUE(decision.next_token >= 0 && decision.next_token < vocab_size);
    }
    for (int num_shards : {1, 2, 3, 4, 5, 8}) {
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
  EXPECT_GT(num_dead_ends, 50);
  EXPECT_LT(num_dead_ends, num_decisions / 10);
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

TEST(Shards, AWhollyMaskedRowFailsItsRequest) {
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    for (float temperature : {0.0f, 1.0f}) {
      for (int filter = 0; filter < 5; ++filter) {
        TestSequence sequence;
        sequence.params.verify_mode = mode;
        sequence.params.temperature = temperature;
        if (filter == 1) sequence.params.top_p = 0.5f;
        if (filter == 2) sequence.params.top_k = 2;
        if (filter == 3) sequence.params.min_p = 0.5f;
        if (filter == 4) sequence.params.typical_p = 0.5f;
        sequence.tokens = {1};
        for (int32_t v = 0; v < 6; ++v) {
          sequence.params.logit_bias.emplace_back(v, -std::numeric_limits<float>::infinity());
        }
        sequence.draft = {{0, {}}};  // the id that the maximum over nothing names
        sequence.rows = {{1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}};
        TestSequence other = sequence;
        other.params.logit_bias.clear();
        const TestRound round{6, {sequence, other}};
        for (const ShardRun& run : verify_on_shards(round, even_cuts(6, 3))) {
          EXPECT_TRUE(run.decisions[0].failed);
          EXPECT_TRUE(run.decisions[0].no_token_allowed);
          EXPECT_EQ(run.decisions[0].num_accepted, 0);
          EXPECT_EQ(run.decisions[0].next_token, -1);
          EXPECT_FALSE(run.decisions[1].failed);
          EXPECT_GE(run.decisions[1].next_token, 0);
        }
      }
    }
  }
}

// ---- how much crosses the links
// -------------------------------------------------------------------------------

constexpr int32_t kLargeVocab = 128256;
constexpr int kDraftLen = 7;

enum class Proposal { kNone, kOneHot, kSixteen };

TestSequence wire_sequence(VerifyMode mode, Proposal bonus_draft, std::mt19937_64& generator) {
  TestSequence sequence;
  sequence.params.verify_mode = mode;
  sequence.params.noise_seed = generator();
  sequence.tokens = {1, 2, 3};
  const int draft_len = bonus_draft == Proposal::kNone ? 0 : kDraftLen;
  const std::vector<float> row = random_logits(kLargeVocab, false, generator);
  sequence.rows.assign(static_cast<size_t>(draft_len) + 1, row);
  for (int k = 0; k < draft_len; ++k) {
    DraftToken token{static_cast<int32_t>(generator() % kLargeVocab), {}};
    for (int c = 0; bonus_draft == Proposal::kSixteen && c < 16; ++c) {
      token.candidates.push_back({(token.token + c * 7919) % kLargeVocab, 1.0f / 16});
    }
    sequence.draft.push_back(std::move(token));
  }
  return sequence;
}

ShardRun run_wire(const std::vector<TestSequence>& sequences) {
  return verify_on_shards({kLargeVocab, sequences}, even_cuts(kLargeVocab, 2))[0];
}

struct WireCase {
  VerifyMode mode;
  Proposal bonus_draft;
  int num_collectives;
  size_t num_bytes;  // per rank and sequence
};

// The table of docs/round.md, section "Bytes".
TEST(Wire, BytesAndCollectivesAreThoseOfTheTable) {
  const WireCase cases[] = {
      {VerifyMode::kCoupled, Proposal::kNone, 1, 8},
      {VerifyMode::kBlock, Proposal::kNone, 1, 8},
      {VerifyMode::kCoupled, Proposal::kOneHot, 1, 64},
      {VerifyMode::kStandard, Proposal::kOneHot, 3, 64 + 7 * 16 + 8},
      {VerifyMode::kStandard, Proposal::kSixteen, 3, 64 + 7 * 16 + 8},
      {VerifyMode::kBlock, Proposal::kOneHot, 3, 64 + 7 * 16 + 8},
      {VerifyMode::kBlock, Proposal::kSixteen, 3, 64 + 7 * 72 + 8},
  };
  std::mt19937_64 generator(24);
  for (const WireCase& wire : cases) {
    for (size_t num_sequences : {1, 3}) {
      std::vector<TestSequence> sequences;
      for (size_t i = 0; i < num_sequences; ++i) {
        sequences.push_back(wire_sequence(wire.mode, wire.bonus_draft, generator));
      }
      const ShardRun run = run_wire(sequences);
      EXPECT_EQ(run.num_collectives, wire.num_collectives);
      EXPECT_EQ(run.num_bytes, num_sequences * wire.num_bytes);
      for (TestSequence& sequence : sequences) sequence.params.temperature = 0.0f;
      const ShardRun greedy = run_wire(sequences);
      EXPECT_EQ(greedy.num_collectives, 1);
      EXPECT_EQ(greedy.num_bytes, num_sequences * 8 * sequences[0].rows.size());
    }
  }
}

// A filter adds what docs/round.md says, and never anything of the vocabulary's size.
TEST(Wire, FiltersStayFarBelowTheVocabulary) {
  std::mt19937_64 generator(25);
  const size_t rows = kDraftLen + 1;
  const size_t standard = 64 + 7 * 16 + 8;
  const size_t radix = rows * 4 * 256 * 8;
  const auto bytes_with = [&](const std::function<void(SamplingParams&)>& change) {
    TestSequence sequence = wire_sequence(VerifyMode::kStandard, Proposal::kSixteen, generator);
    change(sequence.params);
    return run_wire({sequence});
  };
  const ShardRun min_p = bytes_with([](SamplingParams& p) { p.min_p = 0.1f; });
  EXPECT_EQ(min_p.num_bytes, standard);
  EXPECT_EQ(min_p.num_collectives, 3);
  const ShardRun top_k = bytes_with([](SamplingParams& p) { p.top_k = 20; });
  EXPECT_EQ(top_k.num_bytes, standard + rows * 4 * (20 + 1));
  EXPECT_EQ(top_k.num_collectives, 4);
  const ShardRun wide_top_k = bytes_with([](SamplingParams& p) { p.top_k = 5000; });
  EXPECT_EQ(wide_top_k.num_bytes, standard + radix);
  EXPECT_EQ(wide_top_k.num_collectives, 7);
  const ShardRun wide_top_p = bytes_with([](SamplingParams& p) { p.top_p = 0.999f; });
  EXPECT_EQ(wide_top_p.num_bytes, standard + rows * 4 * (64 + 3) + radix);
  EXPECT_EQ(wide_top_p.num_collectives, 8);
  const ShardRun typical = bytes_with([](SamplingParams& p) {
    p.typical_p = 0.9f;
    p.logit_bias = {{5, 40.0f}, {70000, 40.0f}};  // few tokens with all the mass
  });
  EXPECT_EQ(typical.num_bytes, standard + rows * 4 * (64 + 5));
  EXPECT_EQ(typical.num_collectives, 4);
  const ShardRun wide_typical = bytes_with([](SamplingParams& p) { p.typical_p = 0.95f; });
  EXPECT_EQ(wide_typical.num_bytes, standard + rows * (4 * (64 + 5) + 2 * 8) + radix);
  EXPECT_EQ(wide_typical.num_collectives, 9);
  // All other filters at once leave nothing for a gather to tell.
  const ShardRun everything = bytes_with([](SamplingParams& p) {
    p.top_k = 100000;
    p.top_p = 0.999f;
    p.min_p = 1e-7f;
    p.typical_p = 0.95f;
  });
  EXPECT_EQ(everything.num_bytes, standard + rows * 2 * 8 + 3 * radix);
  EXPECT_EQ(everything.num_collectives, 3 + 4 + 4 + 1 + 4);
  // A mask is made by every rank for itself.
  const ShardRun masked = bytes_with([](SamplingParams& p) {
    p.allowed_token_ids = {1, 5, 70000};
    p.bad_words = {{5}, {2, 3, 70000}};
  });
  EXPECT_EQ(masked.num_bytes, standard);
  EXPECT_EQ(masked.num_collectives, 3);
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
      std::vector<float> peaks((static_cast<size_t>(count) + kStretchTokens - 1) / kStretchTokens);
      const TileRange range = kernels->peaks(values.data(), count, peaks.data());
      EXPECT_EQ(range.max, plain.range(values.data(), count).max);
      EXPECT_EQ(range.largest_magnitude, plain.range(values.data(), count).largest_magnitude);
      for (size_t i = 0; i < peaks.size(); ++i) {
        const auto begin = static_cast<int32_t>(i) * kStretchTokens;
        const int32_t num = std::min(count - begin, kStretchTokens);
        EXPECT_EQ(peaks[i], *std::max_element(values.begin() + begin, values.begin() + begin + num))
            << kernels->name;
      }
      EXPECT_EQ(kernels->mass(values.data(), count, scale),
                plain.mass(values.data(), count, scale));
      EXPECT_EQ(kernels->moment(values.data(), count, scale),
                plain.moment(values.data(), count, scale));
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

// Weights near the middle between two integers, many and few to a stretch, cut, masked, and values
// so large that floats are coarse.
TEST(RowKernels, MassesHaveTheSameBitsOnEveryInstructionSet) {
  std::mt19937_64 generator(29);
  const RowKernels* plain = all_row_kernels();
  while (plain[1].name != nullptr) ++plain;
  std::vector<float> values(kTileTokens);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto count = static_cast<int32_t>(generator() % (kTileTokens + 1));
    std::normal_distribution<float> normal(0.0f, 0.01f + static_cast<float>(generator() % 12));
    const float offset = trial % 7 == 0 ? 4e5f : trial % 7 == 1 ? 3e29f : 0.0f;
    for (float& value : values)
      value = generator() % 40 == 0 ? kMasked : normal(generator) + offset;
    const float scale = trial % 3 == 0 ? 1.0f : 0.6f;
    float max = -1.0f;
    for (int32_t i = 0; i < count; ++i) {
      max = std::max(max, exact_mul(values[static_cast<size_t>(i)], scale));
    }
    // The maximum may lie on another shard.
    const WeightScale weights{scale,
                              static_cast<double>(max) + static_cast<double>(trial % 5) * 7,
                              trial % 4 == 0 ? max - 6.0f : kMasked};
    const uint64_t expected = plain->mass(values.data(), count, weights);
    for (const RowKernels* kernels = all_row_kernels(); kernels->name != nullptr; ++kernels) {
      ASSERT_EQ(kernels->mass(values.data(), count, weights), expected)
          << kernels->name << " " << trial;
    }
  }
}

// What the searches for the best tokens ask, against one value after the other.
TEST(RowKernels, SearchesFindTheSameOnEveryInstructionSet) {
  std::mt19937_64 generator(26);
  constexpr float kScale = 1.0f / 0.7f;
  for (const RowKernels* kernels = all_row_kernels(); kernels->name != nullptr; ++kernels) {
    for (int32_t count : {0, 1, 7, 63, 64, 65, 200, 511, 512}) {
      std::vector<float> values = random_logits(512, count % 2 == 0, generator);
      if (count > 20) values[20] = -std::numeric_limits<float>::infinity();
      const auto product = [&](int32_t i) { return values[static_cast<size_t>(i)] * kScale; };
      const float middle = product(count / 2);
      int32_t first = 0;
      while (first < count && product(first) != middle) ++first;
      EXPECT_EQ(kernels->first_equal(values.data(), count, kScale, middle), first);
      EXPECT_EQ(kernels->first_equal(values.data(), count, kScale, 1e9f), count);

      std::vector<uint8_t> hit(512, 7);
      kernels->at_least(values.data(), count, kScale, middle, hit.data());
      for (int32_t i = 0; i < count; ++i) {
        ASSERT_EQ(hit[static_cast<size_t>(i)], product(i) >= middle ? 1 : 0) << kernels->name;
      }
      std::vector<int32_t> visited;
      for_each_hit(hit.data(), count, [&](int32_t i) { visited.push_back(i); });
      std::vector<int32_t> expected;
      for (int32_t i = 0; i < count; ++i) {
        if (product(i) >= middle) expected.push_back(i);
      }
      EXPECT_EQ(visited, expected);
    }
  }
}

// Never a token passed over that would win, and few looked at that do not.
TEST(RowKernels, WhoMayWinHoldsEveryWinner) {
  std::mt19937_64 generator(27);
  const RowKernels* plain = all_row_kernels();
  while (plain[1].name != nullptr) ++plain;
  int64_t num_hits = 0;
  int64_t num_winners = 0;
  for (int32_t trial = 0; trial < 400; ++trial) {
    const std::vector<float> values = random_logits(512, trial % 2 == 0, generator);
    std::vector<uint32_t> bits(512);
    for (uint32_t& word : bits) word = static_cast<uint32_t>(generator());
    bits[static_cast<size_t>(trial)] = trial % 3 == 0 ? 0xffffffffu : 0xffffff00u;
    const float best = std::uniform_real_distribution<float>(-5.0f, 35.0f)(generator);
    const WinScale scale{1.25f, trial % 5 == 0 ? 0.0f : -1e30f, best};
    std::vector<uint8_t> expected(512);
    plain->may_win(values.data(), bits.data(), 512, scale, expected.data());
    for (const RowKernels* kernels = all_row_kernels(); kernels->name != nullptr; ++kernels) {
      std::vector<uint8_t> hit(512);
      kernels->may_win(values.data(), bits.data(), 512, scale, hit.data());
      EXPECT_EQ(hit, expected) << kernels->name;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const float scaled = values[i] * scale.inverse_temperature;
      const double score = static_cast<double>(scaled) + gumbel_from_bits(bits[i]);
      const bool wins = scaled >= scale.cut && score >= static_cast<double>(best);
      ASSERT_LE(wins ? 1 : 0, expected[i]) << "value " << scaled << " bits " << bits[i];
      num_winners += wins ? 1 : 0;
      num_hits += expected[i];
    }
  }
  EXPECT_GT(num_winners, 1000);
  EXPECT_LE(num_hits, 2 * num_winners);
}

// Against a plain search over all tokens, on rows whose best come early, late, often and masked.
TEST(RowSearch, BestNoisyTokenAndBestTokensAreExact) {
  std::mt19937_64 generator(28);
  for (int32_t trial = 0; trial < 120; ++trial) {
    const auto size = static_cast<int32_t>(1 + generator() % 3000);
    std::vector<float> logits = random_logits(size, trial % 2 == 0, generator);
    if (trial % 4 == 1) {
      for (float& value : logits) value = std::round(value);  // ties
    }
    if (trial % 6 == 3) {  // as simulated models have them: most alike, a few above
      for (float& value : logits) value = value > 5.0f ? value : -100.0f;
    }
    if (trial % 6 == 2) std::fill(logits.begin(), logits.begin() + size / 2, kMasked);
    if (trial % 6 == 5) std::sort(logits.begin(), logits.end());
    RowView row;
    row.logits = logits.data();
    row.size = size;
    row.first_token = static_cast<int32_t>(generator() % 1000);
    row.inverse_temperature = trial % 3 == 0 ? 1.0f : 1.7f;
    const NoiseKey noise{generator(), 9, Stream::kResidual, static_cast<uint32_t>(trial)};
    const auto scaled_of = [&](int32_t i) { return row.scaled(i, logits[static_cast<size_t>(i)]); };
    const float cut = trial % 5 == 0 ? scaled_of(size / 2) : kMasked;
    uint64_t best = pack_key(kMasked, row.first_token);
    std::vector<uint64_t> keys;
    for (int32_t i = 0; i < size; ++i) {
      const int32_t token = row.first_token + i;
      keys.push_back(pack_key(scaled_of(i), token));
      if (scaled_of(i) < cut || scaled_of(i) == kMasked) continue;
      best = std::max(best, noisy_key(scaled_of(i), token, noise));
    }
    RowPeaks peaks;
    const RowScan scan = scan_row(row, peaks);
    EXPECT_EQ(draw_key(row, peaks, cut, noise), best) << "trial " << trial;
    for (const float score : {-50.0f, key_score(best), 9.0f}) {
      const uint64_t other = pack_key(score, row.first_token + size);
      EXPECT_EQ(draw_key(row, peaks, cut, noise, other), std::max(best, other))
          << "trial " << trial;
    }
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    EXPECT_EQ(scan.key, keys[0]);
    for (int32_t n : {1, 2, 16, 64, 65, 300}) {
      std::vector<uint64_t> memory(static_cast<size_t>(n));
      const std::span<const uint64_t> top = scan_top(row, memory).keys;
      ASSERT_EQ(top.size(), static_cast<size_t>(std::min(n, size)));
      EXPECT_TRUE(std::equal(top.begin(), top.end(), keys.begin())) << "trial " << trial;
      const float floor = key_score(keys[0]) - 3.0f;
      std::vector<uint64_t> near_memory(static_cast<size_t>(n));
      const std::span<const uint64_t> near = scan_top(row, near_memory, 3.0f).keys;
      const auto is_near = [&](uint64_t key) { return key_score(key) >= floor; };
      EXPECT_EQ(std::ssize(near), std::count_if(top.begin(), top.end(), is_near));
      EXPECT_TRUE(std::equal(near.begin(), near.end(), keys.begin())) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace outrider
