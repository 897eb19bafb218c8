// Equal ids and texts to Hugging Face tokenizers on the golden tokenizers
// (tools/make_tokenizer_golden.py) and, when there, on real ones with expected ids.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "models/text/streaming_decoder.h"
#include "models/text/tokenizer.h"
#include "tests/models/tokenizer_test_util.h"

namespace outrider {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids, bool skip) {
  StreamingDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

class TokenizerGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerGolden, EqualsHuggingFace) {
  const auto dir = test::golden_dir() / GetParam();
  const auto tokenizer = Tokenizer::load(dir);
  const json texts = json::parse(test::read_all(test::golden_dir() / "texts.json"));
  const json cases = json::parse(test::read_all(dir / "cases.json")).at("cases");
  ASSERT_EQ(texts.size(), cases.size());
  ASSERT_GT(texts.size(), 200u);
  size_t num_ids = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const json& expected = cases[i];
    const Ids ids = tokenizer->encode(text, {.add_special_tokens = false});
    EXPECT_EQ(ids, expected.at("ids").get<Ids>()) << texts[i];
    if (expected.contains("ids_with_special")) {
      EXPECT_EQ(tokenizer->encode(text), expected["ids_with_special"].get<Ids>()) << texts[i];
    }
    const std::string decoded = expected.value("decoded", text);
    const std::string decoded_all = expected.value("decoded_all", decoded);
    EXPECT_EQ(tokenizer->decode(ids), decoded);
    EXPECT_EQ(tokenizer->decode(ids, false), decoded_all);
    EXPECT_EQ(streamed(tokenizer, ids, true), decoded);
    EXPECT_EQ(streamed(tokenizer, ids, false), decoded_all);
    num_ids += ids.size();
  }
  EXPECT_GT(num_ids, 2000u);
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         TokenizerGolden,
                         ::testing::ValuesIn(test::golden_kinds()),
                         [](const auto& suite) { return suite.param; });

TEST(TokenizerRealData, SmolLm2ExpectedIds) {
  const auto dir = test::data_dir() / "tokenizers/smollm2";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there";
  const auto tokenizer = Tokenizer::load(dir);
  const json cases = json::parse(test::read_all(dir / "cases.json")).at("cases");
  ASSERT_FALSE(cases.empty());
  for (const json& c : cases) {
    EXPECT_EQ(tokenizer->encode(c.at("text").get<std::string>()), c.at("ids").get<Ids>()) << c;
  }
}

TEST(TokenizerRealData, Llama2SentencePieceExpectedIds) {
  const auto dir = test::data_dir() / "tokenizers/llama2-spm";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there";
  const auto tokenizer = Tokenizer::load(dir);
  const std::string texts = test::read_all(dir / "texts.inp");
  const std::string mark = "\n__ggml_vocab_test__\n";
  std::istringstream lines(test::read_all(dir / "ids.out"));
  size_t begin = 0, num_texts = 0;
  for (size_t end = texts.find(mark); end != std::string::npos; end = texts.find(mark, begin)) {
    const std::string text = texts.substr(begin, end - begin);
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream numbers(line);
    Ids expected;
    for (int32_t id = 0; numbers >> id;) expected.push_back(id);
    EXPECT_EQ(tokenizer->encode(text), expected) << text;
    begin = end + mark.size();
    ++num_texts;
  }
  EXPECT_GT(num_texts, 40u);
}

TEST(TokenizerRealData, ModelsLoadAndAddBos) {
  for (const char* name : {"stories260K", "llama2xs"}) {
    const auto dir = test::data_dir() / "models" / name;
    if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there";
    const auto tokenizer = Tokenizer::load(dir);
    EXPECT_EQ(tokenizer->vocab_size(), 512);
    EXPECT_EQ(tokenizer->bos_id(), 1);
    EXPECT_EQ(tokenizer->eos_id(), 2);
    const Ids ids = tokenizer->encode("Once upon a time");
    ASSERT_GT(ids.size(), 1u);
    EXPECT_EQ(ids[0], 1);
    EXPECT_EQ(tokenizer->decode(ids), "Once upon a time");
  }
}

TEST(TokenizerRealData, BooksSurviveTheRoundTrip) {
  const auto dir = test::data_dir() / "tokenizers/smollm2";
  const auto book = test::data_dir() / "text/sherlock.txt";
  if (!std::filesystem::exists(dir) || !std::filesystem::exists(book)) {
    GTEST_SKIP() << dir << " is not there";
  }
  const auto tokenizer = Tokenizer::load(dir);
  const std::string text = test::read_all(book);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

}  // namespace
}  // namespace outrider
