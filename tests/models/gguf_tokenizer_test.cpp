// Tokenizers of GGUF files against their tokenizer.json, by their rules, and as llama.cpp has them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/gguf/gguf_documents.h"
#include "models/text/tokenizer.h"
#include "tests/base/error_sentence.h"
#include "tests/models/gguf_writer.h"
#include "tests/models/model_test_util.h"

namespace outrider {
namespace {

using namespace test;
using Json = nlohmann::json;

// Some tokenizer.json as a GGUF file would have it.
std::string tokenizer_gguf(const Json& json, const std::string& kind, const std::string& pre) {
  const Json& vocab = json.at("model").at("vocab");
  size_t size = 0;
  for (const auto& [token, id] : vocab.items()) size = std::max(size, id.get<size_t>() + 1);
  std::vector<std::string> tokens(size);
  std::vector<int32_t> types(size, 1);
  std::vector<float> scores(size);
  for (const auto& [token, id] : vocab.items()) tokens[id.get<size_t>()] = token;
  for (size_t id = 0; id < size; ++id) {
    if (kind == "llama" && tokens[id].starts_with("<0x")) types[id] = 6;
  }
  for (const Json& added : json.at("added_tokens"))
    if (const size_t id = added.at("id").get<size_t>(); id < size)
      types[id] = added.at("content") == "<unk>" ? 2 : 3;
  std::vector<std::string> merges;
  for (const Json& merge : json.at("model").at("merges")) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    // The sooner a token is made, the better SentencePiece has found it.
    std::string made = merges.back();
    made.erase(made.find(' ', 1), 1);
    float& score = scores.at(vocab.at(made).get<size_t>());
    if (score == 0) score = -static_cast<float>(merges.size());
  }
  GgufWriter gguf;
  gguf.text("tokenizer.ggml.model", kind);
  gguf.text("tokenizer.ggml.pre", pre);
  gguf.texts("tokenizer.ggml.tokens", tokens);
  gguf.numbers("tokenizer.ggml.token_type", 5, types);
  gguf.numbers("tokenizer.ggml.scores", 6, scores);
  if (kind == "gpt2") gguf.texts("tokenizer.ggml.merges", merges);
  gguf.number("tokenizer.ggml.bos_token_id", 1);
  gguf.number("tokenizer.ggml.unknown_token_id", 0);
  gguf.flag("tokenizer.ggml.add_bos_token", kind == "llama");
  gguf.text("tokenizer.chat_template", "{{ messages[0].content }}");
  return gguf.whole();
}

void expect_same_ids(const std::filesystem::path& folder, const std::string& gguf_bytes) {
  TempDir dir;
  const auto own = Tokenizer::load(written(dir, gguf_bytes));
  const auto theirs = Tokenizer::load(folder);
  std::string text =
      "Hello  world!\n\n it's 12345 o'clock\t\u00e9\u4f60\u597d \xf0\x9f\xa6\x99 x=1;<s>";
  if (const auto book = *data_dir() / "text" / "grimm.txt"; std::filesystem::exists(book))
    text += read_bytes(book).substr(0, 200000);
  const EncodeOptions plain{.add_special_tokens = false, .parse_special_tokens = true};
  const auto ids = own->encode(text, plain);
  EXPECT_EQ(ids, theirs->encode(text, plain));
  EXPECT_EQ(own->decode(ids), theirs->decode(ids));
}

TEST(GgufTokenizer, GivesTheIdsOfItsTokenizerJson) {
  if (!data_dir()) GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const auto folder = *data_dir() / "tokenizers";
  const auto json_of = [&](const char* name) {
    return Json::parse(read_bytes(folder / name / "tokenizer.json"));
  };
  expect_same_ids(folder / "smollm2", tokenizer_gguf(json_of("smollm2"), "gpt2", "smollm"));
  expect_same_ids(folder / "llama2-spm", tokenizer_gguf(json_of("llama2-spm"), "llama", "default"));
}

// Tokens are bytes, and pairs of bytes that a rule may keep together or cut.
std::vector<std::string> pieces_of(const std::string& pre, const std::string& text) {
  GgufWriter gguf;
  std::vector<std::string> tokens;
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(std::string(1, c));
  for (const char* token : {"1", "2", ".", "\u0120", "11", "111", "1111", "a1", "..", "\u0120a"})
    tokens.push_back(token);
  gguf.text("tokenizer.ggml.model", "gpt2");
  if (!pre.empty()) gguf.text("tokenizer.ggml.pre", pre);
  gguf.texts("tokenizer.ggml.tokens", tokens);
  gguf.texts("tokenizer.ggml.merges", {"1 1", "11 1", "11 11", "a 1", ". .", "\u0120 a"});
  TempDir dir;
  const auto tokenizer = Tokenizer::load(written(dir, gguf.whole()));
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer->encode(text, {.add_special_tokens = true}))
    pieces.push_back(tokens.at(static_cast<size_t>(id)));
  return pieces;
}

// As in Phi 3's tokenizer.json, and in llama.cpp.
TEST(GgufTokenizer, Phi3sTokensTakeTheSpaceBehindThem) {
  GgufWriter gguf;
  gguf.text("general.architecture", "phi3");
  gguf.text("tokenizer.ggml.model", "llama");
  gguf.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\u2581", "a", "<|end|>", "<0x0A>"});
  gguf.numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{2, 3, 3, 1, 1, 3, 6});
  gguf.numbers("tokenizer.ggml.scores", 6, std::vector<float>(7));
  gguf.number("tokenizer.ggml.unknown_token_id", 0);
  gguf.flag("tokenizer.ggml.add_bos_token", false);
  TempDir dir;
  const auto tokenizer = Tokenizer::load(written(dir, gguf.whole()));
  const EncodeOptions plain{.add_special_tokens = false, .parse_special_tokens = true};
  EXPECT_EQ(tokenizer->encode("<|end|>\n<|end|>", plain), (std::vector<int32_t>{5, 5}));
  const auto behind_bos = tokenizer->encode("<s>\n", plain);
  EXPECT_EQ(behind_bos.back(), 6);
}

TEST(GgufTokenizer, CutsByTheRuleOfItsName) {
  using Pieces = std::vector<std::string>;
  for (const char* pre : {"default", "gpt-2", "olmo"})
    EXPECT_EQ(pieces_of(pre, "1111.."), Pieces({"1111", ".."})) << pre;
  for (const char* pre : {"llama-bpe",
                          "dbrx",
                          "smaug-bpe",
                          "glm4",
                          "chatglm-bpe",
                          "gpt-4o",
                          "minimax-m2",
                          "deepseek-v3",
                          "falcon",
                          "kimi-k2"})
    EXPECT_EQ(pieces_of(pre, "a1111.."), Pieces({"a", "111", "1", ".."})) << pre;
  for (const char* pre :
       {"smollm", "mellum2", "refact", "deepseek-coder", "qwen2", "stablelm2", "tekken"})
    EXPECT_EQ(pieces_of(pre, "a11.. a"), Pieces({"a", "1", "1", "..", "\u0120a"})) << pre;
  EXPECT_TRUE(fails_with([] { pieces_of("bloom", "a"); }, "the pre-tokenizer 'bloom'"));
  EXPECT_TRUE(fails_with([] { pieces_of("", "a"); }, "'tokenizer.ggml.pre' is missing"));
}

// They are sorted, which NaN would lead astray.
TEST(GgufTokenizer, RefusesScoresThatAreNoNumbers) {
  const auto refusal = [](float score) {
    GgufWriter gguf;
    gguf.text("tokenizer.ggml.model", "llama");
    gguf.texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
    gguf.numbers<float>("tokenizer.ggml.scores", 6, {0, -1, score});
    gguf.numbers<float>("tokenizer.ggml.token_type", 6, {1, 1, 1});
    TempDir dir;
    return error_of([&] { gguf_tokenizer_json(GgufFile(written(dir, gguf.whole()))); });
  };
  EXPECT_EQ(refusal(-2), "no error");
  EXPECT_NE(refusal(std::nanf("")).find("'tokenizer.ggml.scores' holds"), std::string::npos);
}

}  // namespace
}  // namespace outrider
