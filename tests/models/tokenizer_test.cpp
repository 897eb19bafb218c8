// The tokenizer's own behaviour: options, user text, special tokens, refusals, limits, threads.
#include "models/text/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "models/text/streaming_decoder.h"
#include "runtime/base/error.h"
#include "tests/models/tokenizer_test_util.h"

namespace outrider {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::shared_ptr<const Tokenizer> golden(const std::string& kind) {
  return Tokenizer::load(test::golden_dir() / kind);
}

std::string golden_json(const std::string& kind) {
  return test::read_all(test::golden_dir() / kind / "tokenizer.json");
}

json tiny_json() {
  return json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<x>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abb": 3}, "merges": ["a b", ["ab", "b"]]}
  })");
}

std::shared_ptr<const Tokenizer> from(const json& spec, const std::string& config = "") {
  return Tokenizer::from_json(spec.dump(), config);
}

// Loading must fail with a sentence that contains `words`.
void expect_refused(const std::string& text,
                    const std::string& words,
                    const std::string& config = "") {
  try {
    Tokenizer::from_json(text, config);
    FAIL() << "accepted; expected: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

void expect_edit_refused(const std::function<void(json&)>& edit, const std::string& words) {
  json spec = tiny_json();
  edit(spec);
  expect_refused(spec.dump(), words);
}

TEST(Tokenizer, BothMergeForms) {
  const auto tokenizer = from(tiny_json());
  EXPECT_EQ(tokenizer->encode("abb"), Ids({3}));
  EXPECT_EQ(tokenizer->encode("aabbb<x>b"), Ids({0, 3, 1, 4, 1}));
  EXPECT_EQ(tokenizer->encode("azb"), Ids({2})) << "without unk_token unknown characters vanish";
  EXPECT_EQ(tokenizer->vocab_size(), 5);
}

TEST(Tokenizer, IdsAndTexts) {
  const auto tokenizer = golden("llama3");
  const auto bos = tokenizer->token_id("<|begin_of_text|>");
  ASSERT_TRUE(bos.has_value());
  EXPECT_TRUE(tokenizer->is_special(*bos));
  EXPECT_EQ(tokenizer->bos_id(), bos);
  EXPECT_EQ(tokenizer->token_text(*bos), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer->token_bytes(*bos), "<|begin_of_text|>");
  const auto the = tokenizer->token_id("\u0120the");
  ASSERT_TRUE(the.has_value());
  EXPECT_EQ(tokenizer->token_bytes(*the), " the");
  EXPECT_FALSE(tokenizer->is_special(*the));
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  for (const int32_t id : {-1, tokenizer->vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->token_text(id), "");
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->decode(Ids({id})), "");
  }
}

TEST(Tokenizer, TokenBytesJoinToTheText) {
  const std::string text = "Hello, wörld \U0001F415 ran 12\n水";
  for (const char* kind : {"gpt2", "llama3", "smollm", "llama2", "metaspace_first"}) {
    const auto tokenizer = golden(kind);
    std::string bytes;
    for (const int32_t id : tokenizer->encode(text, {.add_special_tokens = false}))
      bytes += tokenizer->token_bytes(id);
    if (bytes.size() > text.size()) bytes.erase(0, 1);  // SentencePiece's leading space
    EXPECT_EQ(bytes, text) << kind;
  }
}

TEST(Tokenizer, SpecialTokensOnRequestOnly) {
  const auto tokenizer = golden("llama3");
  const int32_t bos = *tokenizer->token_id("<|begin_of_text|>");
  const int32_t end = *tokenizer->token_id("<|eot_id|>");
  const Ids with = tokenizer->encode("a<|eot_id|>");
  EXPECT_EQ(with.front(), bos);
  EXPECT_EQ(with.back(), end);
  const Ids plain = tokenizer->encode("a<|eot_id|>",
                                      {.add_special_tokens = false, .parse_special_tokens = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), bos), 0);
  EXPECT_EQ(tokenizer->decode(plain), "a<|eot_id|>");
  EXPECT_EQ(tokenizer->decode(with, true), "a");
  EXPECT_EQ(tokenizer->decode(with, false), "<|begin_of_text|>a<|eot_id|>");
}

// A user writes a control token, whole, in two halves around the template's text, or at an edge.
TEST(Tokenizer, UserTextNeverBecomesASpecialToken) {
  const std::string token = "<|endoftext|>";
  for (const std::string& kind : test::golden_kinds()) {
    const auto tokenizer = golden(kind);
    const int32_t id = *tokenizer->token_id(token);
    const std::string text = token + "x" + token + " y" + token;
    const size_t second = token.size() + 1;
    const auto count = [&](std::vector<TextSpan> spans) {
      const Ids ids = tokenizer->encode(text, {.literal_spans = spans});
      return std::count(ids.begin(), ids.end(), id);
    };
    EXPECT_EQ(count({}), 3) << kind;
    EXPECT_EQ(count({{second, second + token.size()}}), 2) << kind;
    EXPECT_EQ(count({{second + 3, second + 4}}), 2) << kind;
    EXPECT_EQ(count({{second - 1, second}}), 3) << kind;
    EXPECT_EQ(count({{second + token.size(), second + token.size() + 2}}), 3) << kind;
    EXPECT_EQ(count({{0, 1}, {second + token.size() - 1, second + token.size() + 1}}), 1) << kind;
    EXPECT_EQ(count({{0, text.size()}}), 0) << kind;
    EXPECT_EQ(count({{0, SIZE_MAX}, {9, 3}, {SIZE_MAX, SIZE_MAX}}), 0) << kind;
  }
}

TEST(Tokenizer, UserTextStaysMarkedThroughNormalization) {
  json spec =
      json::parse(golden_json("gpt2"));  // its <|endoftext|> is searched after normalization
  spec["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "NFKC"}, {"type": "Lowercase"},
      {"type": "Replace", "pattern": {"String": "%"}, "content": "<|endoftext|>"}]})");
  const auto tokenizer = from(spec);
  const int32_t id = *tokenizer->token_id("<|endoftext|>");
  const std::string text = "<|endoftext|>e\u0301 % \uFF1C|endoftext|> <|ENDOFTEXT|>";
  const auto count = [&](std::vector<TextSpan> spans) {
    const Ids ids = tokenizer->encode(text, {.literal_spans = spans});
    return std::count(ids.begin(), ids.end(), id);
  };
  EXPECT_EQ(count({}), 4);
  EXPECT_EQ(count({{13, 16}}), 4);
  EXPECT_EQ(count({{13, 18}}), 3) << "the % is the user's";
  EXPECT_EQ(count({{13, text.size()}}), 1);
}

TEST(Tokenizer, MergesCannotBuildASpecialToken) {
  json spec = tiny_json();
  spec["added_tokens"][0]["id"] = 3;
  spec["added_tokens"][0]["content"] = "abb";
  const auto tokenizer = from(spec);
  EXPECT_EQ(tokenizer->encode("abb"), Ids({3}));
  const EncodeOptions options{.parse_special_tokens = false};
  EXPECT_EQ(tokenizer->encode("abb", options), Ids({2, 1}));
  spec["model"]["ignore_merges"] = true;
  EXPECT_EQ(from(spec)->encode("abb", options), Ids({2, 1}));
}

TEST(Tokenizer, LlamaClassesFollowAddBosToken) {
  const std::string llama2 = golden_json("llama2");
  const auto first_two = [&](const std::string& config) {
    const Ids ids = Tokenizer::from_json(llama2, config)->encode("a");
    return Ids{ids.front(), ids.back()};
  };
  const std::string names = R"("bos_token": "<s>", "eos_token": {"content": "</s>"})";
  const Ids plain = Tokenizer::from_json(llama2, "")->encode("a", {.add_special_tokens = false});
  EXPECT_EQ(first_two("")[0], 1);
  EXPECT_EQ(first_two(R"({"tokenizer_class": "LlamaTokenizer", )" + names + "}")[0], 1);
  EXPECT_EQ(first_two(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, )" + names +
                      "}")[0],
            plain.front());
  EXPECT_EQ(first_two(R"({"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": true, )" +
                      names + "}")[1],
            2);
  EXPECT_EQ(first_two(R"({"tokenizer_class": "OtherTokenizer", )" + names + "}")[0], 1)
      << "the file's own template stays";
  const auto tokenizer = Tokenizer::from_json(llama2, "{" + names + "}");
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(Tokenizer::from_json(llama2, R"({"bos_token": "<none>"})")->bos_id(), std::nullopt);
}

// As transformers 5.24: null is no token, and leaves the file's template.
TEST(Tokenizer, LlamaClassesHaveTokensOfTheirOwn) {
  const std::string llama2 = golden_json("llama2");
  for (const char* more : {"", R"(, "bos_token": null)"}) {
    const std::string config = R"({"tokenizer_class": "LlamaTokenizer")" + std::string(more) + "}";
    EXPECT_EQ(Tokenizer::from_json(llama2, config)->encode("a").front(), 1) << more;
  }
}

// transformers 5.24 and 4: whatever tokenizer.json says of it.
TEST(Tokenizer, WhatTheConfigurationNamesIsSpecial) {
  for (const char* added : {"", R"({"id":3,"content":"<e>","special":false})"}) {
    const std::string file =
        R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"<":2,"<e>":3,"e":4,">":5},"merges":[]},
            "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
            "decoder":{"type":"ByteLevel"},"added_tokens":[)" +
        std::string(added) + "]}";
    const auto tokenizer = Tokenizer::from_json(file, R"({"eos_token":"<e>"})");
    EXPECT_EQ(tokenizer->encode("a<e>b"), (Ids{0, 3, 1})) << added;
    EXPECT_EQ(tokenizer->decode(Ids{0, 3, 1}, true), "ab") << added;
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8) {
  const auto tokenizer = golden("gpt2");
  const std::string bad =
      "a\xFF"
      "b\xE6\xB0"
      "c\xED\xA0\x80\xF0\x9F\x90";
  const std::string replaced =
      "a\uFFFD"
      "b\uFFFD"
      "c\uFFFD\uFFFD\uFFFD\uFFFD";
  EXPECT_EQ(tokenizer->encode(bad), tokenizer->encode(replaced));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(bad)), replaced);
  const std::vector<TextSpan> spans = {{1, 2}};
  const Ids ids = tokenizer->encode("\xFF\xFF\xFF<|endoftext|>", {.literal_spans = spans});
  EXPECT_EQ(ids.back(), *tokenizer->token_id("<|endoftext|>"));
}

TEST(Tokenizer, OneMebibyteWord) {
  for (const std::string& kind : test::golden_kinds()) {
    const auto tokenizer = golden(kind);
    for (const std::string unit : {"a", "the", "\xE6\xB0\xB4"}) {
      std::string word;
      while (word.size() < (size_t{1} << 20)) word += unit;
      const Ids ids = tokenizer->encode(word, {.add_special_tokens = false});
      ASSERT_FALSE(ids.empty());
      if (kind != "odd" && !kind.starts_with("unigram")) {
        std::string text = tokenizer->decode(ids);
        if (kind == "prefix_space" || kind == "metaspace_always") text.erase(0, 1);
        EXPECT_EQ(text, word) << kind << " " << unit;
      }
    }
  }
}

TEST(Tokenizer, ManyCombiningMarksAreSortedNotBubbled) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0316";
  const auto tokenizer = golden("qwen2");
  const Ids ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids).substr(0, 6), "\u00E1\u0316\u0316");
}

TEST(Tokenizer, ThreadsAgree) {
  const auto tokenizer = golden("llama3");
  const json texts = json::parse(test::read_all(test::golden_dir() / "texts.json"));
  std::vector<Ids> expected;
  for (const json& text : texts)
    expected.push_back(golden("llama3")->encode(text.get<std::string>()));
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < num_wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 3 * texts.size(); ++i) {
        const size_t k = (i * (t + 1)) % texts.size();
        num_wrong[t] += tokenizer->encode(texts[k].get<std::string>()) != expected[k];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(num_wrong.begin(), num_wrong.end(), 0), 0);
}

TEST(TokenizerRefuses, WhatIsMissingOrWrong) {
  expect_refused("", "not valid JSON");
  expect_refused("[]", "top level");
  expect_refused("{}", "model must be an object");
  expect_refused(std::string(100'000, '['), "deeper than 32");
  expect_refused(R"({"a": ")" + std::string(10, '\xFF') + "\"}", "not valid JSON");
  expect_refused(std::string((size_t{64} << 20) + 1, ' '), "larger than 64 MiB");
  expect_refused(tiny_json().dump(), "top level", "[1]");
  expect_refused(tiny_json().dump(), "must be true or false", R"({"add_bos_token": 1})");
  EXPECT_THROW(Tokenizer::load("/no/such/folder"), Error);
  expect_edit_refused([](json& s) { s["model"].erase("vocab"); }, "vocab must be an object");
  expect_edit_refused([](json& s) { s["model"].erase("merges"); }, "merges must be an array");
  expect_edit_refused([](json& s) { s["model"]["type"] = "WordPiece"; },
                      "model type \"WordPiece\" is not supported, only BPE and Unigram are");
  expect_edit_refused([](json& s) { s["model"]["type"] = "WordLevel"; }, "\"WordLevel\"");
  expect_edit_refused([](json& s) { s["model"]["dropout"] = 0.1; }, "dropout");
  expect_edit_refused([](json& s) { s["model"]["end_of_word_suffix"] = "</w>"; },
                      "end_of_word_suffix");
  expect_edit_refused([](json& s) { s["model"]["unk_token"] = "?"; }, "unk_token");
}

TEST(TokenizerRefuses, BadIdsAndMerges) {
  for (const json& id : {json(-1), json(1.5), json("1"), json(2'000'000), json(1e30), json(true)}) {
    expect_edit_refused([&](json& s) { s["model"]["vocab"]["a"] = id; }, "token id must be");
    expect_edit_refused([&](json& s) { s["added_tokens"][0]["id"] = id; }, "token id must be");
  }
  expect_edit_refused([](json& s) { s["model"]["vocab"]["a"] = 1; }, "two tokens have the id 1");
  expect_edit_refused([](json& s) { s["added_tokens"][0]["id"] = 1; }, "two tokens have the id 1");
  expect_edit_refused([](json& s) { s["added_tokens"][0]["content"] = "a"; }, "has two ids");
  for (const json& merge :
       {json("ab"), json("a b b"), json(1), json::array({"a"}), json::array({"a", 1})}) {
    expect_edit_refused([&](json& s) { s["model"]["merges"][0] = merge; }, "a merge must be");
  }
  expect_edit_refused([](json& s) { s["model"]["merges"][0] = "a z"; }, "not in the vocabulary");
  expect_edit_refused([](json& s) { s["model"]["merges"][0] = "b a"; }, "not in the vocabulary");
}

TEST(TokenizerRefuses, StagesItDoesNotKnowByName) {
  const auto refuse = [](const char* stage, const char* value, const char* words) {
    expect_edit_refused([&](json& s) { s[stage] = json::parse(value); }, words);
  };
  refuse("normalizer", R"({"type": "Uppercase"})", "\"Uppercase\"");
  refuse("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "??"})", "not base64");
  for (const char* cut_off : {"", "AAA", "/////wAAAAA=", "BQAAAAAAAAAA"})
    refuse("normalizer",
           (R"({"type": "Precompiled", "precompiled_charsmap": ")" + std::string(cut_off) + "\"}")
               .c_str(),
           "precompiled_charsmap is cut off");
  refuse(
      "normalizer", R"({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})", "compile");
  refuse("normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": ""})", "empty");
  refuse("pre_tokenizer", R"({"type": "UnicodeScripts"})", "\"UnicodeScripts\"");
  refuse("pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})", "one character");
  refuse("pre_tokenizer",
         R"({"type": "Split", "pattern": {"Regex": "[a&&]"}, "behavior": "Isolated"})",
         "an empty class");
  refuse("pre_tokenizer",
         (R"({"type": "Split", "pattern": {"Regex": ")" + std::string(100, '[') + "a" +
          std::string(100, ']') + R"("}, "behavior": "Isolated"})")
             .c_str(),
         "too deep");
  refuse("pre_tokenizer",
         R"({"type": "Split", "pattern": {"Regex": "a{1,3}+"}, "behavior": "Isolated"})",
         "possessive");
  refuse("pre_tokenizer",
         R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sometimes"})",
         "Sometimes");
  refuse("decoder", R"({"type": "WordPiece"})", "\"WordPiece\"");
  refuse("decoder", R"({"type": "BPEDecoder", "suffix": "</w>"})", "BPEDecoder");
  refuse("decoder",
         R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
         "ByteFallback after Fuse");
  refuse("decoder",
         R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
             {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}]})",
         "after Fuse");
  refuse("post_processor", R"({"type": "RobertaProcessing", "cls": ["<s>", 1]})", "sep must be");
  refuse("post_processor", R"({"type": "Other"})", "\"Other\"");
  refuse("post_processor",
         R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<q>"}}]})",
         "<q>");
  refuse("post_processor", R"({"type": "TemplateProcessing", "single": []})", "exactly once");
  refuse("post_processor",
         R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "q"}},
             {"Sequence": {"id": "A"}}], "special_tokens": {"q": {"ids": [99]}}})",
         "unknown id 99");
}

TEST(Tokenizer, StripAtTheEndWaitsForWhatFollows) {
  json spec = tiny_json();
  spec["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
      {"type": "Strip", "content": "b", "start": 1, "stop": 2}]})");
  const auto tokenizer = from(spec);
  const Ids ids = {1, 1, 0, 1, 0, 3, 1};  // b b a b a abb b
  EXPECT_EQ(tokenizer->decode(ids), "babaab");
  StreamingDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  EXPECT_EQ(text, "babaab");
  EXPECT_EQ(decoder.flush(), "");
  spec["decoder"]["decoders"].erase(0);
  EXPECT_EQ(from(spec)->decode(ids), "aaa") << "without Fuse each token is stripped";
}

json unigram_json() {
  json spec = tiny_json();
  spec["added_tokens"] = json::array();
  spec["model"] = json::parse(R"({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab":
      [["<unk>", 0], ["a", -1], ["b", -1], ["ab", -2], ["aab", -3], ["<0xC3>", -9]]})");
  return spec;
}

TEST(TokenizerUnigram, TheFirstOfEquallyGoodWaysStays) {
  const auto tokenizer = from(unigram_json());
  EXPECT_EQ(tokenizer->encode("ab"), Ids({3})) << "the piece that begins first";
  EXPECT_EQ(tokenizer->encode("aab"), Ids({4}));
  EXPECT_EQ(tokenizer->encode("axyzb"), Ids({1, 0, 2})) << "unknown characters are one token";
  EXPECT_EQ(tokenizer->encode("<unk>x"), Ids({0}));
}

TEST(TokenizerUnigram, BytesStandForWhatIsUnknownWhenAllAreThere) {
  json spec = unigram_json();
  spec["model"]["byte_fallback"] = true;
  EXPECT_EQ(from(spec)->encode("a\u00e9"), Ids({1, 0}));
  spec["model"]["vocab"].push_back({"<0xA9>", -9});
  EXPECT_EQ(from(spec)->encode("a\u00e9"), Ids({1, 5, 6}));
}

TEST(TokenizerUnigram, RefusesWhatIsWrong) {
  const auto refuse = [](const std::function<void(json&)>& edit, const std::string& words) {
    json spec = unigram_json();
    edit(spec["model"]);
    expect_refused(spec.dump(), words);
  };
  refuse([](json& m) { m["vocab"] = json::object(); }, "must be an array of pieces");
  refuse([](json& m) { m["vocab"] = json::array(); }, "must be an array of pieces");
  refuse([](json& m) { m["vocab"][1] = {"a"}; }, "a piece and its score");
  refuse([](json& m) { m["vocab"][1] = {"a", "b"}; }, "a piece and its score");
  refuse([](json& m) { m["unk_id"] = 6; }, "unk_id is not in the vocabulary");
  json spec = unigram_json();
  spec["model"].erase("unk_id");
  const auto tokenizer = from(spec);
  EXPECT_EQ(tokenizer->encode("ab"), Ids({3}));
  EXPECT_THROW(tokenizer->encode("ax"), Error);
}

TEST(TokenizerUnigram, AUsersTextNeverBecomesAControlToken) {
  json spec = unigram_json();
  spec["model"]["vocab"].push_back({"</s>", 0});
  spec["normalizer"] = {{"type", "NFKC"}};
  spec["added_tokens"] = json::parse(R"([{"id": 6, "content": "</s>", "special": true}])");
  // Its wide form becomes the token only by normalization.
  EXPECT_EQ(from(spec)->encode("a\uFF1C/s\uFF1E"), Ids({1, 0}));
}

TEST(TokenizerRefuses, PatternThatBacktracksForEver) {
  json spec = tiny_json();
  spec["pre_tokenizer"] = json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(a|aa)+[xy]"}, "behavior": "Isolated"})");
  const auto tokenizer = from(spec);
  EXPECT_THROW(tokenizer->encode(std::string(200, 'a') + "b"), Error);
}

}  // namespace
}  // namespace outrider
