// typical_p against transformers' own warper, and that a filter settled from gathered values and by
// radix selection is the same filter, down to values closer together than the unit of distance.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "scheduler/drafting/propose.h"
#include "scheduler/exactness/toy_model.h"
#include "scheduler/round.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/rows/keep_order.h"
#include "scheduler/rows/row_sums.h"
#include "scheduler/sampling/truncation.h"
#include "scheduler/verification/rules.h"
#include "tests/scheduler/verify_harness.h"

namespace outrider {
namespace {

struct KeptInterval {
  float cut = kMasked;
  float ceiling = kNoCeiling;
  int num_collectives = 0;
  bool contains(float scaled) const { return scaled >= cut && scaled <= ceiling; }
};

// The same on every rank, or the test fails.
KeptInterval kept_interval(const std::vector<float>& row,
                           const SamplingParams& params,
                           const std::vector<int32_t>& cuts) {
  const auto vocab_size = static_cast<int32_t>(row.size());
  const float inverse_temperature = 1.0f / params.temperature;
  const float max = *std::max_element(row.begin(), row.end()) * inverse_temperature;
  const auto intervals = run_on_shards<KeptInterval>(
      static_cast<int>(cuts.size()), [&](int rank, ThreadExchangeHub::Member& exchange) {
        const int32_t begin = rank == 0 ? 0 : cuts[static_cast<size_t>(rank) - 1];
        const int32_t end = cuts[static_cast<size_t>(rank)];
        RowView view;
        view.logits = row.data() + begin;
        view.size = end - begin;
        view.first_token = begin;
        view.inverse_temperature = inverse_temperature;
        HostRowScanner scanner;
        scanner.hold(std::span(&view, 1));
        TruncationRow truncation;
        truncation.params = &params;
        truncation.max = max;
        truncate(std::span(&truncation, 1), vocab_size, scanner, exchange);
        return KeptInterval{truncation.cut, truncation.ceiling, exchange.num_calls};
      });
  for (const KeptInterval& interval : intervals) {
    EXPECT_EQ(interval.cut, intervals[0].cut);
    EXPECT_EQ(interval.ceiling, intervals[0].ceiling);
  }
  return intervals[0];
}

TEST(Typical, KeepsWhatTransformersKeeps) {
  std::ifstream file(std::string(OUTRIDER_SOURCE_DIR) + "/tests/golden/sampling/typical.json");
  ASSERT_TRUE(file);
  const auto golden = nlohmann::json::parse(file);
  std::mt19937_64 generator(81);
  int num_cases = 0;
  int num_without_best = 0;
  for (const auto& one : golden["cases"]) {
    const auto& setting = one["setting"];
    SamplingParams params;
    params.typical_p = setting["typical_p"];
    params.temperature = setting.value("temperature", 1.0f);
    params.top_k = setting.value("top_k", 0);
    params.top_p = setting.value("top_p", 1.0f);
    params.min_p = setting.value("min_p", 0.0f);
    const std::vector<float> row = one["logits"];
    const std::vector<int32_t> expected = one["kept"];
    const auto vocab_size = static_cast<int32_t>(row.size());
    for (int num_shards = 1; num_shards <= 5; ++num_shards) {
      const KeptInterval kept =
          kept_interval(row, params, random_cuts(vocab_size, num_shards, generator));
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < vocab_size; ++id) {
        const float scaled = row[static_cast<size_t>(id)] * (1.0f / params.temperature);
        if (kept.contains(scaled)) ids.push_back(id);
      }
      ASSERT_EQ(ids, expected) << "case " << num_cases << " on " << num_shards << " shards";
    }
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    num_without_best += std::binary_search(expected.begin(), expected.end(), best) ? 0 : 1;
    ++num_cases;
  }
  EXPECT_GE(num_cases, 40);
  EXPECT_GE(num_without_best, 5);  // rows where the interval has a ceiling
}

// One token well above a crowd whose neighbours are 2^-30 apart, 16 to a unit of distance. Few
// shards tell too few of the crowd, many tell enough: the way to the answer depends on the sharding
// and the answer must not.
TEST(Truncation, GatherAndRadixSelectionDrawTheSameLine) {
  std::mt19937_64 generator(82);
  std::vector<float> row(900);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::ldexp(static_cast<float>(i), -30);
  std::shuffle(row.begin(), row.end(), generator);
  row[400] = 3.0f;
  int num_gathered = 0;
  int num_selected = 0;
  int num_otherwise = 0;  // gathered on this sharding, selected alone
  for (int step = 1; step < 60; step += 2) {
    const float share = static_cast<float>(step) / 120.0f;
    for (int filter = 0; filter < 3; ++filter) {
      SamplingParams params;
      if (filter == 0) params.top_p = share;
      if (filter == 1) params.typical_p = share;
      if (filter == 2) params.top_p = 0.6f, params.typical_p = share;
      const KeptInterval alone = kept_interval(row, params, {900});
      for (int num_shards = 2; num_shards <= 5; ++num_shards) {
        const KeptInterval kept =
            kept_interval(row, params, random_cuts(900, num_shards, generator));
        ASSERT_EQ(kept.cut, alone.cut) << share << " " << filter << " " << num_shards;
        ASSERT_EQ(kept.ceiling, alone.ceiling) << share << " " << filter << " " << num_shards;
        EXPECT_LE(kept.num_collectives, alone.num_collectives);
        num_otherwise += kept.num_collectives < alone.num_collectives ? 1 : 0;
        (kept.num_collectives == 1 ? num_gathered : num_selected) += 1;
      }
    }
  }
  EXPECT_GT(num_gathered, 15);
  EXPECT_GT(num_selected, 15);
  EXPECT_GT(num_otherwise, 5);
}

// Of the values at the distance of `value` and nearer.
void expect_exact_interval(const KeepOrder& order, float value) {
  SCOPED_TRACE(fmt::format("max {}, center {}, value {}", order.max, order.center, value));
  const uint32_t farthest = order.distance(value);
  const float lowest = order.lowest(farthest);
  const float highest = order.highest(farthest);
  ASSERT_TRUE(lowest <= value && value <= std::min(highest, order.max));
  ASSERT_LE(order.distance(lowest), farthest);
  ASSERT_LE(order.distance(std::min(highest, order.max)), farthest);
  ASSERT_GT(order.distance(std::nextafter(lowest, -1e35f)), farthest);
  if (highest < order.max) {
    ASSERT_GT(order.distance(std::nextafter(highest, 1e35f)), farthest);
  }
}

TEST(KeepOrder, IntervalsHoldExactlyTheValuesUpToADistance) {
  std::mt19937_64 generator(83);
  std::uniform_real_distribution<float> any(-40.0f, 40.0f);
  for (int trial = 0; trial < 3000; ++trial) {
    KeepOrder order{any(generator), 0.0};
    if (trial % 3 != 0) order.center = std::fabs(static_cast<double>(any(generator))) / 8;
    if (trial % 7 == 0) order.max = static_cast<float>(order.center);  // the reference is at 0
    expect_exact_interval(order, std::min(order.max, order.max - std::fabs(any(generator)) / 4));
  }
}

// Where the nearest floats to a bound are much denser, or sparser, than its distance says.
TEST(KeepOrder, IntervalsAreExactNextToZeroAndFarFromIt) {
  const float values[] = {0.0f, 1e-9f, -1e-9f, 3e-39f, -1e-30f, 1.5e-8f, -1.4e-8f, 1e30f, -1e30f};
  for (const float max : {0.0f, 1e-9f, 1e-30f, 0.5f, 3.0f, 1e30f, -1e30f, -1e-9f}) {
    for (const double center : {0.0, 1e-9, 0.5, 3.0}) {
      const KeepOrder order{max, center};
      for (const float value : values) {
        if (value <= max && order.distance(value) < kFarthest) expect_exact_interval(order, value);
      }
    }
  }
  // No such distribution is; yet the search ends.
  for (const double center : {std::nan(""), 1e30, -1e30, HUGE_VAL}) {
    const KeepOrder order{2.0f, center};
    EXPECT_FALSE(order.distance(order.lowest(5)) <= 5);
    EXPECT_FALSE(order.distance(order.highest(5)) <= 5);
  }
}

TEST(KeepOrder, TheFarthestDistanceKeepsAll) {
  const KeepOrder order{2.0f, 0.5};
  EXPECT_EQ(order.distance(kMasked), kFarthest);
  EXPECT_EQ(order.lowest(kFarthest), kMasked);
  EXPECT_EQ(order.highest(kFarthest), kNoCeiling);
}

TEST(Typical, MomentOverMassIsTheEntropyLessTheBestSurprisal) {
  std::mt19937_64 generator(84);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<float> row = random_logits(3000, trial % 2 == 0, generator);
    if (trial % 3 == 0) row[5] = kMasked;
    RowView view;
    view.logits = row.data();
    view.size = 3000;
    view.inverse_temperature = trial % 2 == 0 ? 1.0f : 1.0f / 0.3f;
    const float max = *std::max_element(row.begin(), row.end()) * view.inverse_temperature;
    std::vector<long double> probs;
    long double sum = 0;
    for (float logit : row) {
      probs.push_back(std::exp(static_cast<long double>(logit * view.inverse_temperature) - max));
      sum += probs.back();
    }
    long double entropy = 0;
    for (long double prob : probs) entropy -= prob > 0 ? prob / sum * std::log(prob / sum) : 0;
    RowPeaks peaks;
    find_peaks(view, peaks);
    const double mean = static_cast<double>(row_moment(view, peaks, max, kMasked)) /
                        static_cast<double>(row_mass(view, peaks, max, kMasked));
    EXPECT_NEAR(mean, static_cast<double>(entropy - std::log(sum)), 1e-9);
  }
}

TEST(Typical, TheDraftProposesByTheSameFilterAndMask) {
  std::mt19937_64 generator(85);
  int num_without_best = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const std::vector<float> logits = random_logits(200, false, generator);
    const std::vector<int32_t> tokens = {1};
    SamplingParams params;
    params.verify_mode = VerifyMode::kBlock;
    params.noise_seed = generator();
    params.temperature = trial % 2 == 0 ? 1.0f : 3.0f;
    params.typical_p = trial % 4 < 2 ? 0.15f : 1.0f;
    for (int32_t id = 0; id < 200; ++id) {
      const bool wanted = trial % 3 == 0 ? id % 40 == 7 : id % 3 != 1;
      if (wanted) params.allowed_token_ids.push_back(id);
    }
    params.bad_words = {{1, 47}, {7}};
    const std::vector<long double> law = exact_law(logits, params, tokens, 1);
    const DraftToken bonus_draft = propose({.params = &params,
                                            .tokens = tokens,
                                            .num_prompt_tokens = 1,
                                            .logits = logits.data(),
                                            .vocab_size = 200,
                                            .target_vocab_size = 200});
    ASSERT_TRUE(valid_draft(bonus_draft, 200));
    ASSERT_GT(law[static_cast<size_t>(bonus_draft.token)], 0);
    long double offered = 0;
    for (const DraftCandidate& candidate : bonus_draft.candidates) {
      ASSERT_GT(law[static_cast<size_t>(candidate.token)], 0);
      offered += law[static_cast<size_t>(candidate.token)];
    }
    for (const DraftCandidate& candidate : bonus_draft.candidates) {
      const long double share = law[static_cast<size_t>(candidate.token)] / offered;
      ASSERT_NEAR(candidate.draft_prob, static_cast<double>(share), 1e-5);
    }
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    num_without_best += law[static_cast<size_t>(best)] > 0 ? 0 : 1;
  }
  EXPECT_GT(num_without_best, 10);
}

}  // namespace
}  // namespace outrider
