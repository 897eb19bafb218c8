// The parts of sampling on shards against plain implementations: draws, filters, processors,
// bonus draft tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/round.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/sampling/logits_processor.h"
#include "scheduler/sampling/truncation.h"
#include "scheduler/verification/logprobs.h"
#include "scheduler/verification/rules.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

RowView view_of(const std::vector<float>& row, int32_t begin, int32_t end, float temperature) {
  RowView view;
  view.logits = row.data() + begin;
  view.size = end - begin;
  view.first_token = begin;
  view.inverse_temperature = 1.0f / temperature;
  return view;
}

// ---- draws: skipping tokens that cannot win never changes the winner
// -----------------------------------------

TEST(Draw, EqualsTheMaximumOverEveryToken) {
  std::mt19937_64 generator(51);
  std::vector<int> winners(4, 0);
  for (int trial = 0; trial < 400; ++trial) {
    const auto vocab_size = static_cast<int32_t>(1 + generator() % 3000);
    std::vector<float> row = random_logits(vocab_size, trial % 2 == 0, generator);
    if (trial % 5 == 0) std::fill(row.begin(), row.end(), -7.0f);
    const auto begin = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocab_size));
    const float temperature = trial % 3 == 0 ? 0.2f : 1.1f;
    const RowView view = view_of(row, begin, vocab_size, temperature);
    const NoiseKey key{generator(), static_cast<uint32_t>(trial), Stream::kResidual, 3};
    const float cut = trial % 4 == 0 ? 0.5f : kMasked;
    uint64_t best = pack_key(kMasked, begin);
    for (int32_t token = begin; token < vocab_size; ++token) {
      const float scaled = row[static_cast<size_t>(token)] * view.inverse_temperature;
      if (scaled >= cut) best = std::max(best, noisy_key(scaled, token, key));
    }
    RowPeaks peaks;
    find_peaks(view, peaks);
    ASSERT_EQ(draw_key(view, peaks, cut, key), best) << trial;
    ++winners[static_cast<size_t>(key_token(best)) % 4];
  }
  for (int count : winners) EXPECT_GT(count, 30);
}

// ---- filters
// --------------------------------------------------------------------------------------------------

struct FilterCase {
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
};

// Which tokens are kept, and the margin by which the closest decision was made.
std::vector<bool> plainly_kept(const std::vector<float>& row,
                               const FilterCase& filter,
                               float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = filter.top_k;
  params.top_p = filter.top_p;
  params.min_p = filter.min_p;
  params.typical_p = filter.typical_p;
  const std::vector<int32_t> context = {0};
  std::vector<bool> kept;
  for (long double prob : exact_law(row, params, context, 1)) kept.push_back(prob > 0);
  return kept;
}

TEST(Filters, KeepWhatSortingKeeps) {
  std::mt19937_64 generator(52);
  const std::vector<FilterCase> filters = {{1},
                                           {5},
                                           {63},
                                           {64},
                                           {65},
                                           {700},
                                           {0, 0.5f},
                                           {0, 0.9f},
                                           {0, 0.999f},
                                           {0, 1e-6f},
                                           {0, 1, 0.1f},
                                           {0, 1, 1.0f},
                                           {20, 0.7f},
                                           {300, 0.9f},
                                           {40, 0.9f, 0.05f},
                                           {2000},
                                           {900, 0.95f},
                                           {0, 0.9f, 0.02f},
                                           {0, 1, 0, 0.95f},
                                           {0, 1, 0, 0.5f},
                                           {0, 1, 0, 0.1f},
                                           {0, 1, 0, 0.001f},
                                           {0, 1, 0.01f, 0.3f},
                                           {40, 1, 0, 0.6f},
                                           {40, 0.9f, 0.02f, 0.7f},
                                           {0, 0.8f, 0, 0.9f},
                                           {0, 0.99f, 0.001f, 0.4f},
                                           {900, 1, 0, 0.7f},
                                           {900, 0.97f, 0.001f, 0.9f}};
  int num_wide = 0;
  int num_ceilings = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const bool ties = trial % 3 == 0;
    const float temperature = trial % 2 == 0 ? 1.0f : 2.5f;
    const auto vocab_size = static_cast<int32_t>(1500 + generator() % 900);
    const std::vector<float> row = random_logits(vocab_size, ties, generator);
    for (const FilterCase& filter : filters) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_k = filter.top_k;
      params.top_p = filter.top_p;
      params.min_p = filter.min_p;
      params.typical_p = filter.typical_p;
      const std::vector<bool> expected = plainly_kept(row, filter, temperature);
      const auto num_kept = std::count(expected.begin(), expected.end(), true);
      num_wide += num_kept > kMaxGatheredTopK ? 1 : 0;
      const std::vector<int32_t> cuts = random_cuts(vocab_size, 1 + trial % 4, generator);
      const float max = *std::max_element(row.begin(), row.end()) * (1.0f / temperature);
      const auto results = run_on_shards<std::pair<float, float>>(
          static_cast<int>(cuts.size()), [&](int rank, ShardExchange& exchange) {
            const int32_t begin = rank == 0 ? 0 : cuts[static_cast<size_t>(rank) - 1];
            const int32_t end = cuts[static_cast<size_t>(rank)];
            const RowView view = view_of(row, begin, end, temperature);
            HostRowScanner scanner;
            scanner.hold(std::span(&view, 1));
            TruncationRow truncation{0, &params, max};
            truncate(std::span(&truncation, 1), vocab_size, scanner, exchange);
            return std::pair{truncation.cut, truncation.ceiling};
          });
      for (const auto& [cut, ceiling] : results) {
        ASSERT_EQ(cut, results[0].first);
        ASSERT_EQ(ceiling, results[0].second);
        num_ceilings += ceiling < kNoCeiling ? 1 : 0;
        for (size_t v = 0; v < row.size(); ++v) {
          const float scaled = row[v] * (1.0f / temperature);
          ASSERT_EQ(scaled >= cut && scaled <= ceiling, expected[v])
              << "top_k " << filter.top_k << " top_p " << filter.top_p << " min_p " << filter.min_p
              << " typical_p " << filter.typical_p << " token " << v << " of " << num_kept
              << " kept";
        }
      }
    }
  }
  EXPECT_GT(num_wide, 80);      // radix selection had work to do
  EXPECT_GT(num_ceilings, 50);  // the likeliest tokens were cut
}

TEST(Filters, OffMeansNoCollective) {
  SamplingParams params;
  EXPECT_FALSE(filters(params, 100));
  params.top_k = 100;  // keeps all
  EXPECT_FALSE(filters(params, 100));
  params.top_k = 99;
  EXPECT_TRUE(filters(params, 100));
}

TEST(Mass, AgreesWithLongDouble) {
  std::mt19937_64 generator(53);
  const std::vector<float> row = random_logits(5000, false, generator);
  const float max = *std::max_element(row.begin(), row.end());
  long double expected = 0;
  for (float logit : row) expected += std::exp(static_cast<long double>(logit) - max);
  const RowView view = view_of(row, 0, 5000, 1.0f);
  RowPeaks peaks;
  find_peaks(view, peaks);
  const auto mass = static_cast<double>(row_mass(view, peaks, max, kMasked));
  EXPECT_NEAR(mass / kWeightOne / static_cast<double>(expected), 1.0, 1e-9);
}

// ---- processors through verify(): the greedy choice shows the processed logits
// --------------------------------

int32_t greedy_choice(TestSequence sequence) {
  sequence.params.temperature = 0.0f;
  const auto vocab_size = static_cast<int32_t>(sequence.rows[0].size());
  return verify_on_shards({vocab_size, {sequence}}, even_cuts(vocab_size, 2))[0]
      .decisions[0]
      .next_token;
}

TEST(Processors, GreedyTakesTheProcessedMaximum) {
  TestSequence sequence;
  sequence.tokens = {0, 3};
  sequence.num_prompt_tokens = 1;
  sequence.rows = {{1.0f, 1.5f, -2.0f, 2.0f}};
  EXPECT_EQ(greedy_choice(sequence), 3);
  TestSequence changed = sequence;
  changed.params.logit_bias = {{2, 5.0f}};
  EXPECT_EQ(greedy_choice(changed), 2);
  changed = sequence;
  changed.params.repetition_penalty = 2.0f;  // 3 was written: 2.0 / 2; 0 is in the prompt: 1.0 / 2
  EXPECT_EQ(greedy_choice(changed), 1);
  changed = sequence;
  changed.params.presence_penalty = 0.6f;  // of the output only
  EXPECT_EQ(greedy_choice(changed), 1);
  changed = sequence;
  changed.params.stop_token_ids = {3};
  changed.params.min_tokens = 2;
  EXPECT_EQ(greedy_choice(changed), 1);
  changed.params.min_tokens = 1;  // one token is out already
  EXPECT_EQ(greedy_choice(changed), 3);
}

// Written anew from the definition (logits_processor.h), before the temperature.
float processed_by_definition(const SamplingParams& params,
                              std::span<const int32_t> text,
                              size_t num_prompt_tokens,
                              int32_t token,
                              float raw) {
  const auto output = text.subspan(num_prompt_tokens);
  const bool may_stop = static_cast<int32_t>(output.size()) >= params.min_tokens;
  if (!may_stop && std::ranges::count(params.stop_token_ids, token) > 0) return kMasked;
  float value = raw;
  for (const auto& [biased, bias] : params.logit_bias) value += biased == token ? bias : 0.0f;
  const float penalty = params.repetition_penalty;
  if (std::ranges::count(text, token) > 0 && penalty != 1.0f)
    value = value > 0.0f ? value / penalty : value * penalty;
  const auto count = static_cast<float>(std::ranges::count(output, token));
  value -= params.frequency_penalty * count;
  return count > 0.0f ? value - params.presence_penalty : value;
}

// Of each token one edit, and none of those that only earlier drafts had.
void expect_few_edits(const RowView& row, const TestSequence& sequence, int32_t first_token) {
  std::set<int32_t> known(sequence.tokens.begin(), sequence.tokens.end());
  for (const DraftToken& draft : sequence.draft) known.insert(draft.token);
  for (const auto& [token, bias] : sequence.params.logit_bias) known.insert(token);
  known.insert(sequence.params.stop_token_ids.begin(), sequence.params.stop_token_ids.end());
  for (size_t i = 0; i < row.edit_index.size(); ++i) {
    EXPECT_TRUE(known.contains(first_token + row.edit_index[i]));
    EXPECT_TRUE(i == 0 || row.edit_index[i] > row.edit_index[i - 1]);
  }
}

// One text on one shard, as a target rank or a draft processes its rows.
struct ProcessedText {
  TestSequence sequence;
  VocabShard shard;
  std::shared_ptr<const TokenMask> mask = make_token_mask(sequence.params);
  int num_edited = 0;
  int num_forbidden = 0;

  std::vector<float> logits() const {
    std::vector<float> all;
    for (const std::vector<float>& row : sequence.rows)
      all.insert(all.end(), row.begin() + shard.begin, row.begin() + shard.end);
    return all;
  }

  // logits: of the first row.
  void process(ProcessedRows& rows, const float* logits, size_t first_row, size_t num_rows) const {
    rows.begin({.params = &sequence.params,
                .tokens = sequence.tokens,
                .num_prompt_tokens = sequence.num_prompt_tokens,
                .draft = std::span(sequence.draft).first(first_row + num_rows - 1),
                .first_row = static_cast<int32_t>(first_row),
                .num_rows = static_cast<int32_t>(num_rows),
                .logits = logits,
                .row_stride = shard.size(),
                .mask = mask.get()},
               shard);
    RowQuestions questions;
    rows.ask(questions);
    HostRowScanner().answer(questions);
    rows.process();
  }

  // same: the same row, processed anew.
  void check(size_t index, const RowView& row, const RowView& same) {
    expect_few_edits(row, sequence, shard.begin);
    std::vector<int32_t> text = sequence.tokens;
    for (size_t i = 0; i < index; ++i) text.push_back(sequence.draft[i].token);
    for (int32_t i = 0; i < shard.size(); ++i) {
      const int32_t token = shard.begin + i;
      const float raw = sequence.rows[index][static_cast<size_t>(token)];
      const float value = processed_by_definition(
          sequence.params, text, static_cast<size_t>(sequence.num_prompt_tokens), token, raw);
      ASSERT_EQ(row.is_allowed(i), same.is_allowed(i));
      ASSERT_EQ(row.scaled(i, raw), same.scaled(i, raw));
      num_forbidden += row.is_allowed(i) ? 0 : 1;
      if (!row.is_allowed(i)) continue;
      ASSERT_EQ(row.scaled(i, raw), value * inverse_temperature(sequence.params));
      num_edited += value != raw ? 1 : 0;
    }
  }
};

// Of a text that grows, with drafts of which some are accepted.
TEST(Processors, RowsThatAreKeptSayWhatTheDefinitionSays) {
  std::mt19937_64 generator(57);
  int num_edited = 0;
  int num_forbidden = 0;
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(trial);
    const auto vocab_size = static_cast<int32_t>(2 + generator() % 150);
    const std::vector<int32_t> cuts = random_cuts(vocab_size, 3, generator);
    ProcessedText text{.sequence = random_sequence(vocab_size, generator),
                       .shard = {trial % 3 == 0 ? 0 : cuts[0], cuts[1], vocab_size}};
    ProcessedRows kept;
    for (int round = 0; round < 10; ++round) {
      const std::vector<float> logits = text.logits();
      const size_t num_rows = text.sequence.rows.size();
      const auto width = static_cast<size_t>(text.shard.size());
      for (size_t r = 0; round % 2 == 1 && r < num_rows; ++r)  // as a draft, whose block grows
        text.process(kept, logits.data() + r * width, r, 1);
      text.process(kept, logits.data(), 0, num_rows);
      for (size_t r = 0; r < num_rows; ++r) {
        ProcessedRows fresh;
        text.process(fresh, logits.data() + r * width, r, 1);
        text.check(r, kept.row(static_cast<int32_t>(r)), fresh.row(0));
      }
      TestSequence& sequence = text.sequence;
      const size_t num_accepted = generator() % num_rows;
      for (size_t i = 0; i < num_accepted; ++i) sequence.tokens.push_back(sequence.draft[i].token);
      sequence.tokens.push_back(random_sequence(vocab_size, generator).tokens.front());
      const TestSequence next = random_sequence(vocab_size, generator);
      sequence.draft = next.draft;
      sequence.rows = next.rows;
    }
    num_edited += text.num_edited;
    num_forbidden += text.num_forbidden;
  }
  EXPECT_GT(num_edited, 10000);
  EXPECT_GT(num_forbidden, 10000);
}

TEST(Processors, DraftTokensCountAsOutputOfLaterRows) {
  TestSequence sequence;
  sequence.params.temperature = 0.0f;
  sequence.params.frequency_penalty = 0.4f;
  sequence.tokens = {0};
  sequence.rows = {{0, 1, 0.9f}, {0, 1, 0.9f}, {0, 1, 0.9f}, {0, 1, 0.9f}};
  sequence.draft = {{1, {}}, {2, {}}, {1, {}}};
  const SequenceDecision decision = verify_alone({3, {sequence}})[0];
  EXPECT_EQ(decision.num_accepted, 3);  // 1 at 1.0; then 2 at 0.9 over 0.6; then 1 at 0.6 over 0.5
  EXPECT_EQ(decision.next_token, 2);    // 1 at 0.2, 2 at 0.5
}

TEST(Processors, MinTokensEndsInsideABlock) {
  TestSequence sequence;
  sequence.params.temperature = 0.0f;
  sequence.params.min_tokens = 2;
  sequence.params.stop_token_ids = {2};
  sequence.tokens = {0};
  sequence.rows = {{0, 1, 5}, {0, 1, 5}, {0, 1, 5}};
  sequence.draft = {{1, {}}, {1, {}}};
  const SequenceDecision decision = verify_alone({3, {sequence}})[0];
  EXPECT_EQ(decision.num_accepted, 2);
  EXPECT_EQ(decision.next_token, 2);
}

// ---- bonus draft tokens
// ------------------------------------------------------------------------------------------------

DraftInput draft_input(const SamplingParams& params,
                       const std::vector<float>& logits,
                       const std::vector<int32_t>& tokens) {
  DraftInput input;
  input.params = &params;
  input.tokens = tokens;
  input.num_prompt_tokens = 1;
  input.logits = logits.data();
  input.vocab_size = input.target_vocab_size = static_cast<int32_t>(logits.size());
  return input;
}

TEST(Propose, SendsADistributionItSampledFrom) {
  std::mt19937_64 generator(54);
  const std::vector<float> logits = random_logits(2000, false, generator);
  const std::vector<int32_t> tokens = {1};
  SamplingParams params;
  params.verify_mode = VerifyMode::kStandard;
  std::vector<uint64_t> counts(2000, 0);
  DraftToken last;
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    params.noise_seed = static_cast<uint64_t>(i);
    last = propose(draft_input(params, logits, tokens));
    ASSERT_TRUE(valid_draft(last, 2000));
    ++counts[static_cast<size_t>(last.token)];
  }
  EXPECT_EQ(last.candidates.size(), 16u);
  for (size_t c = 0; c < last.candidates.size(); ++c) {
    const DraftCandidate& candidate = last.candidates[c];
    const size_t before = c > 0 ? c - 1 : 0;
    EXPECT_LE(candidate.draft_prob, last.candidates[before].draft_prob);
    const double share = static_cast<double>(counts[static_cast<size_t>(candidate.token)]) / count;
    const double spread = std::sqrt(candidate.draft_prob * (1.0 - candidate.draft_prob) / count);
    EXPECT_NEAR(share, candidate.draft_prob, 4.5 * spread);
  }
}

TEST(Propose, FollowsTheFilters) {
  std::mt19937_64 generator(55);
  const std::vector<float> logits = random_logits(500, false, generator);
  const std::vector<int32_t> tokens = {1};
  for (int variant = 0; variant < 3; ++variant) {
    SamplingParams params;
    params.verify_mode = VerifyMode::kStandard;
    params.noise_seed = 3;
    if (variant == 0) params.top_k = 3;
    if (variant == 1) params.top_p = 0.5f;
    if (variant == 2) params.min_p = 0.3f;
    const DraftToken bonus_draft = propose(draft_input(params, logits, tokens));
    const std::vector<long double> law = exact_law(logits, params, tokens, 1);
    size_t support = 0;
    for (long double prob : law) support += prob > 0 ? 1 : 0;
    ASSERT_LE(support, 16u);
    if (support == 1) {
      EXPECT_TRUE(bonus_draft.candidates.empty());
      continue;
    }
    EXPECT_EQ(bonus_draft.candidates.size(), support);
    for (const DraftCandidate& candidate : bonus_draft.candidates) {
      const auto expected = static_cast<double>(law[static_cast<size_t>(candidate.token)]);
      EXPECT_NEAR(candidate.draft_prob, expected, 1e-5);
    }
  }
}

TEST(Propose, NeverLeavesTheTargetsVocabulary) {
  std::vector<float> logits(100, 0.0f);
  std::fill(logits.begin() + 60, logits.end(), 50.0f);
  logits[99] = std::numeric_limits<float>::quiet_NaN();  // not looked at either
  const std::vector<int32_t> tokens = {1};
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    for (float temperature : {0.0f, 1.0f}) {
      SamplingParams params;
      params.verify_mode = mode;
      params.temperature = temperature;
      DraftInput input = draft_input(params, logits, tokens);
      input.target_vocab_size = 60;
      EXPECT_TRUE(valid_draft(propose(input), 60));
    }
  }
}

TEST(Propose, UnusableLogitsProposeNothing) {
  const std::vector<int32_t> tokens = {1};
  const SamplingParams params;
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    const std::vector<float> logits = {1.0f, bad, 2.0f};
    EXPECT_EQ(propose(draft_input(params, logits, tokens)).token, -1);
  }
  DraftInput empty = draft_input(params, {}, tokens);
  EXPECT_EQ(propose(empty).token, -1);
}

// ---- log-probabilities
// ----------------------------------------------------------------------------------------

TEST(Logprobs, AgreeWithLongDoubleAndSorting) {
  std::mt19937_64 generator(56);
  for (int trial = 0; trial < 20; ++trial) {
    const int32_t vocab_size = 700;
    TestSequence sequence;
    sequence.params.num_logprobs = 5;
    sequence.params.noise_seed = generator();
    sequence.params.temperature = 0.5f;        // must not matter
    sequence.params.logit_bias = {{3, 2.0f}};  // nor this
    sequence.tokens = {1};
    const bool ties = trial % 2 == 0;
    sequence.rows = {random_logits(vocab_size, ties, generator)};
    const std::vector<float>& row = sequence.rows[0];
    const SequenceDecision decision =
        verify_on_shards({vocab_size, {sequence}}, random_cuts(vocab_size, 3, generator))[1]
            .decisions[0];
    ASSERT_EQ(decision.logprobs.size(), 1u);
    long double sum = 0;
    for (float logit : row) sum += std::exp(static_cast<long double>(logit));
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    const auto logprob = [&](int32_t token) {
      return static_cast<double>(row[static_cast<size_t>(token)] - std::log(sum));
    };
    const TokenLogprobs& got = decision.logprobs[0];
    EXPECT_NEAR(got.logprob, logprob(decision.next_token), 2e-6);
    EXPECT_EQ(order[static_cast<size_t>(got.rank) - 1], decision.next_token);
    ASSERT_EQ(got.top.size(), 5u);
    for (size_t n = 0; n < 5; ++n) {
      EXPECT_EQ(got.top[n].first, order[n]);
      EXPECT_NEAR(got.top[n].second, logprob(order[n]), 2e-6);
    }
  }
}

TEST(Logprobs, AcceptedTokensHaveTheBitsOfPlainOnes) {
  std::mt19937_64 generator(57);
  TestSequence spec;
  spec.params.seed = spec.params.noise_seed = 9;
  spec.params.num_logprobs = 3;
  spec.tokens = {1, 2};
  std::vector<TokenLogprobs> plain;
  for (int k = 0; k < 4; ++k) {
    TestSequence step = spec;
    step.draft.clear();
    for (const DraftToken& token : spec.draft) step.tokens.push_back(token.token);
    spec.rows.push_back(random_logits(300, false, generator));
    step.rows = {spec.rows.back()};
    const SequenceDecision decision = verify_alone({300, {step}})[0];
    plain.push_back(decision.logprobs[0]);
    if (k < 3) spec.draft.push_back({decision.next_token, {}});
  }
  const SequenceDecision decision =
      verify_on_shards({300, {spec}}, even_cuts(300, 4))[0].decisions[0];
  EXPECT_EQ(decision.num_accepted, 3);
  ASSERT_EQ(decision.logprobs.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(decision.logprobs[i] == plain[i]) << i;
}

TEST(Score, SameBitsOnEverySharding) {
  std::mt19937_64 generator(58);
  const int32_t vocab_size = 211;
  std::vector<std::vector<float>> rows;
  std::vector<int32_t> next;
  for (int i = 0; i < 6; ++i) {
    rows.push_back(random_logits(vocab_size, i % 2 == 0, generator));
    next.push_back(static_cast<int32_t>(generator() % 211));
  }
  using Scores = std::vector<std::vector<TokenLogprobs>>;
  const auto on_shards = [&](int num_shards) {
    return run_on_shards<Scores>(num_shards, [&](int rank, ShardExchange& exchange) {
      const VocabShard shard = even_shard(vocab_size, rank, num_shards);
      std::vector<float> logits;
      for (const std::vector<float>& row : rows) {
        logits.insert(logits.end(), row.begin() + shard.begin, row.begin() + shard.end);
      }
      const std::vector<ScoreInput> inputs = {{logits.data(), next, 2}, {nullptr, {}, 2}};
      HostRowScanner scanner;
      return score(inputs, shard, scanner, exchange);
    });
  };
  const Scores alone = on_shards(1)[0];
  ASSERT_EQ(alone.size(), 2u);
  ASSERT_EQ(alone[0].size(), 6u);
  EXPECT_TRUE(alone[1].empty());
  for (int num_shards : {2, 3, 8}) {
    for (const Scores& scores : on_shards(num_shards)) {
      for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(scores[0][i] == alone[0][i]);
    }
  }
  rows[4][200] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(on_shards(2)[0][0].empty());
}

}  // namespace
}  // namespace outrider
