// Promises P2 and P3 with keys and values in bfloat16 and int8: the text is the same with and
// without a draft, with prefixes reused or not, after preemption, and under numerics strict on any
// number of ranks. And what kv_cache_dtype comes to.
#include <gtest/gtest.h>

#include <set>

#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/loading/model_names.h"
#include "runtime/ranks/startup/facts.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

// They begin alike, for the prefix index.
const std::string kStory = "Once upon a time there was a king who had three sons, and a forest. ";
const std::vector<std::string> kPrompts = {kStory + "The youngest",
                                           kStory + "The old woman went into the forest and",
                                           kStory + "My dear Watson,",
                                           "The soldiers had been marching since the morning."};

// Widened, or with "_rounded" multiplied by rounded numbers.
constexpr std::string_view kRounded = "_rounded";

RunConfig config_of(const std::string& dtype, int num_targets, int draft_len) {
  RunConfig config = embedded_config(num_targets, draft_len);
  const bool rounds = dtype.ends_with(kRounded);
  config.kv_cache_dtype = dtype.substr(0, dtype.size() - (rounds ? kRounded.size() : 0));
  if (rounds) config.activation_dtype = "bfloat16";
  return config;
}

class KvDtypeText : public ::testing::TestWithParam<const char*> {};

TEST_P(KvDtypeText, SameWithAndWithoutDraft) {
  const std::vector<Ask> asks = mixed_asks(kPrompts);
  for (const int num_targets : {1, 2, 4}) {
    const auto expected = tokens_of(run_asks(config_of(GetParam(), num_targets, 0), asks));
    EXPECT_EQ(std::set(expected.begin(), expected.end()).size(), asks.size());
    for (const int draft_len : {1, 4, 8}) {
      const auto outcomes = run_asks(patient(config_of(GetParam(), num_targets, draft_len)), asks);
      EXPECT_EQ(tokens_of(outcomes), expected) << num_targets << " ranks, length " << draft_len;
      EXPECT_GT(num_accepted(outcomes), 0) << "length " << draft_len;
    }
  }
}

// The memory holds one text to its end, not two.
TEST_P(KvDtypeText, SameWithReusedPrefixesAndAfterPreemption) {
  std::vector<Ask> asks = mixed_asks(kPrompts);
  for (Ask& ask : asks) ask.params.max_tokens = 60;
  RunConfig config = config_of(GetParam(), 1, 4);
  config.enable_prefix_caching = false;
  const auto expected = tokens_of(run_asks(config, asks));
  config.enable_prefix_caching = true;
  config.block_size = 4;
  config.max_model_len = 96;
  config.max_num_batched_tokens = 16;
  limit_kv_blocks(config, 30);
  run_engine(config, [&](const FrontEndContext& context) {
    EXPECT_EQ(tokens_of(ask_all(context, asks)), expected);
    EXPECT_EQ(tokens_of(ask_all(context, asks)), expected);
    EXPECT_GT(context.metrics.prefix_cache_hits.value(), 0);
    EXPECT_GT(context.metrics.num_preemptions.value(), 0);
  });
}

TEST_P(KvDtypeText, StrictTextIsTheSameOnAnyNumberOfRanks) {
  const std::vector<Ask> asks = mixed_asks(kPrompts);
  std::vector<std::vector<int32_t>> expected;
  for (const int num_targets : {1, 2, 4}) {
    RunConfig config = config_of(GetParam(), num_targets, num_targets == 2 ? 4 : 0);
    config.numerics = "strict";
    const auto tokens = tokens_of(run_asks(config, asks));
    if (expected.empty()) expected = tokens;
    EXPECT_EQ(tokens, expected) << num_targets << " target ranks";
  }
}

// Otherwise the tests above would be about the same numbers as ever.
TEST_P(KvDtypeText, TheNumbersAreOthers) {
  std::vector<Ask> asks = mixed_asks(kPrompts);
  for (Ask& ask : asks) ask.params.num_logprobs = 2;
  const auto logprob = [&](const std::string& dtype) {
    return run_asks(config_of(dtype, 1, 0), asks)[0].logprobs.at(5).logprob;
  };
  const bool rounds = std::string(GetParam()).ends_with(kRounded);
  const double exact = logprob(rounds ? "float32_rounded" : "float32");  // keys and values alone
  EXPECT_NE(logprob(GetParam()), exact);
  EXPECT_NEAR(logprob(GetParam()), exact, 0.1);
  EXPECT_EQ(logprob("float32"), logprob("auto"));
}

INSTANTIATE_TEST_SUITE_P(Types,
                         KvDtypeText,
                         ::testing::Values("bfloat16", "bfloat16_rounded", "int8", "int8_rounded"));

TEST(KvDtype, TheSameMemoryHoldsTwiceAndNearlyFourTimesTheBlocks) {
  const auto num_blocks = [](const std::string& dtype) {
    RunConfig config = config_of(dtype, 1, 0);
    config.max_num_seqs = 1000;  // more than the memory has room for
    config.kv_cache_memory_bytes = int64_t{16} << 20;
    const ModelConfig model = model_config_of(config, Role::kTarget);
    const EngineSizes sizes = engine_sizes(config, model, RankLayout{});
    EXPECT_EQ(target_options(config, sizes, model).kv_type, kv_type_of(config, model));
    EXPECT_EQ(draft_options(config, sizes, model).kv_type, kv_type_of(config, model));
    return sizes.num_blocks;
  };
  const int32_t exact = num_blocks("auto");
  EXPECT_GT(exact, 10);
  EXPECT_EQ(num_blocks("float32"), exact);
  EXPECT_NEAR(num_blocks("bfloat16"), 2 * exact, 1);
  EXPECT_GT(num_blocks("int8"), 3.5 * exact);
}

TEST(KvDtype, RanksCompareWhatItComesTo) {
  const auto fact = [](const std::string& dtype) {
    std::vector<Fact> facts;
    add_startup_facts(config_of(dtype, 2, 0), {2, false}, 1, &facts);
    for (const Fact& each : facts) {
      if (each.name == "kv_cache_dtype") return each.value;
    }
    return std::string();
  };
  EXPECT_EQ(fact("auto"), "float32");
  EXPECT_EQ(fact("float32"), "float32");
  EXPECT_EQ(fact("int8"), "int8");
}

}  // namespace
}  // namespace outrider::test
