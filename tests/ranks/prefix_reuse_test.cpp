// Prefix reuse in whole jobs: the text is the same, bit for bit, as with every prompt computed
// anew, and blocks that held NaN never reach another request.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <thread>

#include "runtime/ranks/loading/model_loader.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::string kSystemPrompt =
    "You are a teller of old tales. You speak slowly and kindly, you never hurry, and you always "
    "end with a question. The listener sits by the fire and the night is long and cold. ";
const std::vector<std::string> kQuestions = {
    "Tell me of the king who had three sons.",
    "Who was the old woman in the forest?",
    "Why did the soldiers march all night?",
    "What did the stranger say at the door?",
    "Tell me of the golden apples.",
    "Where did the fox go?",
};

struct Talk {
  std::vector<std::vector<int32_t>> texts;  // of all turns of all chats
  double num_queries = 0;
  double num_hits = 0;
  double num_preemptions = 0;
  double kv_usage = -1;
  int64_t num_cached_tokens = 0;
};

// Each turn's prompt is all of the turn before, the answer and a new line.
class Talker {
 public:
  Talker(const FrontEndContext& context, bool cancels) : context_(context), cancels_(cancels) {}

  void run(int num_turns, Talk* talk) {
    for (const std::string& question : kQuestions) {
      prompts_.push_back(context_.tokenizer->encode(kSystemPrompt + question));
    }
    for (int turn = 0; turn < num_turns; ++turn) take_turn(turn, talk);
  }

 private:
  void take_turn(int turn, Talk* talk) {
    std::vector<std::shared_ptr<ResultStream>> streams;
    if (cancels_) start_and_cancel();
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const SamplingParams params =
          i % 2 == 0 ? greedy(32) : seeded(0.8f, 100 * i + static_cast<size_t>(turn), 32);
      streams.push_back(submit(context_.engine, prompts_[i], params));
      ASSERT_NE(streams.back(), nullptr);
    }
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const Outcome outcome = collect(*streams[i]);
      EXPECT_EQ(outcome.error, "");
      talk->num_cached_tokens += outcome.num_cached_tokens;
      talk->texts.push_back(outcome.tokens);
      prompts_[i].insert(prompts_[i].end(), outcome.tokens.begin(), outcome.tokens.end());
      const std::vector<int32_t> next = context_.tokenizer->encode(" And then?");
      prompts_[i].insert(prompts_[i].end(), next.begin(), next.end());
    }
  }

  // Requests that share the prompts and go away in the middle.
  void start_and_cancel() {
    for (size_t i = 0; i < 3; ++i) {
      const auto stream = submit(context_.engine, prompts_[i], greedy(120));
      ASSERT_NE(stream, nullptr);
      if (i > 0) {
        ASSERT_TRUE(stream->wait_next(std::chrono::seconds(60)).has_value());
      }
      // Ids count up, and this thread is the only one that asks.
      context_.engine.cancel(context_.engine.next_request_id() - 1);
    }
  }

  const FrontEndContext& context_;
  const bool cancels_;
  std::vector<std::vector<int32_t>> prompts_;
};

Talk talk_with(const RunConfig& config, bool cancels) {
  Talk talk;
  run_engine(config, [&](const FrontEndContext& context) {
    Talker(context, cancels).run(3, &talk);
    // The last status is published a moment after the last event.
    for (int i = 0; i < 12000 && context.metrics.kv_cache_usage_perc.value() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    talk.kv_usage = context.metrics.kv_cache_usage_perc.value();
    talk.num_queries = context.metrics.prefix_cache_queries.value();
    talk.num_hits = context.metrics.prefix_cache_hits.value();
    talk.num_preemptions = context.metrics.num_preemptions.value();
  });
  EXPECT_EQ(talk.kv_usage, 0);
  return talk;
}

struct Case {
  int num_targets;
  int draft_len;
  std::string numerics;
};

class PrefixReuse : public ::testing::TestWithParam<Case> {
 protected:
  static RunConfig config(bool reuse) {
    RunConfig config = embedded_config(GetParam().num_targets, GetParam().draft_len);
    config.numerics = GetParam().numerics;
    config.enable_prefix_caching = reuse;
    return config;
  }
};

TEST_P(PrefixReuse, TextIsTheSameAsWithout) {
  const Talk off = talk_with(config(false), false);
  EXPECT_EQ(off.num_queries, 0);
  EXPECT_EQ(off.num_cached_tokens, 0);
  std::set<std::vector<int32_t>> distinct(off.texts.begin(), off.texts.end());
  EXPECT_GT(distinct.size(), 14u);  // greedy text of a small model may repeat itself
  const Talk on = talk_with(config(true), false);
  EXPECT_EQ(on.texts, off.texts);
  // The second and third turns at least begin with what the turn before computed.
  EXPECT_GT(on.num_hits, 0.4 * on.num_queries);
  EXPECT_EQ(static_cast<double>(on.num_cached_tokens), on.num_hits);
}

// Little KV memory, small chunks, requests that go away: blocks are taken, given back, freed and
// found again all the time.
TEST_P(PrefixReuse, TextIsTheSameInATightSpot) {
  const Talk off = talk_with(config(false), false);
  RunConfig tight = config(true);
  tight.block_size = 4;
  tight.max_num_batched_tokens = 24;
  tight.max_model_len = 320;
  limit_kv_blocks(tight, 90);
  const Talk on = talk_with(tight, /*cancels=*/true);
  EXPECT_EQ(on.texts, off.texts);
  EXPECT_GT(on.num_hits, 0);
  EXPECT_GT(on.num_preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         PrefixReuse,
                         ::testing::Values(Case{1, 0, "fast"},
                                           Case{1, 4, "fast"},
                                           Case{2, 4, "fast"},
                                           Case{4, 0, "fast"},
                                           Case{1, 4, "strict"},
                                           Case{2, 0, "strict"},
                                           Case{4, 4, "strict"}));

// ---- NaN
// -------------------------------------------------------------------------------------------

struct SpoiledRun {
  std::vector<Outcome> outcomes;
};

// The same prompt again and again, one request after the other.
SpoiledRun ask_again(const std::string& fault,
                     int32_t max_rows,
                     const std::vector<int32_t>& max_tokens) {
  if (!fault.empty()) setenv("OUTRIDER_FAULT", fault.c_str(), 1);
  SpoiledRun run;
  RunConfig config = embedded_config(2, 0);
  config.max_num_batched_tokens = max_rows;
  run_engine(config, [&](const FrontEndContext& context) {
    for (int32_t most : max_tokens) {
      const auto prompt = context.tokenizer->encode(kSystemPrompt);
      run.outcomes.push_back(collect(*submit(context.engine, prompt, greedy(most))));
    }
  });
  unsetenv("OUTRIDER_FAULT");
  return run;
}

const std::string kNanError = "the model produced NaN or infinite logits";

TEST(SpoiledBlocks, AChunkWithNaNIsNotShared) {
  const std::vector<int32_t> right = ask_again("", 512, {20}).outcomes[0].tokens;
  // The prompt comes in chunks of 16 rows; NaN is in the first, the failure in the last.
  const SpoiledRun run = ask_again("nan_kv:sequence=1,position=3,rank=1", 16, {20, 20, 20});
  EXPECT_EQ(run.outcomes[0].error, kNanError);
  EXPECT_EQ(run.outcomes[1].tokens, right);
  EXPECT_EQ(run.outcomes[1].num_cached_tokens, 0);
  EXPECT_EQ(run.outcomes[2].tokens, right);
  EXPECT_GT(run.outcomes[2].num_cached_tokens, 0);
}

// KV that goes bad after it was published takes down one more request, not all that follow.
TEST(SpoiledBlocks, BadBlocksLeaveTheIndexWithTheFirstFailure) {
  const std::vector<int32_t> right = ask_again("", 512, {20}).outcomes[0].tokens;
  // The whole prompt in one round: what is sampled there has not read the NaN.
  const SpoiledRun run = ask_again("nan_kv:sequence=1,position=3,rank=1", 512, {1, 20, 20, 20});
  EXPECT_EQ(run.outcomes[0].error, "");
  EXPECT_GT(run.outcomes[1].num_cached_tokens, 0);
  EXPECT_EQ(run.outcomes[1].error, kNanError);
  EXPECT_EQ(run.outcomes[2].error, "");
  EXPECT_EQ(run.outcomes[2].num_cached_tokens, 0);
  EXPECT_EQ(run.outcomes[2].tokens, right);
  EXPECT_EQ(run.outcomes[3].tokens, right);
  EXPECT_GT(run.outcomes[3].num_cached_tokens, 0);
}

// ---- what a rank does with the tables
// -------------------------------------------------------------------------------------------

class OneRank {
 public:
  OneRank()
      : loaded_(load_target(embedded_config(1, 0), {1, false}, 0, 1, make_solo_group())),
        target_(
            *loaded_.model, *loaded_.group, Faults::parse("nan_kv:sequence=1,position=18", 0, 1)) {}

  SequenceDecision run(uint64_t id,
                       const std::vector<int32_t>& tokens,
                       int32_t first_position,
                       std::vector<int32_t> blocks) {
    RoundPlan plan;
    plan.round = id;
    plan.starts.push_back({id, greedy(10), tokens});
    plan.sequences.resize(1);
    plan.sequences[0].sequence_id = id;
    plan.sequences[0].first_position = first_position;
    plan.sequences[0].num_committed_rows = static_cast<int32_t>(tokens.size()) - first_position;
    plan.sequences[0].new_blocks = std::move(blocks);
    return target_.execute(plan).sequences.at(0);
  }

  // Keys, then values of one slot in all layers and heads.
  std::vector<float> slot(int32_t block, int32_t slot) const {
    std::vector<float> content;
    for (int32_t layer = 0; layer < loaded_.model->config().n_layers; ++layer) {
      const ops::KvPages& pages = dynamic_cast<const Transformer&>(*loaded_.model).kv_pages(layer);
      for (const ops::KvVectors& half : {pages.keys, pages.values}) {
        for (int64_t head = 0; head < pages.n_kv_heads; ++head) {
          const float* begin = reinterpret_cast<const float*>(half.data) +
                               pages.vector_at(block, head, slot) * pages.head_dim;
          content.insert(content.end(), begin, begin + pages.head_dim);
        }
      }
    }
    return content;
  }

 private:
  LoadedModel loaded_;
  TargetRank target_;
};

TEST(FreshBlocks, BeginAsZerosAndReusedOnesStay) {
  OneRank rank;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 20; ++i) tokens.push_back(300 + 7 * i);
  rank.run(1, tokens, 0, {0, 1});
  ASSERT_TRUE(std::isnan(rank.slot(1, 2).front()));
  // The first block again, the second for three new rows; and the same text computed whole.
  tokens.resize(16);
  for (int32_t token : {40, 41, 42}) tokens.push_back(token);
  const SequenceDecision reused = rank.run(2, tokens, 16, {0, 1});
  const SequenceDecision whole = rank.run(3, tokens, 0, {2, 3});
  EXPECT_FALSE(reused.failed);
  EXPECT_GE(reused.next_token, 0);
  EXPECT_EQ(reused.next_token, whole.next_token);
  const std::vector<float> zeros(rank.slot(1, 0).size(), 0.0f);
  for (int32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(rank.slot(0, i), rank.slot(2, i)) << "slot " << i;
    EXPECT_NE(rank.slot(0, i), zeros);
    EXPECT_EQ(rank.slot(1, i), rank.slot(3, i)) << "slot " << i;
    EXPECT_EQ(rank.slot(1, i) == zeros, i >= 3) << "slot " << i;
  }
}

}  // namespace
}  // namespace outrider::test
