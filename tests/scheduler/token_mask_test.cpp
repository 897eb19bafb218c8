// Token masks: the bits of a shard, the two masks a request can ask for, and a small automaton in
// the place of a grammar, which is followed through drafts that break it, rejections and dead ends.
#include "scheduler/sampling/token_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "runtime/base/numbers/rng.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/chi_square.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/rows/row_view.h"
#include "scheduler/verification/verify.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

// ---- bits
// -----------------------------------------------------------------------------------------------------

TEST(AllowedBits, ForbiddingAgreesWithASetOnEveryShard) {
  std::mt19937_64 generator(71);
  int num_allowed = 0;
  int num_forbidden = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto vocab_size = static_cast<int32_t>(1 + generator() % 400);
    const auto begin = static_cast<int32_t>(generator() % static_cast<uint64_t>(vocab_size + 1));
    const auto length = generator() % static_cast<uint64_t>(vocab_size - begin + 1);
    const VocabShard shard{begin, begin + static_cast<int32_t>(length), vocab_size};
    std::set<int32_t> kept;
    std::set<int32_t> banned;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if (generator() % 3 != 0) kept.insert(id);
      if (generator() % 9 == 0) banned.insert(id);
    }
    std::vector<uint64_t> words(AllowedBits::num_words(shard), ~uint64_t{0});
    AllowedBits bits(shard, words);
    for (int32_t id : banned) bits.forbid(id);
    if (trial % 2 == 0) {
      bits.forbid_all_but(std::vector<int32_t>(kept.begin(), kept.end()));
    } else {
      std::vector<uint32_t> of_all((static_cast<size_t>(vocab_size) + 31) / 32, 0);
      for (int32_t id : kept) of_all[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
      bits.forbid_all_but_bits(of_all);
    }
    for (int32_t i = 0; i < static_cast<int32_t>(64 * words.size()); ++i) {
      const bool set = (words[static_cast<size_t>(i) / 64] >> (i % 64) & 1) != 0;
      const int32_t id = begin + i;
      const bool expected = i >= shard.size() || (kept.count(id) > 0 && banned.count(id) == 0);
      ASSERT_EQ(set, expected) << "token " << id << " of [" << shard.begin << ", " << shard.end;
      ++(expected ? num_allowed : num_forbidden);
    }
  }
  EXPECT_GT(num_allowed, 5000);
  EXPECT_GT(num_forbidden, 5000);
}

// A row as the tiles of sampling see it must be the row with the forbidden tokens at -infinity.
TEST(RowView, TilesAndSingleValuesAgreeUnderMaskCeilingAndEdits) {
  std::mt19937_64 generator(72);
  int num_cut = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const auto size = static_cast<int32_t>(1 + generator() % 1600);
    const std::vector<float> row = random_logits(size, trial % 2 == 0, generator);
    std::vector<int32_t> edit_index;
    std::vector<float> edit_value;
    std::vector<uint64_t> allowed((static_cast<size_t>(size) + 63) / 64, ~uint64_t{0});
    for (int32_t i = 0; i < size; ++i) {
      if (generator() % 50 == 0) {
        edit_index.push_back(i);
        edit_value.push_back(trial % 4 == 0 ? kMasked : 3.0f);
      }
      // Whole words, single bits and long stretches without any.
      const bool off = trial % 3 == 0 ? i / 64 % 3 == 1 : generator() % 700 == 0;
      if (off) allowed[static_cast<size_t>(i) / 64] &= ~(uint64_t{1} << (i % 64));
    }
    RowView view;
    view.logits = row.data();
    view.size = size;
    view.edit_index = edit_index;
    view.edit_value = edit_value;
    view.inverse_temperature = 1.0f / 0.8f;
    if (trial % 5 != 0) view.allowed = allowed;
    if (trial % 2 == 0) view.ceiling = 2.5f;
    std::vector<float> seen;
    for_each_tile(view, [&](int32_t begin, int32_t count, const float* values) {
      ASSERT_EQ(begin, static_cast<int32_t>(seen.size()));
      seen.insert(seen.end(), values, values + count);
    });
    ASSERT_EQ(seen.size(), row.size());
    for (int32_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto edit = std::lower_bound(edit_index.begin(), edit_index.end(), i);
      float expected = row[at];
      if (edit != edit_index.end() && *edit == i) {
        expected = edit_value[static_cast<size_t>(edit - edit_index.begin())];
      }
      const bool off = !view.allowed.empty() && (allowed[at / 64] >> (at % 64) & 1) == 0;
      if (off || expected * view.inverse_temperature > view.ceiling) {
        num_cut += expected > kMasked ? 1 : 0;
        expected = kMasked;
      }
      ASSERT_EQ(seen[at], expected) << "trial " << trial << " token " << i;
      ASSERT_EQ(view.scaled(i, row[at]), expected * view.inverse_temperature);
    }
  }
  EXPECT_GT(num_cut, 1000);
}

// ---- the masks of a request
// ----------------------------------------------------------------------------------

std::set<int32_t> allowed_next(const SamplingParams& params,
                               int32_t vocab_size,
                               const TokenHistory& history) {
  const VocabShard whole{0, vocab_size, vocab_size};
  std::vector<uint64_t> words(AllowedBits::num_words(whole), ~uint64_t{0});
  AllowedBits bits(whole, words);
  const auto mask = make_token_mask(params);
  if (mask != nullptr) mask->restrict_next(history, bits);
  std::set<int32_t> allowed;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if ((words[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) allowed.insert(id);
  }
  return allowed;
}

TEST(TokenMask, NoneWithoutParameters) { EXPECT_EQ(make_token_mask(SamplingParams{}), nullptr); }

TEST(TokenMask, BadWordsLookBackOverDraftOutputAndPrompt) {
  SamplingParams params;
  params.bad_words = {{1, 2, 3}, {4}};
  const std::vector<int32_t> text = {0, 1, 2};
  const std::set<int32_t> without_4 = {0, 1, 2, 3};
  const std::set<int32_t> without_3_and_4 = {0, 1, 2};
  for (size_t num_committed = 0; num_committed <= text.size(); ++num_committed) {
    const std::span<const int32_t> all = text;
    const TokenHistory history{all.first(num_committed), 1, all.subspan(num_committed)};
    EXPECT_EQ(allowed_next(params, 5, history), without_3_and_4) << num_committed;
  }
  const std::vector<int32_t> other = {1, 2, 1};
  EXPECT_EQ(allowed_next(params, 5, {other, 1, {}}), without_4);
  EXPECT_EQ(allowed_next(params, 5, {}), without_4);  // shorter than the word
}

TEST(TokenMask, MasksAddUp) {
  SamplingParams params;
  params.allowed_token_ids = {1, 3, 4, 70};
  params.bad_words = {{3}, {9, 70}};
  const std::vector<int32_t> text = {9};
  EXPECT_EQ(allowed_next(params, 80, {text, 1, {}}), (std::set<int32_t>{1, 4}));
  EXPECT_EQ(allowed_next(params, 80, {}), (std::set<int32_t>{1, 4, 70}));
}

TEST(TokenMask, ForbiddenTokensNeverComeBackByBiasOrFilters) {
  TestSequence sequence;
  sequence.params.allowed_token_ids = {0, 2};
  sequence.params.logit_bias = {{1, 100.0f}};
  sequence.tokens = {0};
  sequence.rows = {{0.0f, 5.0f, 1.0f, 9.0f}};
  for (float temperature : {0.0f, 1.0f}) {
    for (float typical_p : {0.1f, 0.9f, 1.0f}) {
      sequence.params.temperature = temperature;
      sequence.params.typical_p = typical_p;
      const ShardRun run = verify_on_shards({4, {sequence}}, even_cuts(4, 2))[1];
      EXPECT_EQ(run.decisions[0].next_token % 2, 0) << temperature << " " << typical_p;
    }
  }
}

// ---- an automaton in the place of a grammar
// -------------------------------------------------------------------

constexpr int32_t kOpen = 0;
constexpr int32_t kClose = 1;
constexpr int32_t kEnd = 5;  // nothing may follow it
constexpr int32_t kVocab = 6;

// Brackets that close, at most two deep, in the output alone; 2, 3 and 4 are letters, 4 only within
// brackets.
bool fits_grammar(std::span<const int32_t> output) {
  int depth = 0;
  bool ended = false;
  for (int32_t token : output) {
    if (ended) return false;
    depth += token == kOpen ? 1 : token == kClose ? -1 : 0;
    if (depth < 0 || depth > 2 || (token == 4 && depth == 0)) return false;
    ended = token == kEnd;
  }
  return true;
}

class BracketMask final : public TokenMask {
 public:
  explicit BracketMask(bool with_end) : with_end_(with_end) {}
  void restrict_next(const TokenHistory& history, AllowedBits& allowed) const override {
    ++num_calls;
    std::vector<int32_t> output;
    for (size_t i = static_cast<size_t>(history.num_prompt_tokens); i < history.size(); ++i) {
      output.push_back(history[i]);
    }
    const VocabShard& shard = allowed.shard();
    for (int32_t token = shard.begin; token < shard.end; ++token) {
      output.push_back(token);
      if (!fits_grammar(output) || (token == kEnd && !with_end_)) allowed.forbid(token);
      output.pop_back();
    }
  }
  mutable std::atomic<int> num_calls{0};

 private:
  bool with_end_;
};

struct Story {
  SamplingParams params;
  std::vector<int32_t> tokens;
  uint32_t round = 0;
  std::vector<DraftToken> draft;
  bool dead_end = false;
};

class MaskedGeneration {
 public:
  MaskedGeneration(VerifyMode mode, int num_shards, size_t draft_len, const TokenMask& mask)
      : mode_(mode), num_shards_(num_shards), draft_len_(draft_len), mask_(mask) {}

  // Until num_tokens are out, or a dead end.
  std::vector<Story> run(int num_stories, size_t num_tokens) {
    std::vector<Story> stories(static_cast<size_t>(num_stories));
    for (size_t i = 0; i < stories.size(); ++i) {
      stories[i].params.verify_mode = mode_;
      stories[i].params.noise_seed = mix_seed(5, i);
      stories[i].tokens = prompt;
    }
    while (true) {
      std::vector<Story*> running;
      for (Story& story : stories) {
        if (!story.dead_end && story.tokens.size() < prompt.size() + num_tokens) {
          running.push_back(&story);
        }
      }
      if (running.empty()) return stories;
      for (Story* story : running) {
        // As the planner does it: no round reaches beyond the last token.
        const size_t num_left = prompt.size() + num_tokens - story->tokens.size();
        make_draft(*story, std::min(draft_len_, num_left - 1));
      }
      apply(running, decide(running));
    }
  }

  bool draft_is_masked = false;
  bool draft_wants_end = false;  // much more often than the target
  int64_t num_drafted = 0;
  int64_t num_accepted = 0;
  const std::vector<int32_t> prompt = {4, 1, 5};  // itself against the grammar
  const ToyModel target{kVocab, 31, 1.2f};
  const ToyModel draft{target.perturbed(32, 0.7f)};

 private:
  void make_draft(Story& story, size_t draft_len) const {
    story.draft.clear();
    std::vector<int32_t> context = story.tokens;
    SamplingParams params = story.params;
    if (draft_wants_end) params.logit_bias = {{kEnd, 2.5f}};
    while (story.draft.size() < draft_len) {
      const std::span<const float> logits = draft.logits(context);
      const DraftToken token = propose({.params = &params,
                                        .tokens = story.tokens,
                                        .num_prompt_tokens = static_cast<int32_t>(prompt.size()),
                                        .drafted = story.draft,
                                        .round = story.round,
                                        .logits = logits.data(),
                                        .vocab_size = kVocab,
                                        .target_vocab_size = kVocab,
                                        .mask = draft_is_masked ? &mask_ : nullptr});
      if (token.token < 0) return;  // the draft's own dead end
      story.draft.push_back(token);
      context.push_back(token.token);
    }
  }

  std::vector<SequenceDecision> decide(const std::vector<Story*>& running) const {
    return run_on_shards<std::vector<SequenceDecision>>(
        num_shards_, [&](int rank, ShardExchange& exchange) {
          const VocabShard shard = even_shard(kVocab, rank, num_shards_);
          std::vector<std::vector<float>> rows(running.size());
          std::vector<VerifyInput> inputs;
          for (size_t n = 0; n < running.size(); ++n) {
            const Story& story = *running[n];
            std::vector<int32_t> context = story.tokens;
            for (size_t i = 0; i <= story.draft.size(); ++i) {
              const std::span<const float> logits = target.logits(context);
              rows[n].insert(
                  rows[n].end(), logits.begin() + shard.begin, logits.begin() + shard.end);
              if (i < story.draft.size()) context.push_back(story.draft[i].token);
            }
            inputs.push_back({.sequence_id = n + 1,
                              .params = &story.params,
                              .tokens = story.tokens,
                              .num_prompt_tokens = static_cast<int32_t>(prompt.size()),
                              .round = story.round,
                              .draft = story.draft,
                              .logits = rows[n].data(),
                              .mask = &mask_});
          }
          return verify(inputs, shard, exchange);
        })[0];
  }

  void apply(const std::vector<Story*>& running, const std::vector<SequenceDecision>& decisions) {
    for (size_t n = 0; n < running.size(); ++n) {
      Story& story = *running[n];
      const SequenceDecision& decision = decisions[n];
      EXPECT_EQ(decision.failed, decision.no_token_allowed);
      story.dead_end = decision.failed;
      if (story.dead_end) continue;
      for (int32_t k = 0; k < decision.num_accepted; ++k) {
        story.tokens.push_back(story.draft[static_cast<size_t>(k)].token);
      }
      story.tokens.push_back(decision.next_token);
      ++story.round;
      num_drafted += static_cast<int64_t>(story.draft.size());
      num_accepted += decision.num_accepted;
    }
  }

  const VerifyMode mode_;
  const int num_shards_;
  const size_t draft_len_;
  const TokenMask& mask_;
};

// The law of the next tokens under the automaton: a cell per text, shorter where the end token
// makes a dead end.
std::map<std::vector<int32_t>, double> masked_law(const MaskedGeneration& generation,
                                                  size_t num_tokens,
                                                  bool with_end) {
  std::map<std::vector<int32_t>, double> law;
  std::vector<std::pair<std::vector<int32_t>, double>> open = {{{}, 1.0}};
  while (!open.empty()) {
    const auto [output, prob] = open.back();
    open.pop_back();
    if (output.size() == num_tokens || (!output.empty() && output.back() == kEnd)) {
      law[output] = prob;
      continue;
    }
    std::vector<int32_t> context = generation.prompt;
    context.insert(context.end(), output.begin(), output.end());
    SamplingParams params;
    for (int32_t token = 0; token < kVocab; ++token) {
      std::vector<int32_t> next = output;
      next.push_back(token);
      if (fits_grammar(next) && (token != kEnd || with_end)) continue;
      params.logit_bias.emplace_back(token, kMasked);
    }
    const auto probs = exact_law(generation.target.logits(context), params, context, 3);
    for (int32_t token = 0; token < kVocab; ++token) {
      if (!(probs[static_cast<size_t>(token)] > 0)) continue;
      std::vector<int32_t> next = output;
      next.push_back(token);
      open.emplace_back(next, prob * static_cast<double>(probs[static_cast<size_t>(token)]));
    }
  }
  return law;
}

struct AutomatonCase {
  VerifyMode mode;
  int num_shards;
  bool with_end;
  bool draft_is_masked;
};

std::string case_name(const ::testing::TestParamInfo<AutomatonCase>& info) {
  const AutomatonCase& automaton = info.param;
  const bool is_block = automaton.mode == VerifyMode::kBlock;
  return std::string(automaton.mode == VerifyMode::kCoupled ? "coupled"
                     : is_block                             ? "block"
                                                            : "standard") +
         (automaton.with_end ? "_dead_ends" : "") +
         (automaton.draft_is_masked ? "_masked_draft" : "") + "_on_" +
         std::to_string(automaton.num_shards);
}

class Automaton : public ::testing::TestWithParam<AutomatonCase> {};

TEST_P(Automaton, TextsFollowItWithTheExactLaw) {
  const AutomatonCase& automaton = GetParam();
  const BracketMask mask(automaton.with_end);
  MaskedGeneration generation(automaton.mode, automaton.num_shards, 3, mask);
  generation.draft_is_masked = automaton.draft_is_masked;
  generation.draft_wants_end = automaton.with_end;
  const size_t num_tokens = 4;
  std::map<std::vector<int32_t>, uint64_t> counts;
  uint64_t num_dead_ends = 0;
  for (const Story& story : generation.run(60000, num_tokens)) {
    if (story.dead_end) {
      ++num_dead_ends;  // the tokens of its last round are not known
      continue;
    }
    const std::vector<int32_t> output(story.tokens.begin() + 3, story.tokens.end());
    ASSERT_EQ(output.size(), num_tokens);
    ASSERT_TRUE(fits_grammar(output));
    ++counts[output];
  }
  std::vector<uint64_t> observed = {num_dead_ends};
  std::vector<double> expected = {0.0};
  for (const auto& [output, prob] : masked_law(generation, num_tokens, automaton.with_end)) {
    if (output.size() < num_tokens) {
      expected[0] += prob;
      continue;
    }
    expected.push_back(prob);
    observed.push_back(counts[output]);
    counts.erase(output);
  }
  EXPECT_TRUE(counts.empty());
  EXPECT_EQ(num_dead_ends > 5000, automaton.with_end);
  const ChiSquare test = chi_square(observed, expected);
  EXPECT_GE(test.degrees, 20);
  EXPECT_TRUE(test.fits()) << test.statistic << " over " << test.limit << " at df " << test.degrees;
  // Drafts were rejected and accepted.
  EXPECT_GT(generation.num_accepted, generation.num_drafted / 20);
  EXPECT_LT(generation.num_accepted, generation.num_drafted * 9 / 10);
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         Automaton,
                         ::testing::Values(AutomatonCase{VerifyMode::kStandard, 1, false, false},
                                           AutomatonCase{VerifyMode::kStandard, 2, true, false},
                                           AutomatonCase{VerifyMode::kStandard, 1, true, true},
                                           AutomatonCase{VerifyMode::kBlock, 1, false, false},
                                           AutomatonCase{VerifyMode::kBlock, 2, true, false},
                                           AutomatonCase{VerifyMode::kBlock, 1, true, true},
                                           AutomatonCase{VerifyMode::kCoupled, 2, false, false},
                                           AutomatonCase{VerifyMode::kCoupled, 1, true, false},
                                           AutomatonCase{VerifyMode::kCoupled, 1, false, true}),
                         case_name);

TEST(AutomatonText, DraftsThatBreakItChangeNoTokenAndAMaskedDraftIsAcceptedMoreOften) {
  const BracketMask mask(false);
  MaskedGeneration plain(VerifyMode::kCoupled, 1, 0, mask);
  const std::vector<Story> expected = plain.run(200, 40);
  double accepted[2] = {0, 0};
  for (const bool draft_is_masked : {false, true}) {
    for (size_t draft_len : {1, 4, 9}) {
      MaskedGeneration generation(VerifyMode::kCoupled, 3, draft_len, mask);
      generation.draft_is_masked = draft_is_masked;
      const std::vector<Story> stories = generation.run(200, 40);
      for (size_t i = 0; i < stories.size(); ++i) {
        ASSERT_EQ(stories[i].tokens, expected[i].tokens) << i << " with draft length " << draft_len;
      }
      accepted[draft_is_masked ? 1 : 0] += static_cast<double>(generation.num_accepted) /
                                           static_cast<double>(generation.num_drafted);
    }
  }
  EXPECT_GT(accepted[0], 0.2);
  EXPECT_GT(accepted[1], accepted[0] * 1.1);
  EXPECT_GT(mask.num_calls, 1000);
}

TEST(AutomatonText, ADeadEndBehindARejectedDraftIsNone) {
  const BracketMask mask(true);
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    for (float temperature : {0.0f, 1.0f}) {
      TestSequence sequence;
      const std::vector<int32_t> tokens = {2};
      SamplingParams params;
      params.verify_mode = mode;
      params.temperature = temperature;
      // Row 0 forbids nothing likely; the draft ends the text, and the target wants none of it.
      const std::vector<DraftToken> draft = {{kEnd, {}}, {2, {}}};
      std::vector<float> rows(3 * kVocab, 0.0f);
      rows[2] = 60.0f;
      const VerifyInput input{.sequence_id = 1,
                              .params = &params,
                              .tokens = tokens,
                              .num_prompt_tokens = 1,
                              .draft = draft,
                              .logits = rows.data(),
                              .mask = &mask};
      SoloExchange solo;
      const SequenceDecision decision = verify(std::span(&input, 1), {0, kVocab, kVocab}, solo)[0];
      EXPECT_FALSE(decision.failed);
      EXPECT_EQ(decision.num_accepted, 0);
      EXPECT_EQ(decision.next_token, 2);
      rows[2] = 0.0f;
      rows[kEnd] = 60.0f;  // now the end is what the target wants
      const SequenceDecision ended = verify(std::span(&input, 1), {0, kVocab, kVocab}, solo)[0];
      EXPECT_TRUE(ended.failed);
      EXPECT_TRUE(ended.no_token_allowed);
      EXPECT_EQ(ended.num_accepted, 0);
      EXPECT_EQ(ended.next_token, -1);
    }
  }
}

}  // namespace
}  // namespace outrider
