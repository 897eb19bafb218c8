// One vocabulary said in another: which tokens pair up, and that a translated sequence stands for
// the same bytes, however it grew.
#include "models/text/vocabulary_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/models/tokenizer_test_util.h"
#include "tests/models/vocabulary_test_util.h"

namespace outrider {
namespace {

using test::byte_level;
using test::sentence_piece;
using Ids = std::vector<int32_t>;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

VocabularyMap map_of(const TokenizerPtr& target, const TokenizerPtr& draft) {
  return {target, target->vocab_size(), draft, draft->vocab_size()};
}

Ids translated(const VocabularyMap& map, const Ids& ids) {
  TranslatedTokens tokens;
  tokens.extend(map, ids);
  return tokens.ids();
}

std::string bytes_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (int32_t id : ids)
    bytes += tokenizer.is_special(id) ? tokenizer.token_text(id) : tokenizer.token_bytes(id);
  return bytes;
}

Ids ids_of(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  Ids ids;
  for (const std::string& text : texts) {
    EXPECT_TRUE(tokenizer.token_id(text)) << text;
    ids.push_back(tokenizer.token_id(text).value_or(0));
  }
  return ids;
}

std::vector<std::string> with_bytes(std::vector<std::string> pieces) {
  std::vector<std::string> tokens = test::byte_tokens();
  tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  return tokens;
}

TEST(VocabularyMap, PairsByBytesAndEachIdOnce) {
  const auto target = sentence_piece({"<s>"}, with_bytes({"A", "▁A", "AB", "▁"}));
  const auto draft = byte_level({"<s>"}, {"ĠA", "A", "Ġ", "B"});
  const VocabularyMap map = map_of(target, draft);
  EXPECT_EQ(map.draft_id(*target->token_id("<s>")), *draft->token_id("<s>"));
  EXPECT_EQ(map.draft_id(*target->token_id("▁A")), *draft->token_id("ĠA"));
  EXPECT_EQ(map.draft_id(*target->token_id("AB")), -1);
  // Both stand for the byte A, and both are read as the draft's A; it is proposed as the piece.
  EXPECT_EQ(map.draft_id(*target->token_id("A")), *draft->token_id("A"));
  EXPECT_EQ(map.draft_id(*target->token_id("<0x41>")), *draft->token_id("A"));
  EXPECT_EQ(map.draft_id(*target->token_id("<0x42>")), *draft->token_id("B"));
  std::set<int32_t> target_ids;
  std::set<int32_t> draft_ids;
  for (const VocabularyMap::Pair& pair : map.pairs()) {
    EXPECT_EQ(map.draft_id(pair.target_id), pair.draft_id);
    EXPECT_TRUE(target_ids.insert(pair.target_id).second);
    EXPECT_TRUE(draft_ids.insert(pair.draft_id).second);
  }
  EXPECT_EQ(target_ids,
            (std::set<int32_t>{*target->token_id("<s>"),
                               *target->token_id("<0x42>"),
                               *target->token_id("A"),
                               *target->token_id("▁A"),
                               *target->token_id("▁")}));
  EXPECT_EQ(map.draft_id(-1), -1);
  EXPECT_EQ(map.draft_id(1 << 20), -1);
}

TEST(VocabularyMap, DuplicatesFindTheirTwins) {
  const auto tokenizer = sentence_piece({"<s>"}, with_bytes({"A", "▁A"}));
  const VocabularyMap map = map_of(tokenizer, tokenizer);
  EXPECT_EQ(map.pairs().size(), static_cast<size_t>(tokenizer->vocab_size()));
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) EXPECT_EQ(map.draft_id(id), id);
}

TEST(VocabularyMap, RowsBoundBothSides) {
  const auto tokenizer = byte_level({}, {"a", "b", "c", "d"});
  EXPECT_EQ(VocabularyMap(tokenizer, 3, tokenizer, 4).pairs().size(), 3u);
  const VocabularyMap map(tokenizer, 64, tokenizer, 2);
  EXPECT_EQ(map.pairs().size(), 2u);
  EXPECT_EQ(map.draft_id(1), 1);
  EXPECT_EQ(map.draft_id(2), -1);
  EXPECT_EQ(translated(map, {0, 2, 1}), (Ids{0, 1})) << "no row for c in the draft";
}

TEST(VocabularyMap, TheEndOfTextPairsWhateverItsName) {
  const auto target =
      byte_level({"<|im_end|>", "<|endoftext|>"}, {"a"}, {{"eos_token", "<|im_end|>"}});
  const auto draft = byte_level({"</s>", "<|endoftext|>"}, {"a"}, {{"eos_token", "</s>"}});
  EXPECT_EQ(map_of(target, draft).draft_id(0), 0);
  EXPECT_EQ(map_of(target, draft).draft_id(1), 1);
  EXPECT_EQ(map_of(target, draft).pairs().size(), 3u);
  // The draft's only end goes to the target's real one; the other is still read as an end.
  const auto base = byte_level({"<|endoftext|>"}, {"a"}, {{"eos_token", "<|endoftext|>"}});
  const VocabularyMap map = map_of(target, base);
  EXPECT_EQ(map.draft_id(0), 0);
  EXPECT_EQ(map.draft_id(1), 0);
  ASSERT_EQ(map.pairs().size(), 2u);
  EXPECT_EQ(map.pairs()[0].target_id, 0);
  EXPECT_EQ(map.pairs()[1].target_id, 2);
}

TEST(TranslatedTokens, ATextBeginsAsTheDraftBeginsTexts) {
  const nlohmann::json adds_bos = {
      {"bos_token", "<s>"}, {"add_bos_token", true}, {"tokenizer_class", "LlamaTokenizer"}};
  const auto pieces = sentence_piece({"<s>"}, with_bytes({"a", "b"}), adds_bos);
  const auto bytes = byte_level({"<|begin|>"}, {"a", "b"}, {{"bos_token", "<|begin|>"}});
  ASSERT_EQ(pieces->encode("").size(), 1u);
  const Ids ab = ids_of(*pieces, {"<s>", "a", "b"});
  EXPECT_EQ(translated(map_of(bytes, pieces), ids_of(*bytes, {"a", "b"})), ab);
  EXPECT_EQ(translated(map_of(bytes, pieces), ids_of(*bytes, {"<|begin|>", "a", "b"})), ab);
  EXPECT_EQ(translated(map_of(pieces, bytes), ab), ids_of(*bytes, {"a", "b"}));
  EXPECT_EQ(translated(map_of(bytes, bytes), ids_of(*bytes, {"<|begin|>", "a"})),
            ids_of(*bytes, {"<|begin|>", "a"}));
}

TEST(TranslatedTokens, NoSpaceComesInTheMiddle) {
  const auto pieces = sentence_piece({}, with_bytes({"x", "y", "▁", "▁x"}));
  const auto bytes = byte_level({}, {"x", "y", "Ġ", "xy", "Ġxy", "ĠĠ"});
  const VocabularyMap map = map_of(bytes, pieces);
  // A tokenizer that puts a space before every text must not do so within one.
  EXPECT_EQ(bytes_of(*pieces, translated(map, ids_of(*bytes, {"x", "xy", "y"}))), "xxyy");
  EXPECT_EQ(bytes_of(*pieces, translated(map, ids_of(*bytes, {"x", "Ġxy", "ĠĠ", "y"}))), "x xy  y");
  // Nor may one that wants none lose it.
  const auto wide = sentence_piece({}, with_bytes({"x", "y", "▁", "▁x", "▁xy"}));
  EXPECT_EQ(bytes_of(*bytes, translated(map_of(wide, bytes), ids_of(*wide, {"▁xy", "▁x"}))),
            " xy x");
}

TEST(TranslatedTokens, PartsOfCharactersGoByteByByte) {
  // "é" is C3 A9: as byte-level characters "Ã" and "©".
  const auto bytes = byte_level({}, {"a", "Ã", "©", "Ã©", "aÃ", "©a"});
  const auto pieces = sentence_piece({}, with_bytes({"a", "é"}));
  const VocabularyMap map = map_of(bytes, pieces);
  EXPECT_EQ(translated(map, ids_of(*bytes, {"Ã©"})), ids_of(*pieces, {"é"}));
  EXPECT_EQ(translated(map, ids_of(*bytes, {"aÃ", "©a"})), ids_of(*pieces, {"a", "é", "a"}))
      << "a run is one text";
  EXPECT_EQ(translated(map, ids_of(*bytes, {"aÃ", "a"})), ids_of(*pieces, {"a", "<0xC3>", "a"}));
  EXPECT_EQ(translated(map, ids_of(*bytes, {"aÃ", "©"})),
            ids_of(*pieces, {"a", "<0xC3>", "<0xA9>"}));
}

// A chat template's words that the draft does not know are read as they are written, never as the
// control tokens the text might spell.
TEST(TranslatedTokens, UnknownSpecialTokensAreReadAsText) {
  const auto target = byte_level({"<u>"}, {"a", "Ġ"});
  const auto draft = byte_level({"u>"}, {"a", "Ġ", "<", "u", ">"});
  const VocabularyMap map = map_of(target, draft);
  EXPECT_EQ(map.draft_id(0), -1);
  EXPECT_EQ(translated(map, ids_of(*target, {"<u>", "a"})), ids_of(*draft, {"<", "u", ">", "a"}));
}

TEST(TranslatedTokens, UnknownIdsAndEmptySequencesAreNothing) {
  const auto tokenizer = byte_level({}, {"a", "b"});
  const VocabularyMap map(tokenizer, 64, tokenizer, 64);
  EXPECT_TRUE(translated(map, {}).empty());
  EXPECT_EQ(translated(map, {0, 40, 1, -3, 1 << 30, 0}), (Ids{0, 1, 0}));
}

std::set<char> single_bytes(const Tokenizer& tokenizer) {
  std::set<char> bytes;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.token_bytes(id);
    if (text.size() == 1) bytes.insert(text[0]);
  }
  return bytes;
}

// Any ids, committed in pieces of any size: the same as all at once, and the same bytes.
void expect_same_bytes_however_grown(const TokenizerPtr& target,
                                     const TokenizerPtr& draft,
                                     uint32_t seed) {
  const VocabularyMap map = map_of(target, draft);
  ASSERT_GT(map.pairs().size(), 0u);
  std::mt19937 random(seed);
  // A real vocabulary may lack some control characters and bytes no text has.
  const std::set<char> sayable = single_bytes(*draft);
  ASSERT_GT(sayable.size(), 230u);
  size_t num_one_to_one = 0;
  size_t num_others = 0;
  for (int round = 0; round < 20; ++round) {
    Ids ids;
    // Paired and unpaired tokens in runs, some longer than the longest that is encoded at once.
    const size_t share = 1 + random() % 60;
    while (ids.size() < 150) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(target->vocab_size()));
      const std::string bytes = target->token_bytes(id);
      if (target->is_special(id) || !std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
            return sayable.contains(byte);
          }))
        continue;
      const bool wants_pair = random() % share == 0;
      if ((map.draft_id(id) >= 0) != wants_pair && random() % 50 != 0) continue;
      ids.push_back(id);
      ++(map.draft_id(id) >= 0 ? num_one_to_one : num_others);
    }
    TranslatedTokens grown;
    for (size_t length = 0; length < ids.size(); length += 1 + random() % 9)
      grown.extend(map, std::span(ids).first(length));
    grown.extend(map, ids);
    const Ids whole = translated(map, ids);
    ASSERT_EQ(grown.ids(), whole);
    const Ids start = translated(map, {});  // bos, of a tokenizer that adds it
    ASSERT_EQ(bytes_of(*draft, whole), bytes_of(*draft, start) + bytes_of(*target, ids))
        << "round " << round;
    EXPECT_TRUE(std::all_of(whole.begin(), whole.end(), [&](int32_t id) {
      return id >= 0 && id < draft->vocab_size();
    }));
  }
  EXPECT_GT(num_one_to_one, 100u);
  EXPECT_GT(num_others, 100u);
}

TEST(TranslatedTokens, SameBytesHoweverGrown) {
  // Tokenizers with a token for every byte and no rewriting of texts.
  for (const char* target : {"gpt2", "llama3", "smollm", "llama2"}) {
    for (const char* draft : {"gpt2", "llama3", "smollm", "llama2"}) {
      if (std::string_view(target) == draft) continue;
      SCOPED_TRACE(std::string(target) + " to " + draft);
      expect_same_bytes_however_grown(Tokenizer::load(test::golden_dir() / target),
                                      Tokenizer::load(test::golden_dir() / draft),
                                      7);
    }
  }
}

TEST(TranslatedTokens, RealVocabularies) {
  const auto folder = test::data_dir() / "tokenizers";
  if (!std::filesystem::is_directory(folder))
    GTEST_SKIP() << "no ../shared/data and no OUTRIDER_DATA";
  const auto smollm2 = Tokenizer::load(folder / "smollm2");
  const auto llama2 = Tokenizer::load(folder / "llama2-spm");
  expect_same_bytes_however_grown(smollm2, llama2, 1);
  expect_same_bytes_however_grown(llama2, smollm2, 2);
}

}  // namespace
}  // namespace outrider
