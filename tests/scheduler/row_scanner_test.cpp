// The door to the logits: sampling reads rows through a scanner alone, and asks it seldom.
#include "scheduler/rows/row_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "scheduler/drafting/propose.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/verification/verify.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

// Addresses of these rows lead nowhere but through the scanner, as those of a device do.
constexpr uintptr_t kElsewhere = uintptr_t{1} << 62;

LogitsAddress elsewhere(const float* here) {
  return reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(here) + kElsewhere);
}
LogitsAddress back(LogitsAddress there) {
  return reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(there.behind()) - kElsewhere);
}

class FarScanner final : public RowScanner {
 public:
  FarScanner() = default;
  explicit FarScanner(HostRowScanner& host) : host_(host) {}
  void hold(std::span<const RowView> rows) override {
    rows_.assign(rows.begin(), rows.end());
    for (RowView& row : rows_) row.logits = back(row.logits);
    host_.hold(rows_);
  }
  void answer(RowQuestions& questions) override {
    num_trips += questions.empty() ? 0 : 1;
    for (ReadQuestion& read : questions.reads) read.logits = back(read.logits);
    host_.answer(questions);
  }
  int num_trips = 0;

 private:
  HostRowScanner own_;
  HostRowScanner& host_ = own_;
  std::vector<RowView> rows_;
};

std::vector<SequenceDecision> verify_far(const TestRound& round, FarScanner& scanner) {
  std::vector<std::vector<float>> logits;
  std::vector<VerifyInput> inputs;
  for (const TestSequence& sequence : round.sequences) {
    std::vector<float>& rows = logits.emplace_back();
    for (const auto& row : sequence.rows) rows.insert(rows.end(), row.begin(), row.end());
    inputs.push_back({.sequence_id = inputs.size() + 1,
                      .params = &sequence.params,
                      .tokens = sequence.tokens,
                      .num_prompt_tokens = sequence.num_prompt_tokens,
                      .round = sequence.round,
                      .draft = sequence.draft,
                      .logits = elsewhere(rows.data())});
  }
  SoloExchange solo;
  return verify(inputs, {0, round.vocab_size, round.vocab_size}, scanner, solo);
}

TEST(RowScanner, NothingButTheScannerLooksAtTheLogits) {
  std::mt19937_64 generator(31);
  int num_accepted = 0;
  for (int trial = 0; trial < 60; ++trial) {
    TestRound round;
    round.vocab_size = static_cast<int32_t>(40 + generator() % 900);
    for (int n = 0; n < 6; ++n) {
      round.sequences.push_back(random_sequence(round.vocab_size, generator));
    }
    FarScanner scanner;
    const auto far = verify_far(round, scanner);
    const auto near = verify_alone(round);
    ASSERT_EQ(far.size(), near.size());
    for (size_t n = 0; n < far.size(); ++n) {
      ASSERT_TRUE(same(far[n], near[n])) << trial << " " << n;
      num_accepted += far[n].num_accepted;
    }
  }
  EXPECT_GT(num_accepted, 50);
}

int trips(VerifyMode mode, int num_sequences, void (*change)(SamplingParams&)) {
  std::mt19937_64 generator(32);
  TestRound round{.vocab_size = 300, .sequences = {}};
  for (int n = 0; n < num_sequences; ++n) {
    TestSequence sequence;
    sequence.tokens = {1, 2, 3};
    sequence.params.verify_mode = mode;
    sequence.params.noise_seed = generator();
    change(sequence.params);
    for (int i = 0; i < 4; ++i) {
      sequence.rows.push_back(random_logits(300, false, generator));
      if (i < 3) sequence.draft.push_back(random_draft(sequence.rows.back(), generator));
    }
    round.sequences.push_back(sequence);
  }
  FarScanner scanner;
  verify_far(round, scanner);
  return scanner.num_trips;
}

TEST(RowScanner, TripsPerRoundAreFewWhateverTheNumberOfSequences) {
  const auto nothing = [](SamplingParams&) {};
  const auto penalty = [](SamplingParams& params) { params.presence_penalty = 0.5f; };
  const auto top_k = [](SamplingParams& params) { params.top_k = 20; };
  const auto logprobs = [](SamplingParams& params) { params.num_logprobs = 2; };
  for (const int n : {1, 9}) {
    EXPECT_EQ(trips(VerifyMode::kCoupled, n, nothing), 1);
    EXPECT_EQ(trips(VerifyMode::kBlock, n, nothing), 3);
    EXPECT_EQ(trips(VerifyMode::kStandard, n, nothing), 3);
    EXPECT_EQ(trips(VerifyMode::kCoupled, n, penalty), 2);
    EXPECT_EQ(trips(VerifyMode::kBlock, n, penalty), 4);
    EXPECT_EQ(trips(VerifyMode::kBlock, n, top_k), 4);
    EXPECT_EQ(trips(VerifyMode::kCoupled, n, logprobs), 4);
  }
}

// All rows of a draft's step at once propose what each would alone.
TEST(RowScanner, ADraftsRowsTogetherProposeWhatEachProposesAlone) {
  std::mt19937_64 generator(33);
  int num_guesses = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const auto vocab_size = static_cast<int32_t>(30 + generator() % 700);
    std::vector<TestSequence> sequences;
    for (int n = 0; n < 8; ++n) sequences.push_back(random_sequence(vocab_size, generator));
    std::vector<DraftInput> inputs;
    for (TestSequence& sequence : sequences) {
      if (generator() % 10 == 0) sequence.rows[0][5] = std::numeric_limits<float>::quiet_NaN();
      inputs.push_back({.params = &sequence.params,
                        .tokens = sequence.tokens,
                        .num_prompt_tokens = sequence.num_prompt_tokens,
                        .round = sequence.round,
                        .logits = elsewhere(sequence.rows[0].data()),
                        .vocab_size = vocab_size,
                        .target_vocab_size = vocab_size,
                        .num_guesses = static_cast<int32_t>(generator() % 9)});
    }
    FarScanner far;
    const std::vector<RankedDraftToken> together = propose_ranked(inputs, far);
    ASSERT_EQ(together.size(), inputs.size());
    for (size_t n = 0; n < inputs.size(); ++n) {
      DraftInput input = inputs[n];
      input.logits = sequences[n].rows[0].data();
      HostRowScanner host;
      const RankedDraftToken alone = propose_ranked(std::span(&input, 1), host)[0];
      ASSERT_EQ(together[n].drawn, alone.drawn);
      ASSERT_EQ(together[n].others, alone.others);
      num_guesses += static_cast<int>(alone.others.tokens().size());
    }
  }
  EXPECT_GT(num_guesses, 300);
}

// As a rank's threads are handed the rows, with a thread of its own for every range.
class ThreadedScanner final : public HostRowScanner {
 public:
  explicit ThreadedScanner(int64_t num_threads) : num_threads_(num_threads) {}
  int num_spread = 0;  // answers that more than one thread worked on

 private:
  void for_range(int64_t count, const RangeBody& body) override {
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < num_threads_; ++t) {
      const int64_t begin = count * t / num_threads_;
      const int64_t end = count * (t + 1) / num_threads_;
      if (begin < end) threads.emplace_back([&body, begin, end] { body(begin, end); });
    }
    num_spread += threads.size() > 1 ? 1 : 0;
    for (std::thread& thread : threads) thread.join();
  }
  const int64_t num_threads_;
};

// What searches and sums might stumble over.
void spoil(std::vector<float>& row, std::mt19937_64& generator) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto somewhere = [&] { return generator() % row.size(); };
  switch (generator() % 10) {
    case 0:
      std::fill(row.begin(), row.end(), 1.5f);
      break;
    case 1:
      for (float& value : row) value = generator() % 2 == 0 ? 0.0f : -0.0f;
      break;
    case 2:
      for (float& value : row) value = generator() % 3 == 0 ? -3e29f : value;
      break;
    case 3:
      for (float& value : row) value += 123456.0f;  // floats are coarse there
      break;
    case 4:
      std::sort(row.begin(), row.end());
      break;
    case 5:
      row[somewhere()] = generator() % 2 == 0 ? kInfinity : -kInfinity;
      break;
    case 6:
      row[somewhere()] = std::numeric_limits<float>::quiet_NaN();
      break;
    default:
      break;
  }
}

TestRound spoiled_round(std::mt19937_64& generator) {
  constexpr int32_t kSizes[] = {1, 2, 63, 64, 65, 511, 513, 1000, 2999, 4097};
  TestRound round;
  round.vocab_size = kSizes[generator() % std::size(kSizes)];
  for (int n = 0; n < 12; ++n) {
    TestSequence sequence = random_sequence(round.vocab_size, generator);
    if (generator() % 3 == 0) {
      for (std::vector<float>& row : sequence.rows) spoil(row, generator);
    }
    round.sequences.push_back(std::move(sequence));
  }
  return round;
}

TEST(RowScanner, AnyNumberOfThreadsGivesTheSameDecisions) {
  std::mt19937_64 generator(34);
  int num_spread = 0;
  int num_failed = 0;
  for (int trial = 0; trial < 120; ++trial) {
    const TestRound round = spoiled_round(generator);
    const std::vector<SequenceDecision> alone = verify_alone(round);
    for (const int num_threads : {1, 2, 3}) {
      ThreadedScanner threads(num_threads);
      FarScanner scanner(threads);
      const std::vector<SequenceDecision> together = verify_far(round, scanner);
      for (size_t n = 0; n < alone.size(); ++n) {
        ASSERT_TRUE(same(together[n], alone[n])) << trial << " " << n << " " << num_threads;
        num_failed += alone[n].failed ? 1 : 0;
      }
      num_spread += threads.num_spread;
    }
  }
  EXPECT_GT(num_spread, 100);
  EXPECT_GT(num_failed, 30);
}

TEST(RowScanner, AnyNumberOfThreadsProposesTheSame) {
  std::mt19937_64 generator(35);
  int num_spread = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const TestRound round = spoiled_round(generator);
    std::vector<DraftInput> inputs;
    for (const TestSequence& sequence : round.sequences) {
      inputs.push_back({.params = &sequence.params,
                        .tokens = sequence.tokens,
                        .num_prompt_tokens = sequence.num_prompt_tokens,
                        .round = sequence.round,
                        .logits = sequence.rows[0].data(),
                        .vocab_size = round.vocab_size,
                        .target_vocab_size = round.vocab_size,
                        .num_guesses = 4});
    }
    HostRowScanner one;
    const std::vector<RankedDraftToken> alone = propose_ranked(inputs, one);
    for (const int num_threads : {2, 3}) {
      ThreadedScanner threads(num_threads);
      const std::vector<RankedDraftToken> together = propose_ranked(inputs, threads);
      for (size_t n = 0; n < inputs.size(); ++n) {
        ASSERT_EQ(together[n].drawn, alone[n].drawn) << trial << " " << n << " " << num_threads;
        ASSERT_EQ(together[n].others, alone[n].others) << trial << " " << n << " " << num_threads;
      }
      num_spread += threads.num_spread;
    }
  }
  EXPECT_GT(num_spread, 15);
}

// Waking others takes longer than so little work.
TEST(RowScanner, FewLogitsStayOnOneThread) {
  std::mt19937_64 generator(36);
  TestRound round{.vocab_size = 300, .sequences = {random_sequence(300, generator)}};
  ThreadedScanner threads(2);
  FarScanner scanner(threads);
  verify_far(round, scanner);
  EXPECT_EQ(threads.num_spread, 0);
}

}  // namespace
}  // namespace outrider
