// The verdict on a pair of vocabularies: the same, padded, different, and what the line says.
#include "models/text/vocabulary_match.h"

#include <gtest/gtest.h>

#include "tests/models/vocabulary_test_util.h"

namespace outrider {
namespace {

using test::byte_level;
using test::sentence_piece;
using Verdict = VocabularyMatch::Verdict;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

const std::vector<std::string> kTokens = {"a", "b", "c", "Ġ", "Ġa", "ab"};

VocabularyMatch match(const TokenizerPtr& target,
                      int32_t num_target_rows,
                      const TokenizerPtr& draft,
                      int32_t num_draft_rows) {
  ModelConfig target_config;
  target_config.vocab_size = num_target_rows;
  ModelConfig draft_config;
  draft_config.vocab_size = num_draft_rows;
  return match_vocabularies(target, target_config, draft, draft_config);
}

VocabularyMatch match(const TokenizerPtr& target, const TokenizerPtr& draft) {
  return match(target, target->vocab_size(), draft, draft->vocab_size());
}

void expect_line(const VocabularyMatch& found, const std::vector<std::string>& parts) {
  const std::string line = describe(found);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  for (const std::string& part : parts)
    EXPECT_NE(line.find(part), std::string::npos) << line << " has no: " << part;
}

TEST(VocabularyMatch, TheSame) {
  const auto tokenizer = byte_level({"<end>"}, kTokens);
  const VocabularyMatch found = match(tokenizer, tokenizer);
  EXPECT_EQ(found.verdict, Verdict::kSame);
  EXPECT_TRUE(found.usable_directly());
  EXPECT_TRUE(found.draft_embeds_all);
  EXPECT_EQ(describe(found), "compatible: the same 7 tokens");
}

TEST(VocabularyMatch, PaddingIsNoDifference) {
  const auto target = byte_level({"<end>"}, kTokens);
  auto longer = kTokens;
  longer.insert(longer.end(), {"bc", "ca"});
  const auto draft = byte_level({"<end>"}, longer);
  // More rows than tokens, on either side, and tokens that only one has.
  for (const auto& [target_rows, draft_rows] :
       {std::pair{64, 9}, std::pair{7, 128}, std::pair{64, 128}}) {
    const VocabularyMatch found = match(target, target_rows, draft, draft_rows);
    EXPECT_EQ(found.verdict, Verdict::kPadded);
    EXPECT_TRUE(found.usable_directly());
    EXPECT_TRUE(found.draft_embeds_all);
    expect_line(found,
                {"compatible after padding",
                 "target 7 tokens in " + std::to_string(target_rows) + " rows",
                 "draft 9 tokens in " + std::to_string(draft_rows) + " rows",
                 "7 the same"});
  }
  const VocabularyMatch fewer = match(draft, 64, target, 7);
  EXPECT_EQ(fewer.verdict, Verdict::kPadded);
  EXPECT_FALSE(fewer.draft_embeds_all) << "two target tokens have no row in the draft";
  EXPECT_EQ(fewer.num_translatable, 7);
}

TEST(VocabularyMatch, TheFirstDifferentIdIsNamedWithBothTexts) {
  auto other = kTokens;
  std::swap(other[1], other[2]);
  const VocabularyMatch found = match(byte_level({"<end>"}, kTokens), byte_level({"<end>"}, other));
  EXPECT_EQ(found.verdict, Verdict::kDifferent);
  EXPECT_FALSE(found.usable_directly());
  EXPECT_EQ(found.first_different_id, 2);
  EXPECT_EQ(found.num_same_ids, 5);
  EXPECT_EQ(found.num_translatable, 7) << "only the order differs";
  expect_line(found,
              {"not the same tokens",
               "id 2 is 'b' in the target and 'c' in the draft",
               "5 ids the same",
               "use_heterogeneous_vocab",
               "7 of the target's 7 tokens (100.0%)"});
}

TEST(VocabularyMatch, OneOtherTextIsEnough) {
  auto other = kTokens;
  other.back() = "ba";
  const VocabularyMatch found = match(byte_level({"<end>"}, kTokens), byte_level({"<end>"}, other));
  EXPECT_EQ(found.verdict, Verdict::kDifferent);
  EXPECT_EQ(found.first_different_id, 6);
  EXPECT_EQ(found.num_translatable, 6);
}

TEST(VocabularyMatch, KindsAreComparedByTheBytesTheyDecodeTo) {
  // "Ġa" and "▁a" are the same token; a special token is compared by its name.
  const auto pieces = sentence_piece({"<end>"}, {"a", "b", "c", "▁", "▁a", "ab"});
  EXPECT_EQ(match(byte_level({"<end>"}, kTokens), pieces).verdict, Verdict::kSame);
  const VocabularyMatch renamed = match(byte_level({"<eos>"}, kTokens), pieces);
  EXPECT_EQ(renamed.verdict, Verdict::kDifferent);
  EXPECT_EQ(renamed.first_different_id, 0);
  // The same name as a piece of text is another token than the byte-level characters it spells.
  const auto literal = sentence_piece({"<end>"}, {"a", "b", "c", "Ġ", "▁a", "ab"});
  EXPECT_EQ(match(byte_level({"<end>"}, kTokens), literal).first_different_id, 4);
}

TEST(VocabularyMatch, NothingInCommon) {
  const VocabularyMatch found = match(byte_level({}, {"a", "b"}), byte_level({}, {"x", "y"}));
  EXPECT_EQ(found.verdict, Verdict::kDifferent);
  EXPECT_EQ(found.num_translatable, 0);
  expect_line(found, {"id 0 is 'a' in the target and 'x' in the draft", "no token of the target"});
}

TEST(VocabularyMatch, TheLineStaysOneLine) {
  const VocabularyMatch found = match(sentence_piece({}, {"a\nb", "c"}),
                                      sentence_piece({},
                                                     {"\x01"
                                                      "a",
                                                      "c"}));
  expect_line(found, {"'a\\x0ab'", "'\\x01a'"});
}

TEST(VocabularyMatch, OtherEndTokensAreSaid) {
  const auto tokenizer = byte_level({"<end>"}, kTokens);
  ModelConfig target;
  target.vocab_size = tokenizer->vocab_size();
  ModelConfig draft = target;
  target.eos_token_ids = {0};
  draft.eos_token_ids = {0, 3};
  const VocabularyMatch found = match_vocabularies(tokenizer, target, tokenizer, draft);
  EXPECT_TRUE(found.usable_directly());
  expect_line(found, {"compatible: the same 7 tokens", "end-of-text ids differ"});
}

}  // namespace
}  // namespace outrider
