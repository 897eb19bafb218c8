// OUTRIDER_CHECKS: the words it knows, what happens when the books are wrong, and that stale KV is
// noticed once freed blocks are full of NaN.
#include "runtime/ranks/checks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/log.h"
#include "runtime/ranks/draft/worker.h"
#include "runtime/ranks/loading/model_loader.h"
#include "tests/base/error_sentence.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

TEST(Checks, KnowsItsWords) {
  EXPECT_FALSE(Checks::parse("").books);
  EXPECT_FALSE(Checks::parse("").poison);
  EXPECT_TRUE(Checks::parse("books").books);
  EXPECT_FALSE(Checks::parse("books").poison);
  EXPECT_TRUE(Checks::parse("poison,books").books);
  EXPECT_TRUE(Checks::parse("poison,books").poison);
  EXPECT_EQ(error_of([] { Checks::parse("books,venom"); }),
            "OUTRIDER_CHECKS: 'venom' is none of books, poison");
}

struct Look {
  std::string fault;
  int num_looks = 0;
};

BookCheck check_of(const Checks& checks, Counter& faults, Look& look) {
  return BookCheck(checks, faults, [&look] {
    ++look.num_looks;
    return look.fault;
  });
}

TEST(BookCheck, LooksOncePerIdleMoment) {
  Counter faults;
  Look look;
  BookCheck check = check_of({.books = true}, faults, look);
  check.after_round();
  check.after_round();
  EXPECT_EQ(look.num_looks, 2);
  check.when_idle();
  check.when_idle();  // nothing has run since
  EXPECT_EQ(look.num_looks, 3);
  check.after_round();
  check.when_idle();
  EXPECT_EQ(look.num_looks, 5);
  EXPECT_EQ(faults.value(), 0);
}

#ifdef NDEBUG
TEST(BookCheck, AFaultIsCountedAndTheServerGoesOn) {
  Counter faults;
  Look look;
  BookCheck check = check_of({}, faults, look);
  check.after_round();
  EXPECT_EQ(look.num_looks, 0) << "rounds are looked at only when that was asked for";
  look.fault = "block 3 is leaked";
  check.when_idle();
  EXPECT_EQ(faults.value(), 1);
  check.after_round();
  check.when_idle();
  EXPECT_EQ(faults.value(), 2);
}
#endif

TEST(BookCheckDeathTest, AFaultEndsTheProcessWhereThatWasAskedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  set_log_level(LogLevel::kError);
  Counter faults;
  Look look;
  look.fault = "block 3 is leaked";
  BookCheck check = check_of({.books = true}, faults, look);
  EXPECT_DEATH(check.after_round(), "the KV accounting is wrong: block 3 is leaked");
}

// A rank whose plans are written by hand, so that they can be wrong.
class OneRank {
 public:
  OneRank()
      : loaded_(load_target(embedded_config(1, 0), {1, false}, 0, 1, make_solo_group())),
        target_(*loaded_.model, *loaded_.group) {}

  // One more row of sequence 1, or its prompt of 20 tokens in blocks 4 and 5.
  SequenceDecision step(std::vector<int32_t> freed = {}) {
    RoundPlan plan;
    plan.freed = std::move(freed);
    SequencePlan rows;
    rows.sequence_id = 1;
    if (num_tokens_ == 0) {
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 20; ++i) tokens.push_back(300 + 7 * i);
      plan.starts.push_back({1, greedy(20), tokens});
      rows.num_committed_rows = 20;
      rows.new_blocks = {4, 5};
      num_tokens_ = 20;
    } else {
      rows.round = static_cast<uint32_t>(num_tokens_ - 20);
      rows.first_position = num_tokens_ - 1;
    }
    plan.sequences.push_back(rows);
    ++num_tokens_;
    return target_.execute(plan).sequences.at(0);
  }

  bool is_poisoned(int32_t block) const {
    int64_t num_nan = 0;
    int64_t num_all = 0;
    for (const ops::KvPages& pages : loaded_.model->kv_pages()) {
      const int64_t size = pages.n_kv_heads * pages.block_size * pages.head_dim;
      for (const ops::KvVectors& half : {pages.keys, pages.values}) {
        const float* const memory = reinterpret_cast<const float*>(half.data);
        for (int64_t i = block * size; i < (block + 1) * size; ++i) {
          num_nan += std::isnan(memory[i]) ? 1 : 0;
          ++num_all;
        }
      }
    }
    EXPECT_TRUE(num_nan == 0 || num_nan == num_all) << "block " << block;
    return num_nan > 0;
  }

 private:
  LoadedModel loaded_;
  TargetRank target_;
  int32_t num_tokens_ = 0;
};

TEST(Poison, StaleBlocksAreNoticedAndOthersAreLeftAlone) {
  OneRank right;
  OneRank wrong;
  const std::vector<int32_t> others = {0, 3, 6};
  for (int32_t i = 0; i < 6; ++i) {
    const SequenceDecision decision = right.step(others);
    EXPECT_FALSE(decision.failed);
    EXPECT_EQ(wrong.step().next_token, decision.next_token);
  }
  for (int32_t block : others) EXPECT_TRUE(right.is_poisoned(block));
  for (int32_t block : {1, 2, 4, 5, 7}) EXPECT_FALSE(right.is_poisoned(block));
  // Somebody thinks block 4 is free, and the table still has it.
  EXPECT_TRUE(wrong.step({4}).failed);
}

// The first number of a block's first key.
float key_of(const LoadedModel& loaded, int32_t block) {
  const ops::KvPages& pages = loaded.model->kv_pages()[0];
  return reinterpret_cast<const float*>(
      pages.keys.data)[pages.vector_at(block, 0, 0) * pages.head_dim];
}

// The draft reads what it has computed, whatever is freed beside it; and it looks at what it reads.
TEST(PoisonDeathTest, TheDraftStopsWhereItReadsAFreedBlock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  set_log_level(LogLevel::kError);
  LoadedModel loaded = load_draft(embedded_config(1, 4), {1, true}, 1);
  DraftWorker worker(*loaded.model,
                     {.target_vocab_size = 3072, .checks = {.books = true, .poison = true}});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(300 + 7 * i);
  DraftRequest request;
  request.opens = {{1, greedy(20), tokens}, {2, greedy(20), tokens}};
  request.commits = {{1, 1, 20, {}, 4}, {2, 1, 20, {}, 4}};
  worker.take(request);
  while (worker.has_work()) worker.step();
  DraftRequest next;
  next.closes = {2};
  next.commits = {{1, 2, 20, {400}, 4}};
  const std::vector<int32_t> freed = worker.sequences().all().at(2).main_chain.blocks;
  const std::vector<int32_t> held = worker.sequences().all().at(1).main_chain.blocks;
  worker.take(next);
  worker.step();
  EXPECT_TRUE(std::isnan(key_of(loaded, freed[0])));
  EXPECT_FALSE(std::isnan(key_of(loaded, held[0])));
  loaded.model->poison_blocks(std::span(held).first(1));
  EXPECT_DEATH(worker.step(), "the draft has read KV of a block that nobody holds");
}

TEST(Poison, AWholeJobRunsWithIt) {
  const std::vector<Ask> asks = {{"Once upon a time", greedy(30)}, {"The king", greedy(30)}};
  const std::vector<Outcome> plain = run_asks(embedded_config(2, 3), asks);
  const SetVariable armed(Checks::kVariable, "books,poison");
  const std::vector<Outcome> checked = run_asks(embedded_config(2, 3), asks);
  for (size_t i = 0; i < asks.size(); ++i) {
    EXPECT_EQ(checked[i].error, "");
    EXPECT_EQ(checked[i].tokens, plain[i].tokens);
  }
}

TEST(Checks, AWrongWordIsRefusedAtStart) {
  const SetVariable armed(Checks::kVariable, "nonsense");
  EXPECT_TRUE(fails_with([] { run_engine(embedded_config(1, 0), [](const FrontEndContext&) {}); },
                         "'nonsense' is none of books, poison"));
}

}  // namespace
}  // namespace outrider::test
