// Promise P2 under everything at once: 1,000 requests of all kinds through jobs with little memory,
// drafts of random lengths in every way of asynchronous drafting, preemption, cancellation in the
// middle, shared beginnings, priorities and several choices, with freed KV blocks full of NaN and
// the books checked after every round. Every greedy or seeded text is the one the plain engine
// writes alone: without a draft, without prefix reuse, one request at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "http/api/generation.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/loading/model_names.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

constexpr size_t kNumRequests = 1000;
constexpr int32_t kMaxLen = 160;

struct Item {
  std::vector<int32_t> prompt;
  SamplingParams params;
  int32_t priority = 0;
  bool repeats = false;       // greedy or seeded: its text is given
  int32_t cancel_after = -1;  // tokens; -1 = not cancelled
};

const std::vector<std::string> kBeginnings = {
    "You are the king's own storyteller. Speak slowly and tell only what is true. Tell of",
    "Once upon a time there was a poor miller who had three sons, and when he died",
    "My dear Watson, you have seen the letter, and you have seen the man. Then",
    "The soldiers had been marching since the morning. The officer looked at the sky and said",
    "It was late in the evening when the stranger knocked at the door of the inn",
    "A",
};

class Traffic {
 public:
  explicit Traffic(const Tokenizer& tokenizer) {
    for (const std::string& text : kBeginnings) beginnings_.push_back(tokenizer.encode(text));
  }

  std::vector<Item> make() {
    while (items_.size() < kNumRequests) {
      Item item = one();
      const int32_t num_choices = below(8) == 0 ? 2 + below(3) : 1;
      for (int32_t choice = 0; choice < num_choices && items_.size() < kNumRequests; ++choice) {
        Item sibling = item;
        if (item.params.seed) {
          sibling.params.noise_seed = choice_noise_seed(*item.params.seed, choice);
        }
        items_.push_back(std::move(sibling));
      }
    }
    return std::move(items_);
  }

 private:
  int32_t below(int32_t limit) {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(limit));
  }

  // A beginning and some tokens more, or an earlier prompt and some tokens more, as chats grow.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens = items_.empty() || below(3) > 0
                                      ? beginnings_[static_cast<size_t>(below(6))]
                                      : items_[random_() % items_.size()].prompt;
    for (int32_t i = below(24); i > 0; --i) tokens.push_back(270 + below(2700));
    if (tokens.size() > 100) tokens.resize(100);
    return tokens;
  }

  Item one() {
    Item item;
    item.prompt = prompt();
    item.priority = below(5) - 2;
    const int32_t max_tokens = 1 + below(below(4) == 0 ? 56 : 24);
    const int32_t kind = below(5);
    item.repeats = kind < 4;
    const float temperature = 0.3f + 0.1f * static_cast<float>(below(10));
    item.params = kind < 2   ? greedy(max_tokens)
                  : kind < 4 ? seeded(temperature, random_(), max_tokens)
                             : sampled(temperature, max_tokens);
    vary(item.params);
    const VerifyMode modes[] = {
        VerifyMode::kAuto, VerifyMode::kCoupled, VerifyMode::kStandard, VerifyMode::kBlock};
    // A seeded text is promised under the rule that has its noise by position alone.
    item.params.verify_mode = modes[below(item.params.seed ? 2 : 4)];
    if (below(10) == 0) {
      item.cancel_after = below(8);
      item.params.max_tokens = 56;  // not at its end before a slow machine has cancelled it
    }
    return item;
  }

  void vary(SamplingParams& params) {
    const int32_t kind = below(14);
    if (kind == 0) params.top_k = 1 + below(40);
    if (kind == 1) params.top_p = 0.7f;
    if (kind == 2) params.min_p = 0.08f;
    if (kind == 3) params.repetition_penalty = 1.3f;
    if (kind == 4) params.presence_penalty = 0.8f, params.frequency_penalty = 0.4f;
    if (kind == 5) params.logit_bias = {{300, 3.0f}, {310, -100.0f}};
    if (kind == 6) params.bad_words = {{300}, {301, 302}};
    if (kind == 7) params.num_logprobs = below(4);
    if (kind == 8) params.prompt_logprobs = true;
    if (kind == 9) params.typical_p = 0.5f;
    if (below(3) == 0) {
      for (int32_t id = 260 + below(7); id < 3000; id += 7) params.stop_token_ids.push_back(id);
      params.min_tokens = below(params.max_tokens + 1);
    }
    if (below(2) == 0) params.max_draft_len = below(9);
    params.fixed_draft_len = below(2) == 0;
    params.async_drafting = static_cast<AsyncDrafting>(below(4));
  }

  std::mt19937 random_{20261120};
  std::vector<std::vector<int32_t>> beginnings_;
  std::vector<Item> items_;
};

Request request_of(Engine& engine, const Item& item, uint64_t index) {
  Request request;
  request.id = engine.next_request_id();
  request.prompt = item.prompt;
  request.params = item.params;
  if (!item.params.seed) request.params.noise_seed = 0x9E3779B97F4A7C15ull * (index + 1);
  request.priority = item.priority;
  request.stream = std::make_shared<ResultStream>();
  return request;
}

const std::vector<Item>& items() {
  static const std::vector<Item> all = [] {
    const auto tokenizer = Tokenizer::load(model_folder("embedded", Role::kTarget));
    return Traffic(*tokenizer).make();
  }();
  return all;
}

RunConfig common_config(int num_targets, int draft_len) {
  RunConfig config = embedded_config(num_targets, draft_len);
  config.numerics = "strict";  // one expected text for all numbers of ranks
  config.max_model_len = kMaxLen;
  config.max_num_queued_reqs = static_cast<int32_t>(kNumRequests);
  return config;
}

// What the plain engine writes alone; nothing for what does not repeat.
const std::vector<Outcome>& expected() {
  static const std::vector<Outcome> outcomes = [] {
    std::vector<Outcome> alone(kNumRequests);
    RunConfig config = common_config(1, 0);
    config.max_num_seqs = 1;
    config.enable_prefix_caching = false;
    config.scheduling_policy = "priority";
    run_engine(config, [&](const FrontEndContext& context) {
      std::vector<std::shared_ptr<ResultStream>> streams(kNumRequests);
      for (size_t i = 0; i < kNumRequests; ++i) {
        if (!items()[i].repeats) continue;
        Request request = request_of(context.engine, items()[i], i);
        streams[i] = request.stream;
        EXPECT_EQ(context.engine.submit(std::move(request)).reason, "");
      }
      for (size_t i = 0; i < kNumRequests; ++i) {
        if (streams[i] != nullptr) alone[i] = collect(*streams[i]);
      }
    });
    return alone;
  }();
  return outcomes;
}

struct Setting {
  const char* name;
  int num_targets = 1;
  int draft_len = 4;  // 0 = auto
  const char* async_drafting = "cache";
  const char* method = "";
  int32_t max_num_seqs = 24;
  int32_t max_rows = 64;
  int32_t block_size = 4;
  int32_t num_blocks = 64;
  int32_t priority_aging_rounds = 16;
  double least_prepared = 0;  // outcomes, in time: far fewer than usually
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

RunConfig config_of(const Setting& setting) {
  RunConfig config = common_config(setting.num_targets, 1);
  config.speculative.num_speculative_tokens = setting.draft_len;
  config.speculative.async_drafting = setting.async_drafting;
  if (*setting.method != '\0') {
    config.speculative.method = setting.method;
    config.speculative.model.clear();
    config.speculative.prompt_lookup_min = 1;
  }
  config.max_num_seqs = setting.max_num_seqs;
  config.max_num_batched_tokens = setting.max_rows;
  config.block_size = setting.block_size;
  config.priority_aging_rounds = setting.priority_aging_rounds;
  limit_kv_blocks(config, setting.num_blocks);
  return config;
}

// Sends the requests in random bursts, listens to all, and cancels some in the middle.
class Driver {
 public:
  Driver(Engine& engine, uint32_t seed) : engine_(engine), random_(seed), outcomes_(kNumRequests) {}

  std::vector<Outcome> run() {
    size_t next = 0;
    while (next < kNumRequests || !open_.empty()) {
      // At times few, so that the queue runs dry; at times far more than can run.
      if (open_.size() < random_() % 80) {
        for (size_t burst = 1 + random_() % 30; burst > 0 && next < kNumRequests; --burst) {
          submit(next++);
        }
      }
      if (!listen_to_all()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return std::move(outcomes_);
  }

 private:
  struct Open {
    uint64_t id = 0;
    std::shared_ptr<ResultStream> stream;
    bool cancelled = false;
  };

  void submit(size_t index) {
    Request request = request_of(engine_, items()[index], index);
    open_[index] = {request.id, request.stream, false};
    EXPECT_EQ(engine_.submit(std::move(request)).reason, "");
  }

  bool listen_to_all() {
    bool heard = false;
    for (auto open = open_.begin(); open != open_.end();) {
      Outcome& outcome = outcomes_[open->first];
      const int32_t cancel_after = items()[open->first].cancel_after;
      if (cancel_after >= 0 && !open->second.cancelled &&
          static_cast<int32_t>(outcome.tokens.size()) >= cancel_after) {
        engine_.cancel(open->second.id);
        open->second.cancelled = true;
      }
      while (const auto event = open->second.stream->wait_next(std::chrono::milliseconds(0))) {
        heard = true;
        take(outcome, *event);
      }
      open = outcome.finish_reason == FinishReason::kNone ? std::next(open) : open_.erase(open);
    }
    return heard;
  }

  static void take(Outcome& outcome, const ResultEvent& event) {
    EXPECT_EQ(outcome.finish_reason, FinishReason::kNone) << "goes on after its end";
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(outcome.tokens, event.tokens);
    append(outcome.origins, event.origins);
    append(outcome.logprobs, event.logprobs);
    append(outcome.prompt_logprobs, event.prompt_logprobs);
    outcome.finish_reason = event.finish_reason;
    outcome.error = event.error;
    outcome.stats = event.stats;
  }

  Engine& engine_;
  std::mt19937 random_;
  std::map<size_t, Open> open_;
  std::vector<Outcome> outcomes_;
};

struct Tally {
  int num_equal = 0;
  int num_aborted = 0;
  int num_aborted_in_the_middle = 0;
  int64_t num_drafted = 0;
  int64_t num_accepted = 0;
  int64_t num_bonus_drafts = 0;  // for the bonus position, judged
};

void expect_right(size_t index, const Outcome& got, Tally& tally) {
  const Item& item = items()[index];
  const Outcome& alone = expected()[index];
  ASSERT_EQ(got.error, "") << "request " << index;
  ASSERT_EQ(got.origins.size(), got.tokens.size()) << "request " << index;
  tally.num_drafted += got.stats.num_draft_tokens;
  tally.num_accepted += got.stats.num_accepted_tokens;
  tally.num_bonus_drafts += got.stats.num_bonus_drafts;
  if (got.finish_reason == FinishReason::kAborted) {
    EXPECT_GE(item.cancel_after, 0) << "request " << index << " was aborted, nobody cancelled it";
    ++tally.num_aborted;
    tally.num_aborted_in_the_middle += got.tokens.empty() ? 0 : 1;
    if (!item.repeats) return;
    ASSERT_LE(got.tokens.size(), alone.tokens.size()) << "request " << index;
    EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), alone.tokens.begin()))
        << "request " << index << " wrote another text before it was cancelled";
    return;
  }
  if (!item.repeats) {
    EXPECT_LE(got.tokens.size(), static_cast<size_t>(item.params.max_tokens));
    EXPECT_TRUE(got.finish_reason == FinishReason::kStop ||
                got.tokens.size() == static_cast<size_t>(item.params.max_tokens))
        << "request " << index;
    return;
  }
  EXPECT_EQ(got.tokens, alone.tokens) << "request " << index;
  EXPECT_EQ(got.finish_reason, alone.finish_reason) << "request " << index;
  EXPECT_TRUE(same_logprobs(got.logprobs, alone.logprobs)) << "request " << index;
  EXPECT_TRUE(same_logprobs(got.prompt_logprobs, alone.prompt_logprobs)) << "request " << index;
  ++tally.num_equal;
}

TEST(MixedTraffic, TheRequestsAreVaried) {
  std::set<std::vector<int32_t>> texts;
  std::map<FinishReason, int> reasons;
  for (size_t i = 0; i < kNumRequests; ++i) {
    if (!items()[i].repeats) continue;
    EXPECT_EQ(expected()[i].error, "") << i;
    texts.insert(expected()[i].tokens);
    ++reasons[expected()[i].finish_reason];
  }
  EXPECT_GT(texts.size(), 500u);
  EXPECT_GT(reasons[FinishReason::kStop], 100);
  EXPECT_GT(reasons[FinishReason::kLength], 300);
}

class MixedTraffic : public ::testing::TestWithParam<Setting> {};

TEST_P(MixedTraffic, EveryTextIsTheOneWrittenAlone) {
  expected();  // before checks are on: the plain engine as it is
  const SetVariable checks(Checks::kVariable, "books,poison");
  std::vector<Outcome> outcomes;
  std::map<std::string, double> seen;
  run_engine(config_of(GetParam()), [&](const FrontEndContext& context) {
    outcomes = Driver(context.engine, 17).run();
    seen["preemptions"] = context.metrics.num_preemptions.value();
    seen["hits"] = context.metrics.prefix_cache_hits.value();
    seen["prepared"] = context.metrics.speculation_cache_hits.value();
    seen["outcomes"] = context.metrics.speculation_cache_queries.value();
    seen["faults"] = context.metrics.kv_accounting_faults.value();
    seen["not finite"] = context.metrics.logits_not_finite.value();
  });
  ASSERT_EQ(outcomes.size(), kNumRequests);
  Tally tally;
  for (size_t i = 0; i < kNumRequests; ++i) expect_right(i, outcomes[i], tally);
  std::printf(
      "%s: %d texts equal, %d cancelled (%d in the middle), %.0f preemptions, %.0f tokens reused, "
      "%lld of %lld draft tokens accepted, %lld bonus drafts judged, %.0f of %.0f outcomes "
      "prepared\n",
      GetParam().name,
      tally.num_equal,
      tally.num_aborted,
      tally.num_aborted_in_the_middle,
      seen["preemptions"],
      seen["hits"],
      static_cast<long long>(tally.num_accepted),
      static_cast<long long>(tally.num_drafted),
      static_cast<long long>(tally.num_bonus_drafts),
      seen["prepared"],
      seen["outcomes"]);
  EXPECT_EQ(seen["faults"], 0);
  EXPECT_EQ(seen["not finite"], 0);
  // What the test is about has happened.
  EXPECT_GT(tally.num_equal, 600);
  EXPECT_GT(tally.num_aborted, 30);
  EXPECT_GT(tally.num_aborted_in_the_middle, 10);
  EXPECT_GT(seen["preemptions"], 10);
  EXPECT_GT(seen["hits"], 5000);
  EXPECT_GE(seen["prepared"], GetParam().least_prepared);
  EXPECT_GT(tally.num_accepted, 200);
  EXPECT_LT(tally.num_accepted, tally.num_drafted);
}

INSTANTIATE_TEST_SUITE_P(
    Settings,
    MixedTraffic,
    ::testing::Values(
        Setting{.name = "synchronous", .async_drafting = "off"},
        Setting{.name = "chain", .draft_len = 6, .async_drafting = "chain"},
        Setting{.name = "cache", .draft_len = 0},
        Setting{.name = "cache on two ranks", .num_targets = 2, .block_size = 8, .num_blocks = 32},
        Setting{.name = "few rows",
                .draft_len = 3,
                .max_num_seqs = 8,
                .max_rows = 10,
                .block_size = 1,
                .num_blocks = 200,
                .priority_aging_rounds = 1},
        // A slow target with few to serve: more outcomes are prepared in time.
        Setting{.name = "few at once",
                .num_targets = 2,
                .draft_len = 2,
                .max_num_seqs = 4,
                .num_blocks = 42,
                .least_prepared = 50},
        Setting{.name = "n-gram", .draft_len = 5, .method = "ngram"}),
    [](const auto& setting) {
      std::string name = setting.param.name;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

}  // namespace
}  // namespace outrider::test
