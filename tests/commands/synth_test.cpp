// Acceptance of the synthetic pair: 1 when the later layers say nothing, less as they say more, the
// same as by asking the two models position by position; and the search for epsilon.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/error.h"
#include "runtime/commands/synth/acceptance.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

ModelConfig tiny(const char* shape = "tinyllama-1.1b") {
  ModelConfig config = first_layers(synthetic_shape(shape), 6);
  config.hidden_dim = 64;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = config.rope.rotary_dim = 16;
  config.ffn_dim = 96;
  config.vocab_size = 1000;
  if (config.experts.count > 0) {
    config.experts.count = 8;
    config.experts.per_row = 2;
    config.experts.ffn_dim = 40;
  }
  return config;
}

const AcceptanceOptions kOptions = {.num_texts = 16, .tokens_per_text = 16};

void expect_falls_with_epsilon(const ModelConfig& config) {
  for (const double temperature : {0.0, 1.0}) {
    AcceptanceOptions options = kOptions;
    options.temperature = temperature;
    SyntheticPair pair(config, {.epsilon = 0.0}, options);
    const Acceptance all = pair.measure();
    EXPECT_NEAR(all.mean, 1.0, 1e-9);
    EXPECT_EQ(all.num_positions, 256);
    pair.set_epsilon(0.1);
    const Acceptance most = pair.measure();
    pair.set_epsilon(0.8);
    const Acceptance few = pair.measure();
    EXPECT_LT(most.mean, 1.0);
    EXPECT_GT(most.mean, few.mean + 0.1);
    EXPECT_GT(few.mean, 0.0);
    EXPECT_GT(few.standard_error, 0.0);
    EXPECT_LT(few.standard_error, 0.1);
    // What was made anew is what a pair has from the start.
    SyntheticPair fresh(config, {.epsilon = 0.8}, options);
    EXPECT_EQ(fresh.measure().mean, few.mean);
    EXPECT_EQ(fresh.measure().mean, few.mean) << "the same again";
  }
}

TEST(SyntheticPair, AcceptanceFallsWithEpsilon) { expect_falls_with_epsilon(tiny()); }

TEST(SyntheticPair, AcceptanceOfADenseDraftFallsWithEpsilonOfTheExperts) {
  expect_falls_with_epsilon(tiny("qwen3-30b-a3b"));
}

TEST(SyntheticPair, RefusesWhatIsLargerThanTheMachine) {
  ModelConfig config = synthetic_shape("llama-3.1-8b");
  config.ffn_dim = 1 << 20;
  config.n_layers = 1024;
  EXPECT_TRUE(fails_with([&] { SyntheticPair(config, {}, kOptions); }, "--epsilon"))
      << "a model larger than the machine";
}

TEST(SyntheticPair, BytesNeeded) {
  const ModelConfig config = synthetic_shape("tinyllama-1.1b");
  const size_t bytes = SyntheticPair::bytes_needed(config, {}, kOptions);
  EXPECT_GT(bytes, size_t{2'200} << 20 >> 1);
  EXPECT_LT(bytes, size_t{3'000} << 20);
}

std::vector<EpsilonTrial> search(double alpha, double guess, double steepness) {
  return find_epsilon(alpha, guess, 8, [steepness](double epsilon) {
    return Acceptance{std::exp(-steepness * epsilon), 0.001, 1000};
  });
}

TEST(FindEpsilon, ComesWithinAHundredth) {
  for (const double alpha : {0.3, 0.6, 0.8, 0.95}) {
    for (const double guess : {0.01, 0.1, 0.5}) {
      for (const double steepness : {3.0, 6.0, 12.0}) {
        const auto trials = search(alpha, guess, steepness);
        ASSERT_FALSE(trials.empty());
        EXPECT_LE(std::abs(trials.back().acceptance.mean - alpha), 0.01)
            << alpha << " " << guess << " " << steepness;
      }
    }
  }
  EXPECT_EQ(search(0.8, -std::log(0.8) / 6, 6).size(), 1u) << "a good guess is enough";
}

TEST(FindEpsilon, AnErrorBarIsAsGoodAsIt) {
  const auto trials = find_epsilon(0.8, 0.1, 5, [](double) { return Acceptance{0.77, 0.05, 40}; });
  EXPECT_EQ(trials.size(), 1u);
}

TEST(FindEpsilon, GivesTheNearestWhenItRunsOut) {
  int calls = 0;
  const auto trials = find_epsilon(0.5, 0.1, 3, [&calls](double) {
    return Acceptance{++calls == 2 ? 0.45 : 0.2, 0.001, 1000};
  });
  EXPECT_EQ(trials.size(), 3u);
  EXPECT_EQ(trials.back().acceptance.mean, 0.45);
}

TEST(FindEpsilon, SaysWhenItCannotBe) { EXPECT_THROW(search(0.3, 0.1, 0.5), Error); }

TEST(GuessEpsilon, FollowsWhatWasMeasured) {
  EXPECT_NEAR(guess_epsilon(0.79, 20), 0.04, 1e-12);
  EXPECT_NEAR(guess_epsilon(0.887, 20), 0.02, 1e-12);
  EXPECT_GT(guess_epsilon(0.5, 20), 0.09);
  EXPECT_GT(guess_epsilon(0.8, 5), guess_epsilon(0.8, 20));
  EXPECT_LE(guess_epsilon(0.01, 1), 1.0);
}

}  // namespace
}  // namespace outrider
