// Text from tokens: characters cut between tokens, stop strings across boundaries, what is held
// back, offsets.
#include "http/api/output_assembler.h"

#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

ResultEvent event_of(std::vector<int32_t> tokens, FinishReason reason = FinishReason::kNone) {
  ResultEvent event;
  event.origins = std::vector(tokens.size(), TokenOrigin::kPlain);
  event.tokens = std::move(tokens);
  event.finish_reason = reason;
  return event;
}

OutputAssembler assembler_with(std::vector<std::string> stop,
                               bool include = false,
                               int32_t min_tokens = 0) {
  OutputAssembler::Options options;
  options.stop = std::move(stop);
  options.include_stop_text = include;
  options.min_tokens = min_tokens;
  return OutputAssembler(test_tokenizer(), options);
}

// Feeds byte tokens one at a time; what came out piece by piece.
std::vector<std::string> pieces_of(OutputAssembler* assembler, const std::string& text) {
  std::vector<std::string> pieces;
  for (const int32_t id : bytes_of(text)) {
    assembler->add(event_of({id}));
    pieces.push_back(assembler->take().text);
  }
  assembler->add(event_of({}, FinishReason::kLength));
  pieces.push_back(assembler->take().text);
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += piece;
  return out;
}

TEST(OutputAssembler, CharactersAreNeverCut) {
  OutputAssembler assembler = assembler_with({});
  const std::string text = "né€😀z";
  const std::vector<std::string> pieces = pieces_of(&assembler, text);
  EXPECT_EQ(joined(pieces), text);
  EXPECT_EQ(pieces[1], "");
  EXPECT_EQ(pieces[2], "é");
  EXPECT_EQ(pieces[9], "😀");
  EXPECT_EQ(assembler.num_tokens(), 11);
  EXPECT_EQ(assembler.finish_reason(), FinishReason::kLength);
}

TEST(OutputAssembler, UnfinishedCharacterAtTheEnd) {
  OutputAssembler assembler = assembler_with({});
  EXPECT_EQ(joined(pieces_of(&assembler, "a\xe2\x82")), "a\xef\xbf\xbd");
}

TEST(OutputAssembler, StopStringAcrossTokens) {
  OutputAssembler assembler = assembler_with({"END"});
  const std::vector<std::string> pieces = pieces_of(&assembler, "one EEND two");
  EXPECT_EQ(joined(pieces), "one E");
  EXPECT_EQ(pieces[4], "");   // the first E could begin it
  EXPECT_EQ(pieces[5], "E");  // the second shows that it did not
  EXPECT_EQ(assembler.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(assembler.stop_reason().text, "END");
  EXPECT_EQ(assembler.num_tokens(), 8);  // up to and including the D
}

TEST(OutputAssembler, StopStringInTheMiddleOfAToken) {
  OutputAssembler assembler = assembler_with({"l"});
  assembler.add(event_of(ids_of("hello")));
  const OutputDelta delta = assembler.take();
  EXPECT_EQ(delta.text, "he");
  ASSERT_EQ(delta.tokens.size(), 1u);
  EXPECT_EQ(assembler.num_tokens(), 1);
}

TEST(OutputAssembler, SpeculatedTokensPastTheStopDoNotExist) {
  OutputAssembler assembler = assembler_with({"b"});
  assembler.add(event_of(bytes_of("abcdef"), FinishReason::kLength));
  const OutputDelta delta = assembler.take();
  EXPECT_EQ(delta.text, "a");
  EXPECT_EQ(delta.tokens.size(), 2u);
  EXPECT_EQ(assembler.num_tokens(), 2);
  EXPECT_EQ(assembler.finish_reason(), FinishReason::kStop);
  assembler.add(event_of(bytes_of("xyz")));
  EXPECT_EQ(assembler.take().text, "");
}

TEST(OutputAssembler, StopTextCanBeIncluded) {
  OutputAssembler assembler = assembler_with({"cd"}, true);
  EXPECT_EQ(joined(pieces_of(&assembler, "abcdef")), "abcd");
}

TEST(OutputAssembler, HeldTextComesOutWhenTheStopDoesNot) {
  OutputAssembler assembler = assembler_with({"abcd"});
  const std::vector<std::string> pieces = pieces_of(&assembler, "xabc");
  EXPECT_EQ(pieces[3], "");
  EXPECT_EQ(joined(pieces), "xabc");
}

TEST(OutputAssembler, FirstCompletedStopWinsAndLongestOfThose) {
  OutputAssembler first = assembler_with({"abcd", "bc"});
  EXPECT_EQ(joined(pieces_of(&first, "xabcd")), "xa");
  OutputAssembler longest = assembler_with({"bc", "abc"});
  EXPECT_EQ(joined(pieces_of(&longest, "xabcd")), "x");
  EXPECT_EQ(longest.stop_reason().text, "abc");
}

TEST(OutputAssembler, MinTokensComeBeforeStops) {
  OutputAssembler assembler = assembler_with({"b"}, false, 4);
  EXPECT_EQ(joined(pieces_of(&assembler, "abcbab")), "abc");
  EXPECT_EQ(assembler.num_tokens(), 4);
}

TEST(OutputAssembler, StopTokenIsNamedOnlyWhenTheUserGaveIt) {
  OutputAssembler::Options options;
  options.user_stop_token_ids = {5};
  for (const int32_t stop_token : {5, 6}) {
    OutputAssembler assembler(test_tokenizer(), options);
    ResultEvent event = event_of(bytes_of("a"), FinishReason::kStop);
    event.stop_token = stop_token;
    assembler.add(event);
    EXPECT_EQ(assembler.stop_reason().token_id.has_value(), stop_token == 5);
    EXPECT_EQ(assembler.take().text, "a");
  }
}

TEST(OutputAssembler, EchoOffsetsCountCharacters) {
  OutputAssembler::Options options;
  options.wants_prompt_logprobs = true;
  OutputAssembler assembler(test_tokenizer(), options);
  assembler.echo_prompt(bytes_of("é!"));
  EXPECT_TRUE(assembler.take().tokens.empty());  // the log-probabilities are not there yet
  ResultEvent event = event_of(bytes_of("xy"), FinishReason::kLength);
  event.prompt_logprobs = {{.logprob = -1.0f, .rank = 1, .top = {}},
                           {.logprob = -2.0f, .rank = 1, .top = {}}};
  assembler.add(event);
  const OutputDelta delta = assembler.take();
  EXPECT_EQ(delta.text, "é!xy");
  ASSERT_EQ(delta.tokens.size(), 5u);
  std::vector<size_t> offsets;
  for (const OutputToken& token : delta.tokens) offsets.push_back(token.text_offset);
  EXPECT_EQ(offsets, (std::vector<size_t>{0, 0, 1, 2, 3}));
  EXPECT_FALSE(delta.tokens[0].logprobs);
  EXPECT_EQ(delta.tokens[1].logprobs->logprob, -1.0f);
  EXPECT_EQ(delta.tokens[2].logprobs->logprob, -2.0f);
  EXPECT_TRUE(delta.tokens[2].from_prompt);
  EXPECT_EQ(assembler.num_tokens(), 2);
}

TEST(OutputAssembler, StopStringsDoNotLookIntoTheEcho) {
  OutputAssembler assembler = assembler_with({"ab"});
  assembler.echo_prompt(bytes_of("xab a"));
  assembler.add(event_of(bytes_of("bcab"), FinishReason::kLength));
  EXPECT_EQ(assembler.take().text, "xab abc");
}

TEST(OutputAssembler, AnEchoLeavesOutOnlyWhatTheTokenizerAdded) {
  const int32_t special = *test_tokenizer()->token_id("<|im_end|>");
  for (const size_t num_added : {0, 1, 2}) {
    OutputAssembler assembler(test_tokenizer(), {});
    assembler.echo_prompt(std::vector<int32_t>{special, special, 'a', special}, num_added);
    assembler.add(event_of({special, 'b'}, FinishReason::kLength));
    std::string expected;
    for (size_t i = num_added; i < 2; ++i) expected += "<|im_end|>";
    EXPECT_EQ(assembler.take().text, expected + "a<|im_end|>b");
  }
}

// SentencePiece-style tokenizers drop the space in front of a text; an output that continues a
// prompt keeps it.
TEST(OutputAssembler, OutputContinuesThePromptsText) {
  const char* data = std::getenv("OUTRIDER_DATA");
  const std::filesystem::path folder =
      (data ? std::filesystem::path(data)
            : std::filesystem::path(OUTRIDER_SOURCE_DIR) / "../shared/data") /
      "models/stories260K";
  if (!std::filesystem::exists(folder / "tokenizer.json")) {
    GTEST_SKIP() << folder << " is absent";
  }
  const auto tokenizer = Tokenizer::load(folder);
  const int32_t newline = *tokenizer->token_id("<0x0A>");
  const std::vector<int32_t> word = tokenizer->encode("once", {.add_special_tokens = false});
  const auto continued = [&](std::vector<int32_t> prompt) {
    OutputAssembler assembler(tokenizer, {});
    assembler.continue_prompt(prompt);
    assembler.add(event_of(word, FinishReason::kLength));
    return assembler.take().text;
  };
  std::vector<int32_t> prompt = tokenizer->encode("Hello");
  EXPECT_EQ(continued(prompt), " once");
  prompt.push_back(newline);  // bytes that are still open must not come out again
  EXPECT_EQ(continued(prompt), " once");
  EXPECT_EQ(continued({*tokenizer->bos_id()}), "once");
}

// Any cut of the same tokens into events, any stops: the pieces join to the text of one event, no
// piece is broken UTF-8, and nothing shown is ever taken back.
TEST(OutputAssembler, CutsDoNotMatter) {
  std::mt19937 random(7);
  const std::string alphabet[] = {"a", "b", "ab", "é", "€", "c"};
  size_t num_stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += alphabet[random() % 6];
    std::vector<std::string> stops;
    for (size_t i = 0; i < random() % 3; ++i) {
      stops.push_back(alphabet[random() % 6] + alphabet[random() % 6] + alphabet[random() % 6]);
    }
    const std::vector<int32_t> ids = bytes_of(text);
    OutputAssembler whole = assembler_with(stops);
    whole.add(event_of(ids, FinishReason::kLength));
    const OutputDelta expected = whole.take();

    OutputAssembler parts = assembler_with(stops);
    std::string got;
    size_t num_tokens = 0;
    for (size_t at = 0; at < ids.size();) {
      const size_t end = std::min(ids.size(), at + 1 + random() % 4);
      parts.add(event_of(
          {ids.begin() + static_cast<ptrdiff_t>(at), ids.begin() + static_cast<ptrdiff_t>(end)}));
      const OutputDelta delta = parts.take();
      EXPECT_EQ(delta.text, test_tokenizer()->decode(bytes_of(delta.text)));
      got += delta.text;
      num_tokens += delta.tokens.size();
      at = end;
    }
    parts.add(event_of({}, FinishReason::kLength));
    const OutputDelta rest = parts.take();
    EXPECT_EQ(got + rest.text, expected.text);
    EXPECT_EQ(num_tokens + rest.tokens.size(), expected.tokens.size());
    EXPECT_EQ(parts.num_tokens(), whole.num_tokens());
    EXPECT_EQ(parts.finish_reason(), whole.finish_reason());
    num_stopped += whole.finish_reason() == FinishReason::kStop;
    for (const std::string& stop : stops) EXPECT_EQ(expected.text.find(stop), std::string::npos);
  }
  EXPECT_GT(num_stopped, 100u);
}

}  // namespace
}  // namespace outrider::testing
