// Promise P1 of whole jobs that draft asynchronously, in virtual time: drafts, bonus draft tokens
// and prepared blocks come when their step costs say, the same on every run, and the planner
// chooses lengths and waits by what it has seen. The simulated target's law is known in closed
// form: each token is one of four words of its row, whatever came before. So the words' numbers
// must be independent draws from that law, alone and at every distance within reach of a block;
// what speculation would spoil first is just that, since a token then depends on others of its
// block.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/simulated/law.h"
#include "scheduler/exactness/chi_square.h"
#include "tests/ranks/engine_harness.h"
#include "tests/ranks/rehearsal.h"

namespace outrider::test {
namespace {

constexpr int32_t kNumTokens = 48;
// What a right program exceeds with this probability in each of some 70 comparisons: the draws are
// others whenever the planner or a step's costs change.
constexpr double kUpperTail = 1e-9;

// The numbers, 0 to 3, of the words of each answer.
using Numbers = std::vector<std::vector<int>>;

std::array<double, 4> law_of_numbers() {
  const SimulatedLogits logits = target_logits(SimulatedLaw{}.row(300, 5));
  std::array<double, 4> law{};
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) sum += law[i] = std::exp(static_cast<double>(logits.kept[i]));
  for (double& prob : law) prob /= sum;
  return law;
}

std::vector<TimedRequest> requests_at_random(int num_requests, VerifyMode mode, bool same_noise) {
  std::vector<TimedRequest> requests;
  for (int i = 0; i < num_requests; ++i) {
    TimedRequest request;
    request.prompt = {270 + i % 50, 400};
    request.params = sampled(1.0f, kNumTokens);
    request.params.verify_mode = mode;
    if (same_noise) request.params.noise_seed = 77;
    // Lulls and crowds in turn, so that lengths and waits change all the time.
    request.at_s = 0.05 * i + (i / 40) * 1.5;
    requests.push_back(std::move(request));
  }
  return requests;
}

Numbers numbers_of(const std::vector<TimedRequest>& requests,
                   const Rehearsal& run,
                   double repeat = 0) {
  Numbers numbers;
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> tokens = requests[i].prompt;
    EXPECT_EQ(run.answers[i].error, "");
    EXPECT_EQ(run.answers[i].tokens.size(), static_cast<size_t>(kNumTokens));
    std::vector<int>& own = numbers.emplace_back();
    for (const int32_t token : run.answers[i].tokens) {
      const SimulatedRow row = SimulatedLaw{.repeat = repeat}.row(
          tokens.back(), static_cast<int32_t>(tokens.size()) - 1);
      const auto found = std::find(row.kept.begin(), row.kept.end(), token);
      if (found == row.kept.end()) {
        ADD_FAILURE() << "answer " << i << " has a word that the target never says there";
        return numbers;
      }
      own.push_back(static_cast<int>(found - row.kept.begin()));
      tokens.push_back(token);
    }
  }
  return numbers;
}

// Pairs at this distance, in disjoint pieces of the texts.
ChiSquare pairs_at(const Numbers& numbers, size_t distance) {
  const std::array<double, 4> law = law_of_numbers();
  std::vector<double> probs;
  for (const double first : law) {
    for (const double second : law) probs.push_back(first * second);
  }
  std::vector<uint64_t> counts(16);
  for (const std::vector<int>& own : numbers) {
    for (size_t begin = 0; begin + 2 * distance <= own.size(); begin += 2 * distance) {
      for (size_t i = begin; i < begin + distance; ++i) {
        ++counts[static_cast<size_t>(4 * own[i] + own[i + distance])];
      }
    }
  }
  return chi_square(counts, probs);
}

ChiSquare triples(const Numbers& numbers) {
  const std::array<double, 4> law = law_of_numbers();
  std::vector<double> probs;
  for (size_t i = 0; i < 64; ++i) probs.push_back(law[i / 16] * law[i / 4 % 4] * law[i % 4]);
  std::vector<uint64_t> counts(64);
  for (const std::vector<int>& own : numbers) {
    for (size_t i = 0; i + 3 <= own.size(); i += 3) {
      ++counts[static_cast<size_t>(16 * own[i] + 4 * own[i + 1] + own[i + 2])];
    }
  }
  return chi_square(counts, probs);
}

// Where in its round a token was must say nothing of it either.
struct Case {
  const char* name;
  VerifyMode mode = VerifyMode::kBlock;
  const char* async_drafting = "cache";
  int32_t draft_len = 0;  // 0 = auto
  const char* draft = "step_ms=2,alpha=0.7";
  double repeat = 0;  // of the language: then n-gram drafts are judged, too
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

RunConfig config_of(const Case& one) {
  RunConfig config = embedded_config(1, 0);
  const std::string language = fmt::format(",repeat={}", one.repeat);
  config.model = "sim:step_ms=20,row_ms=0.05" + language;
  config.max_model_len = 256;
  config.max_num_seqs = 32;
  config.enable_prefix_caching = false;
  config.speculative.model = std::string("sim:") + one.draft + language;
  config.speculative.prompt_lookup_min = 1;
  config.speculative.num_speculative_tokens = one.draft_len;
  config.speculative.async_drafting = one.async_drafting;
  return config;
}

class SimulatedJobLaw : public ::testing::TestWithParam<Case> {};

TEST_P(SimulatedJobLaw, WordsAreIndependentDrawsFromTheTargetsLaw) {
  const Case& one = GetParam();
  const std::vector<TimedRequest> requests = requests_at_random(400, one.mode, false);
  const Rehearsal run = rehearse(config_of(one), requests);
  const Numbers numbers = numbers_of(requests, run, one.repeat);
  ASSERT_EQ(numbers.size(), requests.size());
  const ChiSquare three = triples(numbers);
  EXPECT_EQ(three.degrees, 63);
  EXPECT_LE(three.statistic, chi_square_quantile(three.degrees, kUpperTail));
  for (const size_t distance : {1, 2, 3, 4, 5, 6, 7, 8, kRepeatPeriod}) {
    const ChiSquare pairs = pairs_at(numbers, distance);
    EXPECT_LE(pairs.statistic, chi_square_quantile(pairs.degrees, kUpperTail))
        << "distance " << distance;
  }
  SpeculationStats total;
  int num_backups = 0;  // rounds
  for (const TimedAnswer& answer : run.answers) {
    total.num_draft_tokens += answer.stats.num_draft_tokens;
    total.num_accepted_tokens += answer.stats.num_accepted_tokens;
    num_backups += answer.stats.num_spec_rounds - answer.stats.num_ready_rounds -
                   answer.stats.num_waited_rounds;
    total.num_bonus_drafts += answer.stats.num_bonus_drafts;
    total.num_accepted_bonus_drafts += answer.stats.num_accepted_bonus_drafts;
  }
  if (one.repeat > 0) {
    EXPECT_GT(num_backups, 50);
  }
  fmt::print(
      "{}: chi-square of triples {:.1f} (limit {:.1f}); {} of {} draft tokens, {} of {} "
      "bonus draft tokens were accepted, {} n-gram drafts, in {:.1f} s of virtual time\n",
      one.name,
      three.statistic,
      chi_square_quantile(three.degrees, kUpperTail),
      total.num_accepted_tokens,
      total.num_draft_tokens,
      total.num_accepted_bonus_drafts,
      total.num_bonus_drafts,
      num_backups,
      run.seconds);
  EXPECT_GT(total.num_accepted_tokens, 2000);
  EXPECT_LT(total.num_accepted_tokens, total.num_draft_tokens);
  if (std::string(one.async_drafting) != "off" && one.mode != VerifyMode::kCoupled) {
    EXPECT_GT(total.num_accepted_bonus_drafts, 500);
    EXPECT_LT(total.num_accepted_bonus_drafts, total.num_bonus_drafts);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    SimulatedJobLaw,
    ::testing::Values(
        Case{.name = "block_off", .async_drafting = "off"},
        Case{.name = "block_chain", .async_drafting = "chain"},
        Case{.name = "block_cache"},
        Case{.name = "standard_cache", .mode = VerifyMode::kStandard},
        Case{.name = "standard_cache_of_3", .mode = VerifyMode::kStandard, .draft_len = 3},
        Case{.name = "block_cache_of_1", .draft_len = 1},
        Case{.name = "block_cache_slow_draft", .draft_len = 2, .draft = "step_ms=12,alpha=0.7"},
        Case{.name = "block_cache_and_ngram", .draft = "step_ms=12,alpha=0.7", .repeat = 0.9},
        Case{.name = "standard_cache_and_ngram",
             .mode = VerifyMode::kStandard,
             .draft = "step_ms=12,alpha=0.7",
             .repeat = 0.9},
        Case{.name = "block_off_and_ngram",
             .async_drafting = "off",
             .draft = "step_ms=6,alpha=0.7",
             .repeat = 0.9},
        Case{.name = "coupled_cache", .mode = VerifyMode::kCoupled}),
    [](const auto& one) { return std::string(one.param.name); });

// The control: requests that share their noise are no independent draws.
TEST(SimulatedJobLawControl, SharedNoiseIsNoticed) {
  const std::vector<TimedRequest> requests = requests_at_random(200, VerifyMode::kBlock, true);
  const Numbers numbers = numbers_of(requests, rehearse(config_of({.name = "control"}), requests));
  const ChiSquare three = triples(numbers);
  EXPECT_GT(three.statistic, 3 * chi_square_quantile(three.degrees, kUpperTail));
}

}  // namespace
}  // namespace outrider::test
