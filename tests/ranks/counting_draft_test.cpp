// The drafts that count (unigram, bigram) in whole jobs: greedy and seeded text does not show them,
// though what they propose differs with the requests before; and what they are accepted.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "runtime/base/error.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::vector<std::string> kPrompts = {
    "Once upon a time there was a king who had three sons.",
    "It was late in the evening when the stranger knocked at the door",
    "The old woman went into the forest to gather wood, and",
    "My dear Watson,",
    "A",
    "In the garden stood a tree that bore golden apples",
};

// This process' own: ctest runs the program a second time, with checks, beside it.
class TextFile {
 public:
  TextFile(const char* name, const std::string& text)
      : path_(fmt::format("{}counting_draft_{}_{}.txt", ::testing::TempDir(), name, ::getpid())) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

// What `method` learns from when it is not the stream.
std::string corpus() {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text +=
        "There was once a king who had a daughter, and the king said to her that she must go "
        "into the forest.\nThe old woman was very much pleased, and she went to the door.\n";
  }
  static const TextFile file("corpus", text);
  return file.path();
}

RunConfig counting_config(int num_targets, const std::string& method, bool from_text) {
  RunConfig config = embedded_config(num_targets, 0);
  config.speculative.method = method;
  config.speculative.num_speculative_tokens = 4;
  if (from_text) config.speculative.draft_corpus = corpus();
  return config;
}

std::vector<Ask> asks() {
  std::vector<Ask> asks;
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    asks.push_back({kPrompts[i], greedy(40)});
    asks.push_back({kPrompts[i], seeded(0.7f, 300 + i, 40)});
  }
  return asks;
}

struct Texts {
  std::vector<std::vector<int32_t>> tokens;
  int64_t num_examined = 0;
  int64_t num_accepted = 0;
  double alpha() const {
    return static_cast<double>(num_accepted) / static_cast<double>(num_examined);
  }
};

Texts texts_of(const std::vector<Outcome>& outcomes) {
  Texts texts;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    texts.tokens.push_back(outcome.tokens);
    for (TokenOrigin origin : outcome.origins) {
      texts.num_accepted += origin == TokenOrigin::kAccepted ? 1 : 0;
      texts.num_examined +=
          origin == TokenOrigin::kAccepted || origin == TokenOrigin::kCorrected ? 1 : 0;
    }
  }
  return texts;
}

class CountingDraft : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(CountingDraft, SameTextWithAndWithout) {
  const auto& [num_targets, method] = GetParam();
  const std::vector<Ask> all = asks();
  const Texts expected = texts_of(run_asks(embedded_config(num_targets, 0), all));
  ASSERT_EQ(expected.tokens.size(), 12u);
  EXPECT_NE(expected.tokens[0], expected.tokens[1]);
  std::vector<Ask> backwards(all.rbegin(), all.rend());
  for (bool from_text : {false, true}) {
    const RunConfig config = counting_config(num_targets, method, from_text);
    const Texts texts = texts_of(run_asks(config, all));
    EXPECT_EQ(texts.tokens, expected.tokens);
    EXPECT_GT(texts.num_accepted, 0);
    EXPECT_GT(texts.alpha(), 0.0);
    EXPECT_LT(texts.alpha(), 0.5);
    std::printf("%s from %s: alpha %.3f over %ld\n",
                method.c_str(),
                from_text ? "a text" : "the stream",
                texts.alpha(),
                static_cast<long>(texts.num_examined));
    // In the other order the stream has taught it other things by then.
    Texts reversed = texts_of(run_asks(config, backwards));
    std::reverse(reversed.tokens.begin(), reversed.tokens.end());
    EXPECT_EQ(reversed.tokens, expected.tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         CountingDraft,
                         ::testing::Combine(::testing::Values(1, 2),
                                            ::testing::Values("unigram", "bigram")));

TEST(CountingDraftStream, LearnsFromOneRequestForTheNext) {
  std::vector<double> alphas;
  run_engine(counting_config(1, "bigram", false), [&](const FrontEndContext& context) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto stream = submit(context.engine, context.tokenizer->encode(kPrompts[0]), greedy(60));
      ASSERT_NE(stream, nullptr);
      alphas.push_back(texts_of({collect(*stream)}).alpha());
    }
  });
  ASSERT_EQ(alphas.size(), 2u);
  EXPECT_GT(alphas[1], alphas[0]);
}

std::string problem_of(const RunConfig& config) {
  try {
    run_job(config, {}, [](const FrontEndContext&) { return 0; });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CountingDraftCorpus, WhatIsWrongIsNamed) {
  RunConfig config = counting_config(1, "ngram", true);
  EXPECT_NE(problem_of(config).find("draft_corpus is for the methods unigram and bigram, not for "
                                    "ngram"),
            std::string::npos)
      << problem_of(config);
  config.speculative.method = "bigram";
  EXPECT_EQ(problem_of(config), "");
  config.speculative.draft_corpus = "no/such/file.txt";
  EXPECT_NE(problem_of(config).find("no/such/file.txt"), std::string::npos);
  const TextFile empty("empty", "");
  config.speculative.draft_corpus = empty.path();
  EXPECT_NE(problem_of(config).find("holds no text"), std::string::npos) << problem_of(config);
}

}  // namespace
}  // namespace outrider::test
