// The grammar engine: its masks against its own parser token by token, from any history in any
// order and on any shard; where an output may end; forced tokens; grammars that are none.
#include "scheduler/sampling/grammar_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/base/error.h"
#include "scheduler/exactness/toy_model.h"

namespace outrider {
namespace {

constexpr int32_t kEnd = 0;  // a special token: it has no bytes
constexpr std::chrono::milliseconds kLong{60000};

// Every printable character, newline, some longer tokens, and padding behind them.
std::vector<std::string> vocabulary() {
  std::vector<std::string> bytes = {"", "\n"};
  for (char c = ' '; c <= '~'; ++c) bytes.emplace_back(1, c);
  for (const char* text :
       {"\"na", "name", "\":", "\": ", "{\"",  "\"}",      "true", "false", "null", "10",
        "00",   "ab",   "abc", "\xc3", "\xa9", "\xc3\xa9", ", ",   "},",    "[]",   "\", \""}) {
    bytes.emplace_back(text);
  }
  return bytes;
}

class GrammarEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
    engine_ = std::make_unique<const GrammarEngine>(bytes_, vocab_size_);
  }

  std::shared_ptr<const GrammarMask> mask(GrammarKind kind, const std::string& text) const {
    return engine_->mask({kind, text, {kEnd}, {}});
  }

  std::vector<int32_t> allowed(const TokenMask& mask,
                               const std::vector<int32_t>& output,
                               VocabShard shard) const {
    std::vector<uint64_t> words(AllowedBits::num_words(shard), ~uint64_t{0});
    AllowedBits bits(shard, words);
    const std::vector<int32_t> prompt = {5, 6, 7};
    std::vector<int32_t> committed = prompt;
    const size_t num_committed = output.size() / 2;  // the rest is a draft
    committed.insert(committed.end(), output.begin(), output.begin() + num_committed);
    mask.restrict_next({.committed = committed,
                        .num_prompt_tokens = 3,
                        .drafted = std::span(output).subspan(num_committed)},
                       bits);
    std::vector<int32_t> ids;
    for (int32_t id = shard.begin; id < shard.end; ++id) {
      const auto i = static_cast<size_t>(id - shard.begin);
      if ((words[i / 64] >> (i % 64) & 1) != 0) ids.push_back(id);
    }
    return ids;
  }
  std::vector<int32_t> allowed(const TokenMask& mask, const std::vector<int32_t>& output) const {
    return allowed(mask, output, {0, vocab_size_, vocab_size_});
  }

  int32_t id_of(const std::string& token) const {
    return static_cast<int32_t>(std::find(bytes_.begin(), bytes_.end(), token) - bytes_.begin());
  }

  // Letter by letter.
  std::vector<int32_t> ids_of(const std::string& text) const {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(id_of(std::string(1, c)));
    return ids;
  }

  std::string text_of(const std::vector<int32_t>& ids) const {
    std::string text;
    for (int32_t id : ids) text += bytes_[static_cast<size_t>(id)];
    return text;
  }

  std::string fault_of(GrammarKind kind, const std::string& text) const {
    try {
      engine_->check({kind, text, {kEnd}, {}}, kLong);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const std::vector<std::string> bytes_ = vocabulary();
  const int32_t vocab_size_ = static_cast<int32_t>(bytes_.size()) + 13;
  std::unique_ptr<const GrammarEngine> engine_;
};

const char* const kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},
        "ok":{"type":"boolean"},"n":{"type":"array","items":{"type":"integer"},"maxItems":2}},
        "required":["name","ok"]})";

// One mask is asked about texts in any order, and must answer as a fresh one that only goes on.
TEST_F(GrammarEngineTest, AMaskIsAFunctionOfTheHistoryOnEveryShard) {
  std::mt19937_64 random(5);
  const auto walking = mask(GrammarKind::kJsonSchema, kSchema);
  std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> seen;  // text, allowed
  for (int walk = 0; walk < 12; ++walk) {
    const auto fresh = mask(GrammarKind::kJsonSchema, kSchema);
    std::vector<int32_t> text;
    while (text.size() < 80 && (text.empty() || text.back() != kEnd)) {
      const std::vector<int32_t> next = allowed(*fresh, text);
      ASSERT_FALSE(next.empty()) << text_of(text);
      ASSERT_LT(next.back(), std::ssize(bytes_)) << "padding is allowed behind " << text_of(text);
      for (int32_t id : next) {
        ASSERT_EQ(fresh->num_allowed({.committed = text, .num_prompt_tokens = 0, .drafted = {}},
                                     std::vector<int32_t>{id}),
                  1u)
            << text_of(text) << " then " << id;
      }
      seen.emplace_back(text, next);
      text.push_back(next[random() % next.size()]);
    }
  }
  std::shuffle(seen.begin(), seen.end(), random);
  for (const auto& [text, next] : seen) {
    const auto cut = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size_));
    std::vector<int32_t> both = allowed(*walking, text, {0, cut, vocab_size_});
    const std::vector<int32_t> above = allowed(*walking, text, {cut, vocab_size_, vocab_size_});
    both.insert(both.end(), above.begin(), above.end());
    ASSERT_EQ(both, next) << text_of(text);
  }
  EXPECT_GT(seen.size(), 200u);
}

// "<<" ... ">>" may come first, and the grammar is about what follows it: the output cannot end
// before.
TEST_F(GrammarEngineTest, ReasoningIsFreeAndTheGrammarBeginsBehindIt) {
  const ReasoningTokens reasoning = {ids_of("<<"), ids_of(">>"), false};
  const auto regex = engine_->mask({GrammarKind::kRegex, "[0-9]{2}", {kEnd}, reasoning});
  const std::vector<int32_t> all_but_end = [&] {
    std::vector<int32_t> ids(static_cast<size_t>(vocab_size_));
    std::iota(ids.begin(), ids.end(), 0);
    std::erase(ids, kEnd);
    return ids;
  }();
  std::vector<int32_t> first = allowed(*mask(GrammarKind::kRegex, "[0-9]{2}"), {});
  first.push_back(id_of("<"));
  std::sort(first.begin(), first.end());
  EXPECT_EQ(allowed(*regex, {}), first) << "reasoning may begin";
  EXPECT_EQ(allowed(*regex, ids_of("<")), ids_of("<")) << "begun is half done";
  EXPECT_EQ(allowed(*regex, ids_of("<<a")), all_but_end);
  EXPECT_EQ(allowed(*regex, ids_of("<<a>")), all_but_end);
  const auto one = mask(GrammarKind::kRegex, "[0-9]{2}");
  EXPECT_EQ(allowed(*regex, ids_of("<<a>>")), allowed(*one, {}));
  EXPECT_EQ(allowed(*regex, ids_of("<<a>>1")), allowed(*one, ids_of("1")));
  EXPECT_EQ(allowed(*regex, ids_of("<<>>12")), std::vector<int32_t>{kEnd});
  EXPECT_EQ(allowed(*regex, ids_of("1")), allowed(*one, ids_of("1"))) << "there was none";
  // Drafts across the border.
  const std::vector<int32_t> text = ids_of("<<a");
  const TokenHistory history = {.committed = text, .num_prompt_tokens = 0, .drafted = {}};
  EXPECT_EQ(regex->num_allowed(history, ids_of("b>>12")), 5u);
  EXPECT_EQ(regex->num_allowed(history, ids_of("b>>1a")), 4u);
  EXPECT_EQ(regex->num_allowed(history, std::vector<int32_t>{id_of("b"), kEnd}), 1u);
  EXPECT_TRUE(regex->forced_tokens(history, 4).empty());
}

TEST_F(GrammarEngineTest, ReasoningThatThePromptBeganIsFreeFromTheStart) {
  const ReasoningTokens reasoning = {ids_of("<<"), ids_of(">>"), true};
  const auto regex = engine_->mask({GrammarKind::kRegex, "ab", {kEnd}, reasoning});
  EXPECT_EQ(allowed(*regex, {}).size(), static_cast<size_t>(vocab_size_) - 1)
      << "it cannot end yet";
  EXPECT_EQ(allowed(*regex, ids_of(">>")), (std::vector<int32_t>{id_of("a"), id_of("ab")}));
  const std::vector<int32_t> text = ids_of("x>>");
  EXPECT_EQ(regex->forced_tokens({.committed = text, .num_prompt_tokens = 0, .drafted = {}}, 4),
            std::vector<int32_t>{id_of("ab")});
}

TEST_F(GrammarEngineTest, TokensThatAreNotAllowedAreNotAccepted) {
  const auto json = mask(GrammarKind::kJsonSchema, kSchema);
  const std::vector<int32_t> text = ids_of("{\"name\":\"ab");
  const std::vector<int32_t> next = allowed(*json, text);
  int num_forbidden = 0;
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const bool listed = std::binary_search(next.begin(), next.end(), id);
    const TokenHistory history{.committed = text, .num_prompt_tokens = 0, .drafted = {}};
    ASSERT_EQ(json->num_allowed(history, std::vector<int32_t>{id}) == 1, listed) << id;
    num_forbidden += listed ? 0 : 1;
  }
  EXPECT_GT(num_forbidden, 14);
}

TEST_F(GrammarEngineTest, TheEndIsAllowedWhereTheTextIsWholeAndOnlyThere) {
  const auto regex = mask(GrammarKind::kRegex, "ab(cab)*");
  EXPECT_EQ(allowed(*regex, {}), (std::vector<int32_t>{id_of("a"), id_of("ab"), id_of("abc")}));
  EXPECT_EQ(allowed(*regex, ids_of("a")), ids_of("b"));
  EXPECT_EQ(allowed(*regex, ids_of("ab")), (std::vector<int32_t>{kEnd, id_of("c")}));
  const auto whole = mask(GrammarKind::kRegex, "ab");
  EXPECT_EQ(allowed(*whole, ids_of("ab")), std::vector<int32_t>{kEnd});
}

TEST_F(GrammarEngineTest, AnEscapeByXHasTwoDigits) {
  const auto regex = mask(GrammarKind::kRegex, R"([\x1fcd]|\x41b)");
  EXPECT_EQ(allowed(*regex, {}), (std::vector<int32_t>{id_of("A"), id_of("c"), id_of("d")}));
  EXPECT_EQ(allowed(*regex, ids_of("A")), ids_of("b"));
}

// Behind the end, and behind a token that it forbids, a mask has nothing to say.
TEST_F(GrammarEngineTest, HistoriesItWouldNotHaveAllowedAreUnrestricted) {
  const auto regex = mask(GrammarKind::kRegex, "ab");
  std::vector<int32_t> text = ids_of("xab");
  EXPECT_EQ(std::ssize(allowed(*regex, text)), vocab_size_);
  text = ids_of("ab");
  text.push_back(kEnd);
  EXPECT_EQ(std::ssize(allowed(*regex, text)), vocab_size_);
  EXPECT_EQ(std::ssize(allowed(*regex, {-3, 1 << 30})), vocab_size_);
  EXPECT_EQ(allowed(*regex, ids_of("a")), ids_of("b"));
}

TEST_F(GrammarEngineTest, DraftsAreCutAtTheFirstForbiddenToken) {
  const auto regex = mask(GrammarKind::kRegex, "abab");
  const std::vector<int32_t> text = ids_of("a");
  const TokenHistory history{.committed = text, .num_prompt_tokens = 0, .drafted = {}};
  EXPECT_EQ(regex->num_allowed(history, ids_of("bax")), 2u);
  EXPECT_EQ(regex->num_allowed(history, ids_of("xab")), 0u);
  EXPECT_EQ(regex->num_allowed(history, ids_of("bab")), 3u);
}

TEST_F(GrammarEngineTest, WhatMustFollowIsForcedInItsLongestTokens) {
  const auto json =
      mask(GrammarKind::kCompactJson,
           R"({"type":"object","properties":{"name":{"type":"boolean"}},"required":["name"]})");
  const TokenHistory none{};
  EXPECT_EQ(text_of(json->forced_tokens(none, 16)), "{\"name\":");
  EXPECT_EQ(json->forced_tokens(none, 16).size(), 3u);  // {" name ":
  EXPECT_EQ(text_of(json->forced_tokens(none, 2)), "{\"name");
  const std::vector<int32_t> text = ids_of("{\"name\":t");
  const TokenHistory inside{.committed = text, .num_prompt_tokens = 0, .drafted = {}};
  EXPECT_EQ(text_of(json->forced_tokens(inside, 16)), "rue}");
  const std::vector<int32_t> open = ids_of("{\"name\":");
  EXPECT_TRUE(
      json->forced_tokens({.committed = open, .num_prompt_tokens = 0, .drafted = {}}, 16).empty());
}

// Every text of this grammar begins with "a" and goes on with "a", for ever.
TEST_F(GrammarEngineTest, WhatMustFollowWithoutEndIsCut) {
  const auto lark = mask(GrammarKind::kLark, "start: \"a\" word+\nword: start/[a-z]{1,3}/ \"|\"\n");
  const std::vector<int32_t> begun = ids_of("a");
  const TokenHistory history{.committed = begun, .num_prompt_tokens = 0, .drafted = {}};
  EXPECT_EQ(lark->forced_tokens(history, 5), std::vector<int32_t>(5, id_of("a")));
}

TEST_F(GrammarEngineTest, WhatIsNoGrammarIsRefusedWithOneLine) {
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {GrammarKind::kJsonSchema, "{"},
           {GrammarKind::kJsonSchema, R"({"type":"objekt"})"},
           {GrammarKind::kJsonSchema, R"({"$ref":"#/nowhere"})"},
           {GrammarKind::kRegex, "(a"},
           {GrammarKind::kEbnf, "root ::= ("},
           {GrammarKind::kEbnf, "other ::= \"a\""},
           {GrammarKind::kLark, "start: ("},
           {GrammarKind::kStructuralTag, "{}"},
           {GrammarKind::kEbnf, R"(root ::= "\UFFFFFFFF")"},
           {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"\\u{110000}"})"},
           {GrammarKind::kEbnf, "root ::= " + std::string(100000, '(')}}) {
    const std::string fault = fault_of(kind, text);
    EXPECT_FALSE(fault.empty()) << text.substr(0, 80);
    EXPECT_EQ(fault.find('\n'), std::string::npos) << fault;
  }
  EXPECT_EQ(fault_of(GrammarKind::kLark, "start: \"a\" | \"b\" start"), "");
  EXPECT_EQ(fault_of(GrammarKind::kRegex, R"(\U0010FFFF|\u{10FFFF}|\\U00110000)"), "");
}

TEST_F(GrammarEngineTest, ASlowGrammarCostsItsRequestOnly) {
  std::string choices = "root ::= \"0\"";
  for (int i = 1; i < 15000; ++i) choices += " | \"" + std::to_string(i * 7919) + "\"";
  const Grammar slow{GrammarKind::kEbnf, choices, {kEnd}};
  int num_tries = 0;
  do {
    try {
      engine_->check(slow, std::chrono::milliseconds(1));
      ADD_FAILURE() << "compiled within a millisecond";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("longer than 1 ms"), std::string::npos);
    }
    // Who is kept from its core for that millisecond gives up before it has begun.
  } while (!engine_->knows(slow) && ++num_tries < 100);
  EXPECT_EQ(fault_of(GrammarKind::kRegex, "a+"), "");
  EXPECT_TRUE(engine_->knows(slow));  // it goes on, for whoever asks next
  EXPECT_TRUE(engine_->check(slow, kLong).empty());
}

TEST_F(GrammarEngineTest, APreparedGrammarIsThereForItsMask) {
  const Grammar grammar{GrammarKind::kRegex, "ab", {kEnd}};
  EXPECT_FALSE(engine_->knows(grammar));
  engine_->prepare(grammar);
  EXPECT_TRUE(engine_->knows(grammar));
  EXPECT_EQ(allowed(*engine_->mask(grammar), ids_of("ab")), std::vector<int32_t>{kEnd});
}

// What fails is not kept: the same fault is found again, and a mask throws it too.
TEST_F(GrammarEngineTest, AFailedGrammarIsNotKept) {
  const Grammar grammar{GrammarKind::kRegex, "(a", {kEnd}};
  for (int i = 0; i < 2; ++i) EXPECT_THROW(engine_->check(grammar, kLong), Error);
  EXPECT_FALSE(engine_->knows(grammar));
  EXPECT_THROW(engine_->mask(grammar), Error);
}

TEST_F(GrammarEngineTest, WhatTheLibraryLeavesOutOfASchemaIsSaid) {
  const Grammar loose{GrammarKind::kJsonSchema, R"({"type":"number","multipleOf":0.5})", {kEnd}};
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(engine_->check(loose, kLong).empty()) << i;
  EXPECT_TRUE(engine_->check({GrammarKind::kJsonSchema, kSchema, {kEnd}}, kLong).empty());
}

}  // namespace
}  // namespace outrider
