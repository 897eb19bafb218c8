// Draft tokens for the bonus position on the target ranks: with the plan or after it they decide
// the same, on any number of ranks; what is no bonus draft token is dropped alike everywhere;
// nobody waits for late draft tokens when the job ends.
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "runtime/base/numbers/rng.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"
#include "scheduler/round.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/played_rounds.h"

namespace outrider::test {
namespace {

constexpr int kNumRounds = 40;
constexpr int32_t kNumSequences = 4;  // block, standard, greedy, coupled
constexpr int32_t kBlocksEach = 8;

void post_all(World& world, int num_targets, const Bytes& bytes) {
  for (int rank = 1; rank < num_targets; ++rank) world.post(rank, bytes);
}

SamplingParams params_of(uint64_t sequence_id) {
  SamplingParams params = greedy(200);
  params.noise_seed = 1000 + sequence_id;
  params.temperature = sequence_id == 3 ? 0.0f : 0.7f;
  const VerifyMode modes[] = {
      VerifyMode::kBlock, VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled};
  params.verify_mode = modes[sequence_id - 1];
  if (sequence_id == 2) params.repetition_penalty = 1.2f;
  return params;
}

enum class When { kNever, kEarly, kLate, kByTurns };

// What often follows a token.
using Hints = std::map<int32_t, int32_t>;

// Texts written round by round, with up to two draft tokens and the bonus draft token behind them
// by `hints`.
class Writer {
 public:
  using Texts = std::map<uint64_t, std::vector<int32_t>>;
  Writer(World& world, TargetRank& target, int num_targets, const Hints& hints, When when)
      : world_(world), target_(target), num_targets_(num_targets), hints_(hints), when_(when) {
    for (uint64_t id = 1; id <= kNumSequences; ++id) texts_[id] = {30, 40, 50, 60};
  }

  void run() {
    for (uint64_t round = 1; round <= kNumRounds; ++round) step(round);
    post_all(world_, num_targets_, encode(shutdown_plan(kNumRounds + 1)));
  }

  const Texts& texts() const { return texts_; }
  int num_judged = 0;
  int num_accepted_tokens = 0;

 private:
  // Draws one of two tokens by a coin that nothing else uses.
  DraftToken hint(int32_t last, uint64_t coin) const {
    const auto found = hints_.find(last);
    const int32_t likely = found == hints_.end() ? 16 : found->second;
    const int32_t other = likely == 11 ? 18 : 11;
    return {coin % 4 == 0 ? other : likely, {{likely, 0.75f}, {other, 0.25f}}};
  }

  void step(uint64_t round) {
    RoundPlan plan;
    plan.round = round;
    plan.candidates_follow = true;  // also where there are none
    plan.awaits_bonus_drafts = when_ == When::kLate || when_ == When::kByTurns;
    LateDraftTokens late_tokens{round, {}};
    for (auto& [id, text] : texts_) {
      SequencePlan sequence;
      sequence.sequence_id = id;
      sequence.round = static_cast<uint32_t>(round);
      sequence.first_position = computed_[id];
      sequence.num_committed_rows = static_cast<int32_t>(text.size()) - computed_[id];
      if (round == 1) {
        plan.starts.push_back({id, params_of(id), text});
        for (int32_t b = 0; b < kBlocksEach; ++b) {
          sequence.new_blocks.push_back((static_cast<int32_t>(id) - 1) * kBlocksEach + b);
        }
      }
      int32_t last = text.back();
      const size_t draft_len = (round + id) % 3;
      for (size_t i = 0; i < draft_len && round > 1; ++i) {
        sequence.draft.push_back(hint(last, mix_seed(round, 10 * id + i)));
        last = sequence.draft.back().token;
      }
      const DraftToken bonus_draft = hint(last, mix_seed(round, 10 * id + 9));
      const bool late = when_ == When::kLate || (when_ == When::kByTurns && round % 2 == 0);
      if (late) {
        late_tokens.bonus_drafts.push_back({id, bonus_draft});
      } else if (when_ != When::kNever) {
        sequence.bonus_draft = bonus_draft;
      }
      plan.sequences.push_back(std::move(sequence));
    }
    execute(std::move(plan), late_tokens);
  }

  void execute(RoundPlan plan, const LateDraftTokens& late_tokens) {
    post_all(world_, num_targets_, encode(plan));
    const uint64_t round = plan.round;
    target_.begin(std::move(plan));
    post_all(world_, num_targets_, encode_candidates(target_.plan()));
    target_.prepare();
    if (target_.awaits_bonus_drafts()) {
      post_all(world_, num_targets_, encode(late_tokens));
      target_.add_late_tokens(late_tokens);
    }
    const RoundDecision decision = target_.finish();
    check_agreement(world_, {num_targets_, false}, round, digest(round, decision));
    commit(decision, target_.plan());
  }

  void commit(const RoundDecision& decision, const RoundPlan& plan) {
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequencePlan& planned = plan.sequences[i];
      const SequenceDecision& decided = decision.sequences[i];
      std::vector<int32_t>& text = texts_[planned.sequence_id];
      ASSERT_FALSE(decided.failed);
      computed_[planned.sequence_id] = static_cast<int32_t>(text.size()) + decided.num_accepted;
      for (int32_t k = 0; k < decided.num_accepted; ++k) {
        text.push_back(planned.draft[static_cast<size_t>(k)].token);
      }
      text.push_back(decided.next_token);
      // Only the first two sequences' rules judge bonus draft tokens; the plan says so afterwards.
      EXPECT_TRUE(!planned.bonus_draft || planned.sequence_id <= 2);
      const bool judged =
          planned.bonus_draft && decided.num_accepted == static_cast<int32_t>(planned.draft.size());
      num_judged += judged ? 1 : 0;
      num_accepted_tokens += bonus_draft_accepted(planned, decided) ? 1 : 0;
    }
  }

  World& world_;
  TargetRank& target_;
  const int num_targets_;
  const Hints& hints_;
  const When when_;
  Texts texts_;
  std::map<uint64_t, int32_t> computed_;
};

struct Written {
  Writer::Texts texts;
  int num_judged = 0;
  int num_accepted_tokens = 0;
};

Written write(int num_targets, const Hints& hints, When when) {
  Written written;
  EXPECT_EQ(run_targets(num_targets,
                        [&](World& world, TargetRank& target) {
                          Writer writer(world, target, num_targets, hints, when);
                          writer.run();
                          written = {writer.texts(), writer.num_judged, writer.num_accepted_tokens};
                        }),
            "");
  return written;
}

TEST(LateDraftToken, DecidesAsOneThatCameWithThePlanOnAnyNumberOfRanks) {
  const Writer::Texts plain = write(1, {}, When::kNever).texts;
  Hints hints;
  for (const auto& [id, text] : plain) {
    for (size_t i = 4; i < text.size(); ++i) hints[text[i - 1]] = text[i];
  }
  for (int num_targets : {1, 2, 3}) {
    const Written early = write(num_targets, hints, When::kEarly);
    EXPECT_GT(early.num_judged, 30);
    EXPECT_GT(early.num_accepted_tokens, 5);
    EXPECT_LT(early.num_accepted_tokens, early.num_judged);
    for (When when : {When::kLate, When::kByTurns}) {
      const Written late = write(num_targets, hints, when);
      EXPECT_EQ(late.texts, early.texts) << num_targets;
      EXPECT_EQ(late.num_judged, early.num_judged);
      EXPECT_EQ(late.num_accepted_tokens, early.num_accepted_tokens);
    }
    const Written without = write(num_targets, hints, When::kNever);
    EXPECT_NE(without.texts.at(1), early.texts.at(1));
    // Greedy and coupled text takes no notice of drafts and bonus draft tokens.
    for (uint64_t id : {3, 4}) {
      const std::vector<int32_t>& text = early.texts.at(id);
      const size_t size = std::min(text.size(), plain.at(id).size());
      EXPECT_GE(size, 40u);
      EXPECT_TRUE(std::equal(
          text.begin(), text.begin() + static_cast<ptrdiff_t>(size), plain.at(id).begin()));
    }
  }
}

// ---- what is no bonus draft token
// ----------------------------------------------------------------------------------------------------

RoundPlan plan_of_two(bool awaits) {
  RoundPlan plan;
  plan.round = 41;
  plan.awaits_bonus_drafts = awaits;
  for (uint64_t id : {1, 2}) {
    plan.starts.push_back({id, params_of(id), {30, 40, 50}});
    SequencePlan sequence;
    sequence.sequence_id = id;
    sequence.num_committed_rows = id == 1 ? 3 : 2;  // the second does not sample yet
    sequence.new_blocks = {static_cast<int32_t>(id)};
    plan.sequences.push_back(sequence);
  }
  return plan;
}

// The decision of sequence 1, and what of the bonus draft tokens is left in the plan.
std::pair<int32_t, int> decide_with(const std::vector<LateDraftToken>& bonus_drafts) {
  std::pair<int32_t, int> result;
  EXPECT_EQ(run_targets(2,
                        [&](World& world, TargetRank& target) {
                          const LateDraftTokens late_tokens{41, bonus_drafts};
                          world.post(1, encode(plan_of_two(true)));
                          target.begin(plan_of_two(true));
                          target.prepare();
                          world.post(1, encode(late_tokens));
                          target.add_late_tokens(late_tokens);
                          const RoundDecision decision = target.finish();
                          check_agreement(world, {2, false}, 41, digest(41, decision));
                          world.post(1, encode(shutdown_plan(42)));
                          result.first = decision.sequences[0].next_token;
                          for (const SequencePlan& planned : target.plan().sequences) {
                            result.second += planned.bonus_draft ? 1 : 0;
                          }
                        }),
            "");
  return result;
}

TEST(LateDraftToken, NonsenseIsDroppedAlikeOnEveryRank) {
  const auto without = decide_with({});
  EXPECT_EQ(without.second, 0);
  const DraftToken good{9, {}};
  EXPECT_EQ(decide_with({{1, good}}).second, 1);
  EXPECT_EQ(decide_with({{2, good}}), without);  // does not sample
  EXPECT_EQ(decide_with({{1, good}, {1, {10, {}}}, {99, good}}), decide_with({{1, good}}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DraftToken& bad : {DraftToken{-1, {}},
                                DraftToken{1 << 30, {}},
                                DraftToken{9, {{10, 1.0f}}},
                                DraftToken{9, {{9, 0.5f}}},
                                DraftToken{9, {{9, nan}}}}) {
    EXPECT_EQ(decide_with({{1, bad}}), without);
  }
}

TEST(LateDraftToken, ThatOfAnotherRoundEndsTheJob) {
  const std::string sentence = run_targets(2, [](World& world, TargetRank& target) {
    world.post(1, encode(plan_of_two(true)));
    target.begin(plan_of_two(true));
    target.prepare();
    world.post(1, encode(LateDraftTokens{40, {}}));
    target.add_late_tokens({41, {}});
    target.finish();
    receive(world, 1, 2);
  });
  EXPECT_EQ(sentence, "the late draft tokens of round 40 came in round 41");
}

TEST(LateDraftToken, CandidatesOfAnotherRoundEndTheJob) {
  const std::string sentence = run_targets(2, [](World& world, TargetRank& target) {
    RoundPlan plan = plan_of_two(false);
    plan.candidates_follow = true;
    world.post(1, encode(plan));
    RoundPlan other = plan;
    other.round = 40;
    world.post(1, encode_candidates(other));
    target.execute(plan);
    receive(world, 1, 2);
  });
  EXPECT_EQ(sentence, "the candidates of round 41 are not the next message");
}

TEST(LateDraftToken, ARankThatWaitsForOneSeesTheEndOfTheJob) {
  const std::string sentence = run_targets(2, [](World& world, TargetRank& target) {
    world.post(1, encode(plan_of_two(true)));
    target.begin(plan_of_two(true));
    target.prepare();
    target.advance();
    throw Error("no more");
  });
  EXPECT_EQ(sentence, "no more");
}

}  // namespace
}  // namespace outrider::test
