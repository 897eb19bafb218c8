// Simulated models: the law of their content, exactly and by counting; the text of a spec and what
// is wrong with one; what a step costs, by the sleep that it asks for.
#include "models/simulated/simulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "tests/base/error_sentence.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

constexpr double kAlphas[] = {0, 0.1, 0.2, 0.29, 0.3, 0.5, 0.6, 0.8, 0.9, 0.99, 1};

struct Distribution {
  std::vector<double> probs;  // kept, then other
  size_t best = 0;
};

Distribution softmax(const SimulatedLogits& logits) {
  Distribution found;
  std::vector<float> all(logits.kept.begin(), logits.kept.end());
  all.insert(all.end(), logits.other.begin(), logits.other.end());
  double sum = 0;
  for (const float logit : all) sum += std::exp(static_cast<double>(logit));
  for (const float logit : all) found.probs.push_back(std::exp(static_cast<double>(logit)) / sum);
  found.best = static_cast<size_t>(std::max_element(all.begin(), all.end()) - all.begin());
  return found;
}

TEST(SimulatedLaw, OverlapIsAlphaInEveryRowAndTheFavouriteIsSharedByTheCoin) {
  const SimulatedLaw law{7, 1};
  for (const double alpha : kAlphas) {
    int num_agreed = 0;
    for (int32_t position = 0; position < 2000; ++position) {
      const SimulatedRow row = law.row(300 + position % 100, position);
      const Distribution target = softmax(target_logits(row));
      const Distribution draft = softmax(draft_logits(row, alpha));
      double overlap = 0;
      for (size_t i = 0; i < target.probs.size(); ++i)
        overlap += std::min(target.probs[i], draft.probs[i]);
      ASSERT_NEAR(overlap, alpha, 1e-6);
      ASSERT_EQ(target.best, 0u);
      ASSERT_EQ(draft.best == 0, row.coin < alpha) << alpha << " " << row.coin;
      num_agreed += draft.best == 0 ? 1 : 0;
    }
    const double bound = 5 * std::sqrt(alpha * (1 - alpha) / 2000);
    EXPECT_LE(std::abs(num_agreed / 2000.0 - alpha), bound + 1e-12) << alpha;
  }
}

TEST(SimulatedLaw, RowsAreOfDistinctWordsOfOneClassAndDifferFromEachOther) {
  const SimulatedLaw law{7, 12};
  std::set<std::vector<int32_t>> rows;
  for (int32_t i = 0; i < 600; ++i) {
    const int32_t token = kFirstSimulatedWord + i;
    const SimulatedRow row = law.row(token, i / 2);
    std::set<int32_t> words(row.kept.begin(), row.kept.end());
    words.insert(row.other.begin(), row.other.end());
    ASSERT_EQ(words.size(), 16u);
    for (const int32_t word : words) {
      ASSERT_GE(word, kFirstSimulatedWord);
      ASSERT_LT(word, kEndSimulatedWords);
      ASSERT_EQ(law.workload_class_of(word), law.workload_class_of(token));
    }
    rows.insert({row.kept.begin(), row.kept.end()});
  }
  EXPECT_EQ(rows.size(), 600u);
  const SimulatedLaw other{8, 12};
  EXPECT_NE(law.row(500, 3).kept, other.row(500, 3).kept);
  EXPECT_NE(law.row(500, 3).kept, law.row(500, 4).kept);
  EXPECT_EQ(law.row(500, 3).kept, law.row(500, 3).kept);
  // The last word of the last workload_class has successors, too.
  const SimulatedLaw most{1, kMaxWorkloadClasses};
  for (int32_t token = 0; token < kEndSimulatedWords; ++token) {
    const SimulatedRow row = most.row(token, 1);
    ASSERT_LT(*std::max_element(row.other.begin(), row.other.end()), kEndSimulatedWords);
  }
}

// A clock on which sleeping takes no time, and which adds up what was asked.
class WrittenClock final : public StepClock {
 public:
  int64_t now_ns() override { return now_; }
  void sleep_until_ns(int64_t time_ns) override {
    EXPECT_GE(time_ns, now_);
    slept_ms_ += static_cast<double>(time_ns - now_) / 1e6;
    now_ = time_ns;
  }
  // Since the last call.
  double take_slept_ms() { return std::exchange(slept_ms_, 0); }

 private:
  double slept_ms_ = 0;
  int64_t now_ = 5'000'000'000;
};

// Two sequences: rows at 1000, 1001, 1002 and at 4000.
Batch four_rows() {
  Batch batch;
  batch.tokens = {300, 301, 302, 303};
  batch.positions = {1000, 1001, 1002, 4000};
  batch.sequence_of_row = {0, 0, 0, 1};
  batch.block_tables.resize(2);
  batch.logit_rows = {2, 3};
  return batch;
}

constexpr ModelOptions kFewRows = {
    .block_size = 16, .num_blocks = 10, .max_rows = 64, .max_logit_rows = 64};

double asked_ms(const std::string& text, const Batch& batch) {
  const SimulatedSpec spec = parse_simulated(text);
  WrittenClock clock;
  SimulatedModel model(
      spec, SimulatedRole::kTarget, shard_model(simulated_config(spec), 0, 1), kFewRows, clock);
  model.forward(batch);
  return clock.take_slept_ms();
}

TEST(SimulatedModel, AsksForWhatItsSpecSays) {
  const Batch batch = four_rows();
  EXPECT_NEAR(asked_ms("sim:step_ms=40", batch), 40, 1e-5);
  EXPECT_NEAR(asked_ms("sim:step_ms=40,row_ms=0.5", batch), 42, 1e-5);
  EXPECT_NEAR(asked_ms("sim:step_ms=0,context_us=10", batch), 0.07003, 1e-5);
  EXPECT_NEAR(asked_ms("sim:step_ms=0,kv_us=10", batch), 0.05002, 1e-5);
  EXPECT_NEAR(asked_ms("sim:step_ms=1,link_us=10,layers=80", batch), 1 + 1.61, 1e-5);
  EXPECT_NEAR(asked_ms("sim:step_ms=1/2/4,workload_classes=3", batch), 4, 1e-5);
  Batch one;  // token 300 is word 30, of workload_class 0
  one.tokens = {300};
  one.positions = {9};
  one.sequence_of_row = {0};
  one.block_tables.resize(1);
  EXPECT_NEAR(asked_ms("sim:step_ms=1/2/4,workload_classes=3", one), 1, 1e-5);
  EXPECT_NEAR(asked_ms("sim:llama-70b-tp8,link_us=0,kv_us=0,context_us=0,row_ms=0", one),
              2 * 70.6e9 / 8 / (3.35e12 * 0.8) * 1e3,
              1e-5);
}

// A device computes: the rank has the whole step to itself, and the step is as long as without.
TEST(SimulatedModel, LeavesItsStepToTheRank) {
  const SimulatedSpec spec = parse_simulated("sim:step_ms=40,row_ms=0.5");
  WrittenClock clock;
  SimulatedModel model(
      spec, SimulatedRole::kTarget, shard_model(simulated_config(spec), 0, 1), kFewRows, clock);
  const Batch batch = four_rows();
  model.begin(batch);
  const auto until = model.advance();
  ASSERT_TRUE(until);
  const auto left = until->time_since_epoch() - std::chrono::nanoseconds(clock.now_ns());
  const double left_ms = std::chrono::duration<double, std::milli>(left).count();
  EXPECT_NEAR(left_ms, 42, 0.1);  // a moment before the end it gets its logits together
  EXPECT_LE(left_ms, 42);
  clock.sleep_until_ns(clock.now_ns() + 30'000'000);
  EXPECT_EQ(model.advance(), until);
  clock.sleep_until_ns(until->time_since_epoch().count());
  EXPECT_FALSE(model.advance());
  model.finish();
  EXPECT_NEAR(clock.take_slept_ms(), 42, 1e-5);
}

TEST(SimulatedModel, JitterStaysWithinItsBoundsVariesAndIsTheSameOnAllRanks) {
  const SimulatedSpec spec = parse_simulated("sim:step_ms=10,jitter=0.05");
  std::vector<std::vector<double>> asked;
  for (int rank = 0; rank < 2; ++rank) {
    WrittenClock clock;
    SimulatedModel model(spec,
                         SimulatedRole::kTarget,
                         shard_model(simulated_config(spec), rank, 2),
                         kFewRows,
                         clock);
    std::vector<double>& asked_of_rank = asked.emplace_back();
    for (int step = 0; step < 200; ++step) {
      model.forward(four_rows());
      asked_of_rank.push_back(clock.take_slept_ms());
    }
  }
  for (size_t step = 0; step < 200; ++step) EXPECT_NEAR(asked[0][step], asked[1][step], 1e-5);
  double sum = 0;
  double squares = 0;
  for (const double ms : asked[0]) {
    ASSERT_GE(ms, 9.5 - 1e-5);
    ASSERT_LE(ms, 10.5 + 1e-5);
    sum += ms;
    squares += ms * ms;
  }
  const double mean = sum / 200;
  EXPECT_NEAR(mean, 10, 0.1);
  EXPECT_GT(std::sqrt(squares / 200 - mean * mean), 0.2);
}

TEST(SimulatedModel, ShardsTogetherAreTheWholeAndARowDoesNotDependOnTheOthers) {
  const SimulatedSpec spec = parse_simulated("sim:step_ms=0");
  WrittenClock clock;
  const ModelConfig config = simulated_config(spec);
  SimulatedModel whole(spec, SimulatedRole::kTarget, shard_model(config, 0, 1), kFewRows, clock);
  const std::span<const float> logits = whole.forward(four_rows());
  ASSERT_EQ(logits.size(), 2u * 3072);
  const std::vector<float> expected(logits.begin(), logits.end());
  EXPECT_EQ(std::count_if(expected.begin(), expected.end(), [](float x) { return x > -1; }), 8);
  std::vector<float> joined(expected.size(), 1);
  for (int rank = 0; rank < 3; ++rank) {
    const ModelShard shard = shard_model(config, rank, 3);
    SimulatedModel part(spec, SimulatedRole::kTarget, shard, kFewRows, clock);
    const std::span<const float> mine = part.forward(four_rows());
    const auto width = static_cast<size_t>(shard.vocab.size());
    for (size_t row = 0; row < 2; ++row) {
      std::copy_n(mine.data() + row * width, width, joined.data() + row * 3072 + shard.vocab.begin);
    }
  }
  EXPECT_EQ(joined, expected);
  // Again, after other rows: nothing of them stays.
  Batch other = four_rows();
  other.positions = {0, 1, 2, 3};
  other.logit_rows = {0, 1, 2, 3};
  whole.forward(other);
  const std::span<const float> again = whole.forward(four_rows());
  EXPECT_EQ(std::vector<float>(again.begin(), again.end()), expected);
}

TEST(SimulatedSpec, ReadsACurveOfRows) {
  const test::TempDir folder;
  const std::string path = folder.path() / "curve.json";
  std::ofstream(path) << R"({"series": [
    {"name": "plain read", "unit": "ms", "median": 9},
    {"name": "step", "x_name": "rows", "x": 8, "unit": "ms", "median": 12},
    {"name": "step", "x_name": "rows", "x": 1, "unit": "ms", "median": 10},
    {"name": "step", "x_name": "rows", "x": 2, "unit": "ms", "median": 10.5}]})";
  const SimulatedSpec spec = parse_simulated("sim:curve=" + path);
  const auto ms = [&](size_t num_rows) {
    Batch batch;
    batch.tokens.assign(num_rows, 300);
    batch.positions.assign(num_rows, 0);
    batch.sequence_of_row.assign(num_rows, 0);
    return simulated_step_ms(spec, batch);
  };
  EXPECT_NEAR(ms(1), 10, 1e-9);
  EXPECT_NEAR(ms(2), 10.5, 1e-9);
  EXPECT_NEAR(ms(4), 11, 1e-9);
  EXPECT_NEAR(ms(8), 12, 1e-9);
  EXPECT_NEAR(ms(12), 13, 1e-9);
  EXPECT_TRUE(fails_with([&] { parse_simulated("sim:step_ms=1,curve=" + path); }, "not both"));
  std::ofstream(path) << R"({"series": [{"name": "step", "unit": "ms", "x_name": "length"}]})";
  EXPECT_TRUE(fails_with([&] { parse_simulated("sim:curve=" + path); }, "no series 'step'"));
  std::ofstream(path)
      << R"({"series": [{"name": "step", "unit": "ms", "x_name": "rows", "x": 1, "median": null}]})";
  EXPECT_TRUE(fails_with([&] { parse_simulated("sim:curve=" + path); }, "no good rows"));
}

TEST(SimulatedSpec, NamesTheKeyThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"sim:", "neither key=value nor a preset"},
      {"sim:gpt-9", "presets are llama-70b-tp8"},
      {"sim:row_ms=1", "needs step_ms"},
      {"sim:step_ms=", "step_ms must be a number from 0"},
      {"sim:step_ms=-1", "step_ms must be a number from 0"},
      {"sim:step_ms=nan", "step_ms must be a number from 0"},
      {"sim:step_ms=1e300", "step_ms must be a number from 0"},
      {"sim:step_ms=1 ", "step_ms must be a number from 0"},
      {"sim:step_ms=1,step_ms=2", "step_ms is given twice"},
      {"sim:step_ms=1,speed=2", "no key 'speed'"},
      {"sim:step_ms=1,,", "'' is not key=value"},
      {"sim:step_ms=1,llama-1b", "'llama-1b' is not key=value"},
      {"sim:step_ms=1,alpha=1.5", "alpha must be a number from 0 to 1"},
      {"sim:step_ms=1,alpha=0.05", "alpha must be 0, from 0.1 to 0.99, or 1"},
      {"sim:step_ms=1,alpha=.5/.6", "alpha has 2 values where there are 1 workload_classes"},
      {"sim:step_ms=1/2,workload_classes=3",
       "step_ms has 2 values where there are 3 workload_classes"},
      {"sim:step_ms=1,workload_classes=0", "workload_classes must be a number from 1 to 64"},
      {"sim:step_ms=1,workload_classes=2.5", "workload_classes must be a number"},
      {"sim:step_ms=1,vocab=512", "vocab must be a number from 3072"},
      {"sim:step_ms=1,jitter=2", "jitter must be a number from 0 to 1"},
      {"sim:step_ms=1,seed=-1", "seed must be a number"},
      {"sim:curve=nowhere.json", "nowhere.json"},
  };
  for (const auto& [text, part] : cases)
    EXPECT_TRUE(fails_with([&text = text] { parse_simulated(text); }, part));
  const SimulatedSpec spec = parse_simulated("sim:llama-70b-tp8,row_ms=1,alpha=.7");
  EXPECT_EQ(spec.row_ms, std::vector<double>{1});
  EXPECT_EQ(spec.layers, 80);
  EXPECT_EQ(spec.alpha, std::vector<double>{.7});
}

}  // namespace
}  // namespace outrider
