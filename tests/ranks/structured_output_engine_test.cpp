// Structured output through whole jobs: the masks of one and two target ranks and of a draft agree,
// seeded texts are the same whoever drafts, and every text is of its grammar.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/ranks/loading/model_names.h"
#include "scheduler/sampling/grammar_engine.h"
#include "tests/ranks/engine_harness.h"

namespace outrider::test {
namespace {

const std::string kPrompt = "Once upon a time there was";
const char* const kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},
        "age":{"type":"integer","minimum":1,"maximum":120},
        "kind":{"enum":["king","queen","fox"]}},"required":["name","age","kind"]})";
const char* const kRegex = "(red|green|blue) [a-z]{3,8}!";

SamplingParams with_grammar(SamplingParams params, GrammarKind kind, const std::string& text) {
  Grammar grammar{kind, text, {}, {}};
  params.grammar = std::make_shared<const Grammar>(grammar);
  return params;
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  FinishReason finish_reason;
  SpeculationStats stats;
};

std::vector<Answer> answers_of(const RunConfig& config, std::vector<Ask> asks) {
  std::vector<Answer> answers;
  run_engine(config, [&](const FrontEndContext& context) {
    for (Ask& ask : asks) {
      Grammar grammar = *ask.params.grammar;
      grammar.end_token_ids = context.model_config.eos_token_ids;
      ask.params.stop_token_ids = context.model_config.eos_token_ids;
      ask.params.grammar = std::make_shared<const Grammar>(std::move(grammar));
    }
    for (const Outcome& outcome : ask_all(context, asks)) {
      EXPECT_EQ(outcome.error, "");
      answers.push_back({context.tokenizer->decode(outcome.tokens),
                         outcome.tokens,
                         outcome.finish_reason,
                         outcome.stats});
    }
  });
  return answers;
}

std::vector<Ask> asks() {
  std::vector<Ask> list;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const SamplingParams params = seed == 0 ? greedy(100) : seeded(1.0f, seed, 100);
    list.push_back({kPrompt, with_grammar(params, GrammarKind::kCompactJson, kSchema)});
    list.push_back({kPrompt, with_grammar(params, GrammarKind::kRegex, kRegex)});
  }
  return list;
}

// Of kRegex.
bool is_colored_word(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || !text.ends_with('!')) return false;
  const std::string_view color = text.substr(0, space);
  const std::string_view word = text.substr(space + 1, text.size() - space - 2);
  return (color == "red" || color == "green" || color == "blue") && word.size() >= 3 &&
         word.size() <= 8 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

void expect_of_grammar(const std::vector<Answer>& answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::string& text = answers[i].text;
    ASSERT_EQ(answers[i].finish_reason, FinishReason::kStop) << text;
    if (i % 2 == 1) {
      EXPECT_TRUE(is_colored_word(text)) << text;
      continue;
    }
    const auto document = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(document.is_object()) << text;
    EXPECT_EQ(document.size(), 3u) << text;
    EXPECT_TRUE(document["name"].is_string()) << text;
    EXPECT_TRUE(document["age"].is_number_integer() && document["age"] >= 1 &&
                document["age"] <= 120)
        << text;
    const std::string kind = document["kind"];
    EXPECT_TRUE(kind == "king" || kind == "queen" || kind == "fox") << text;
  }
}

class StructuredOutputEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  }
};

TEST_F(StructuredOutputEngine, TextsAreOfTheirGrammarAndTheSameWhoeverDrafts) {
  const std::vector<Answer> plain = answers_of(embedded_config(1, 0), asks());
  expect_of_grammar(plain);
  RunConfig grammar = embedded_config(1, 0);
  grammar.speculative.method = "grammar";
  RunConfig ngram = embedded_config(2, 0);
  ngram.speculative.method = "ngram";
  for (const RunConfig& config :
       {embedded_config(2, 0), embedded_config(1, 4), embedded_config(2, 4), grammar, ngram}) {
    const std::vector<Answer> others = answers_of(config, asks());
    ASSERT_EQ(others.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(others[i].tokens, plain[i].tokens) << i;
  }
}

// The model's own text up to its first full stop, then what the grammar allows.
TEST_F(StructuredOutputEngine, AGrammarBeginsBehindTheReasoningOnEveryRank) {
  const auto tokenizer = Tokenizer::load(model_folder("embedded", Role::kTarget));
  const int32_t stop = *tokenizer->token_id(".");
  const auto asked = [&] {
    std::vector<Ask> list = asks();
    for (Ask& ask : list) {
      Grammar grammar = *ask.params.grammar;
      grammar.reasoning = {{}, {stop}, true};
      ask.params.max_tokens = 200;
      ask.params.grammar = std::make_shared<const Grammar>(std::move(grammar));
    }
    return list;
  };
  const std::vector<Answer> plain = answers_of(embedded_config(1, 0), asked());
  std::vector<Answer> behind;
  for (Answer answer : plain) {
    const auto end = std::find(answer.tokens.begin(), answer.tokens.end(), stop);
    ASSERT_NE(end, answer.tokens.end()) << answer.text;
    EXPECT_GE(end - answer.tokens.begin(), 3) << answer.text;
    answer.text = tokenizer->decode({end + 1, answer.tokens.end()});
    behind.push_back(std::move(answer));
  }
  expect_of_grammar(behind);
  RunConfig grammar = embedded_config(1, 0);
  grammar.speculative.method = "grammar";
  for (const RunConfig& config : {embedded_config(2, 4), embedded_config(1, 4), grammar}) {
    const std::vector<Answer> others = answers_of(config, asked());
    ASSERT_EQ(others.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(others[i].tokens, plain[i].tokens) << i;
  }
}

TEST_F(StructuredOutputEngine, UnseededTextsAreOfTheirGrammarUnderEveryRule) {
  for (const VerifyMode mode : {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled}) {
    std::vector<Ask> list = asks();
    for (Ask& ask : list) {
      const auto grammar = ask.params.grammar;
      ask.params = sampled(1.0f, 100);
      ask.params.grammar = grammar;
      ask.params.verify_mode = mode;
    }
    expect_of_grammar(answers_of(embedded_config(2, 4), list));
  }
}

// A draft that does not mask would be rejected nearly always.
TEST_F(StructuredOutputEngine, TheDraftMasksAndForcedTokensAreAccepted) {
  RunConfig grammar = embedded_config(1, 0);
  grammar.speculative.method = "grammar";
  for (const RunConfig& config : {patient(embedded_config(1, 4)), grammar}) {
    int num_drafted = 0;
    int num_accepted = 0;
    for (const Answer& answer : answers_of(config, asks())) {
      num_drafted += answer.stats.num_draft_tokens;
      num_accepted += answer.stats.num_accepted_tokens;
    }
    EXPECT_GT(num_drafted, 50);
    EXPECT_GT(num_accepted, num_drafted / 3);
  }
}

}  // namespace
}  // namespace outrider::test
