// The bonus draft token: judged as a draft token without a row of its own, which is
// what a block one longer comes to. Its law by exact arithmetic on the rules; counted laws are in
// verify_law_test.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "scheduler/exactness/toy_model.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/verification/rules.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

// ---- the same decision as a block one longer
// -----------------------------------------------------------------------------------

struct Pair {
  TestSequence
      proposed;  // the last draft token as the bonus draft token, without the row behind it
  TestSequence longer;
};

Pair random_pair(int32_t vocab_size, std::mt19937_64& generator) {
  Pair pair;
  do {
    pair.longer = random_sequence(vocab_size, generator);
  } while (pair.longer.draft.empty() || !judges_bonus_drafts(pair.longer.params));
  pair.proposed = pair.longer;
  pair.proposed.bonus_draft = pair.proposed.draft.back();
  pair.proposed.draft.pop_back();
  pair.proposed.rows.pop_back();
  return pair;
}

// The longer block's decision without what its last row added.
SequenceDecision cut(SequenceDecision decision, const TestSequence& longer) {
  if (decision.num_accepted < static_cast<int32_t>(longer.draft.size())) return decision;
  --decision.num_accepted;
  decision.next_token = longer.draft.back().token;
  if (!decision.logprobs.empty()) decision.logprobs.pop_back();
  return decision;
}

TEST(BonusDraft, IsJudgedAsTheLastTokenOfALongerBlockOnAnyNumberOfShards) {
  std::mt19937_64 generator(71);
  int num_accepted_tokens = 0;
  int num_rejected = 0;
  int num_alone = 0;  // bonus draft tokens of plain steps
  int num_dead_ends = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int32_t sizes[] = {2, 5, 37, 259, 1031};
    const int32_t vocab_size = sizes[trial % 5];
    TestRound proposed{vocab_size, {}};
    TestRound longer{vocab_size, {}};
    for (int i = 0; i < 60; ++i) {
      Pair pair = random_pair(vocab_size, generator);
      proposed.sequences.push_back(std::move(pair.proposed));
      longer.sequences.push_back(std::move(pair.longer));
    }
    const std::vector<SequenceDecision> whole = verify_alone(longer);
    for (int num_shards : {1, 2, 4}) {
      for (const ShardRun& run :
           verify_on_shards(proposed, random_cuts(vocab_size, num_shards, generator))) {
        for (size_t i = 0; i < whole.size(); ++i) {
          const TestSequence& sequence = longer.sequences[i];
          const SequenceDecision& decision = run.decisions[i];
          if (whole[i].failed &&
              !decision.failed) {  // nothing is allowed behind the bonus draft token
            ASSERT_EQ(decision.next_token, sequence.draft.back().token);
            ++num_dead_ends;
            continue;
          }
          ASSERT_TRUE(same(decision, cut(whole[i], sequence))) << "trial " << trial << " " << i;
          const auto draft_len = static_cast<int32_t>(sequence.draft.size());
          num_alone += draft_len == 1 ? 1 : 0;
          num_accepted_tokens += whole[i].num_accepted == draft_len ? 1 : 0;
          num_rejected += whole[i].num_accepted == draft_len - 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_accepted_tokens, 3000);
  EXPECT_GT(num_rejected, 3000);
  EXPECT_GT(num_alone, 3000);
  EXPECT_GT(num_dead_ends, 10);
}

// Greedy and coupled requests take the target's choice.
TEST(BonusDraft, DoesNotTouchGreedyAndCoupledDecisions) {
  std::mt19937_64 generator(72);
  TestRound without{83, {}};
  TestRound with{83, {}};
  while (with.sequences.size() < 300) {
    TestSequence sequence = random_sequence(83, generator);
    if (judges_bonus_drafts(sequence.params)) continue;
    without.sequences.push_back(sequence);
    sequence.bonus_draft = random_draft(sequence.rows.back(), generator);
    with.sequences.push_back(std::move(sequence));
  }
  const std::vector<ShardRun> expected = verify_on_shards(without, even_cuts(83, 2));
  const std::vector<ShardRun> got = verify_on_shards(with, even_cuts(83, 2));
  EXPECT_EQ(got[0].num_bytes, expected[0].num_bytes);
  EXPECT_EQ(got[0].num_collectives, expected[0].num_collectives);
  for (size_t i = 0; i < with.sequences.size(); ++i) {
    EXPECT_TRUE(same(got[0].decisions[i], expected[0].decisions[i])) << i;
  }
}

TEST(BonusDraft, BadLogitsInItsRowFailTheSequence) {
  std::mt19937_64 generator(73);
  for (int trial = 0; trial < 40; ++trial) {
    TestSequence sequence = random_pair(97, generator).proposed;
    sequence.rows.back()[generator() % 97] = std::numeric_limits<float>::quiet_NaN();
    for (const ShardRun& run : verify_on_shards({97, {sequence}}, even_cuts(97, 3))) {
      EXPECT_TRUE(run.decisions[0].failed);
      EXPECT_EQ(run.decisions[0].next_token, -1);
      EXPECT_EQ(run.decisions[0].num_accepted, 0);
    }
  }
}

// Where masks leave nothing for the row, the request ends; the bonus draft token cannot save it.
TEST(BonusDraft, CannotStandWhereNothingIsAllowed) {
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock}) {
    TestSequence sequence;
    sequence.params.verify_mode = mode;
    sequence.tokens = {1};
    for (int32_t v = 0; v < 6; ++v) {
      sequence.params.logit_bias.emplace_back(v, -std::numeric_limits<float>::infinity());
    }
    sequence.rows = {{1, 2, 3, 4, 5, 6}};
    sequence.bonus_draft = DraftToken{0, {}};
    for (const ShardRun& run : verify_on_shards({6, {sequence}}, even_cuts(6, 3))) {
      EXPECT_TRUE(run.decisions[0].no_token_allowed);
      EXPECT_EQ(run.decisions[0].next_token, -1);
    }
  }
}

// docs/round.md, section "Bytes": a draft token's words, no row and no collective of its own.
TEST(BonusDraft, CostsTheWordsOfADraftTokenAndNoRow) {
  const std::vector<float> row(64, 0.0f);
  for (VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock}) {
    for (size_t draft_len : {size_t{0}, size_t{3}}) {
      TestSequence sequence;
      sequence.params.verify_mode = mode;
      sequence.tokens = {1};
      DraftToken token{5, {}};
      for (int32_t c = 0; c < 16; ++c) token.candidates.push_back({c, 1.0f / 16});
      sequence.draft.assign(draft_len, token);
      sequence.rows.assign(draft_len + 1, row);
      sequence.bonus_draft = token;
      const size_t words = mode == VerifyMode::kStandard ? 2 : 1 + 8;
      // Of what is only drawn when the block falls somewhere, the last 8 bytes.
      const size_t most = 8 * (draft_len + 1) + 8 * words * (draft_len + 1) + 8;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        sequence.params.noise_seed = seed;
        const ShardRun run = verify_on_shards({64, {sequence}}, even_cuts(64, 2))[0];
        const bool accepted = run.decisions[0].num_accepted == static_cast<int32_t>(draft_len) &&
                              run.decisions[0].next_token == 5;
        EXPECT_EQ(run.num_collectives, accepted ? 2 : 3);
        EXPECT_EQ(run.num_bytes, accepted ? most - 8 : most);
      }
    }
  }
}

// ---- the law, by exact arithmetic
// -----------------------------------------------------------------------------------------------

constexpr int kVocab = 3;

// A target and a draft whose next-token laws depend on the last two tokens.
struct Laws {
  std::vector<double> target_at(const std::vector<int32_t>& text) const {
    return law_of(target.logits(text));
  }
  std::vector<double> draft_at(const std::vector<int32_t>& text) const {
    return law_of(draft.logits(text));
  }
  static std::vector<double> law_of(std::span<const float> logits) {
    std::vector<double> law;
    double sum = 0.0;
    for (float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (float logit : logits) law.push_back(std::exp(static_cast<double>(logit)) / sum);
    return law;
  }
  ToyModel target{kVocab, 5, 1.3f};
  ToyModel draft = target.perturbed(6, 1.1f);
};

// The chance that so many tokens stand, for every number: each uniform decides about one token
// alone, and the threshold below which it does is found by halving.
std::vector<double> standing_law(const std::vector<JudgedRow>& rows, bool block) {
  const size_t n = rows.size();
  std::vector<double> stands(n);
  for (size_t i = 0; i < n; ++i) {
    const auto is_kept = [&](double uniform) {
      std::vector<double> uniforms(n, 2.0);  // the others fall ...
      uniforms[i] = uniform;
      if (block) return judge_block(rows, uniforms).num_accepted > static_cast<int32_t>(i);
      for (size_t j = 0; j < i; ++j) uniforms[j] = -1.0;  // ... or stand before it
      return judge_standard(rows, uniforms) > static_cast<int32_t>(i);
    };
    double low = 0.0;
    double high = 1.0;
    for (int step = 0; step < 60; ++step)
      (is_kept((low + high) / 2) ? low : high) = (low + high) / 2;
    stands[i] = high >= 1.0 ? 1.0 : low;
  }
  std::vector<double> law(n + 1, 0.0);
  if (block) {  // the last that stands counts
    double none_after = 1.0;
    for (size_t i = n; i > 0; --i) {
      law[i] = none_after * stands[i - 1];
      none_after *= 1.0 - stands[i - 1];
    }
    law[0] = none_after;
    return law;
  }
  double all_before = 1.0;
  for (size_t i = 0; i < n; ++i) {
    law[i] = all_before * (1.0 - stands[i]);
    all_before *= stands[i];
  }
  law[n] = all_before;
  return law;
}

// The exact law of the next tokens when a block is drafted, its last token being the bonus draft
// token, and judged once; what is left is the target's own.
class ExactRound {
 public:
  ExactRound(const Laws& laws, bool block, int num_tokens)
      : laws_(laws), block_(block), counts_(static_cast<size_t>(std::pow(kVocab, num_tokens))) {
    num_tokens_ = static_cast<size_t>(num_tokens);
  }

  // has_more: whether another token of the block is judged, by what is drawn already.
  using HasMore = std::function<bool(const std::vector<int32_t>& drawn)>;
  std::vector<double> law(const HasMore& has_more) {
    counts_.assign(counts_.size(), 0.0);
    draw({}, {}, 1.0, has_more);
    return counts_;
  }

 private:
  void draw(const std::vector<int32_t>& drawn,
            const std::vector<JudgedRow>& rows,
            double probability,
            const HasMore& has_more) {
    if (!has_more(drawn)) return judge(drawn, rows, probability);
    const std::vector<int32_t> text = after_prompt(drawn);
    const std::vector<double> target_law = laws_.target_at(text);
    const std::vector<double> draft_law = laws_.draft_at(text);
    for (int32_t v = 0; v < kVocab; ++v) {
      JudgedRow row;
      for (int32_t c = 0; c < kVocab; ++c) {
        const auto at = static_cast<size_t>(c);
        row.draft.push_back({c, static_cast<float>(draft_law[at])});
        row.weights.push_back(static_cast<uint64_t>(target_law[at] * 0x1p44));
        row.mass += row.weights.back();
      }
      row.drawn = static_cast<size_t>(v);
      std::vector<int32_t> longer = drawn;
      longer.push_back(v);
      std::vector<JudgedRow> judged = rows;
      judged.push_back(row);
      // What the draft says it drew from, floats as they are sent.
      draw(longer,
           judged,
           probability * static_cast<double>(row.draft[row.drawn].draft_prob),
           has_more);
    }
  }

  void judge(const std::vector<int32_t>& drawn,
             const std::vector<JudgedRow>& rows,
             double probability) {
    const std::vector<double> standing = standing_law(rows, block_);
    std::vector<double> kept = {1.0};
    for (const JudgedRow& row : rows)
      kept.push_back(block_ ? block_kept_prob(kept.back(), row) : 1.0);
    for (size_t n = 0; n <= rows.size(); ++n) {
      const double share = probability * standing[n];
      const std::vector<int32_t> text(drawn.begin(), drawn.begin() + static_cast<ptrdiff_t>(n));
      if (n == rows.size() || share == 0.0) {
        go_on(text, share);  // nothing is drawn in this round
        continue;
      }
      std::vector<double> left;
      double sum = 0.0;
      for (size_t c = 0; c < kVocab; ++c) {
        const double weight = static_cast<double>(rows[n].weights[c]) / kWeightOne;
        left.push_back(std::max(
            residual_weight(weight, rows[n].draft[c].draft_prob, rows[n].mass, kept[n]), 0.0));
        sum += left.back();
      }
      for (int32_t c = 0; c < kVocab; ++c) {
        std::vector<int32_t> longer = text;
        longer.push_back(c);
        go_on(longer, share * left[static_cast<size_t>(c)] / sum);
      }
    }
  }

  void go_on(const std::vector<int32_t>& text, double probability) {
    if (text.size() >= num_tokens_) {
      size_t cell = 0;
      for (size_t i = 0; i < num_tokens_; ++i) {
        cell = cell * kVocab + static_cast<size_t>(text[i]);
      }
      counts_[cell] += probability;
      return;
    }
    const std::vector<double> law = laws_.target_at(after_prompt(text));
    for (int32_t v = 0; v < kVocab; ++v) {
      std::vector<int32_t> longer = text;
      longer.push_back(v);
      go_on(longer, probability * law[static_cast<size_t>(v)]);
    }
  }

  static std::vector<int32_t> after_prompt(const std::vector<int32_t>& text) {
    std::vector<int32_t> whole = {0, 1};
    whole.insert(whole.end(), text.begin(), text.end());
    return whole;
  }

  const Laws& laws_;
  const bool block_;
  size_t num_tokens_ = 0;
  std::vector<double> counts_;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]) / 2;
  return sum;
}

// With rows = draft_len + 1 and a bonus draft token, a block of draft_len + 1 tokens is judged and
// nothing is drawn when all stand.
TEST(BonusDraft, LeavesTheLawExactlyTheTargets) {
  const Laws laws;
  constexpr int kTokens = 4;
  const std::vector<double> plain =
      ExactRound(laws, false, kTokens).law([](const std::vector<int32_t>&) { return false; });
  for (bool block : {false, true}) {
    ExactRound round(laws, block, kTokens);
    for (size_t draft_len : {0, 1, 2, 3}) {
      const auto law = round.law(
          [&](const std::vector<int32_t>& drawn) { return drawn.size() < draft_len + 1; });
      EXPECT_LE(distance(law, plain), 1e-6) << draft_len;  // draft_prob travels as a float
    }
    // The bonus draft token may be there or not by what was drawn before it, which is used.
    const auto by_text = round.law([](const std::vector<int32_t>& drawn) {
      return drawn.size() < 2 || (drawn.size() == 2 && drawn[0] != drawn[1]);
    });
    EXPECT_LE(distance(by_text, plain), 1e-6);
  }
}

}  // namespace
}  // namespace outrider
