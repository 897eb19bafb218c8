// outrider chat: what an answer's events become, and that no text of a model steers the terminal.
#include "runtime/commands/chat/chat_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "http/wire/event_reader.h"
#include "tests/base/error_sentence.h"

namespace outrider {
namespace {

std::string event(const std::string& text, const std::string& more = "") {
  return R"({"choices":[{"delta":{"content":")" + text + "\"}" + more + "}]}";
}

// "text:origin|..." of an event.
std::string taken(ChatAnswer* answer, const std::string& data, double time_s = 0) {
  std::vector<std::string> pieces;
  for (const AnswerPiece& piece : answer->take(time_s, data))
    pieces.push_back(piece.text + ":" + name_of(piece.origin));
  return fmt::format("{}", fmt::join(pieces, "|"));
}

TEST(ChatAnswer, TextIsCutAtTokens) {
  ChatAnswer answer;
  EXPECT_EQ(taken(&answer, R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"), "");
  EXPECT_EQ(taken(&answer,
                  event("né ab",
                        R"(,"token_origins":["accepted","accepted","corrected"],)"
                        R"("text_offset":[0,1,3])")),
            "n:accepted|é :accepted|ab:corrected");
  // A character of several tokens belongs to the last of them.
  EXPECT_EQ(
      taken(&answer,
            event("→!", R"(,"token_origins":["accepted","bonus","plain"],"text_offset":[5,5,6])")),
      "→:bonus|!:plain");
  EXPECT_EQ(answer.text(), "né ab→!");
  EXPECT_FALSE(answer.is_whole());
  EXPECT_EQ(taken(&answer, "[DONE]"), "");
  EXPECT_TRUE(answer.is_whole());
}

TEST(ChatAnswer, WhatDoesNotFitIsOnePiece) {
  for (const char* offsets : {"[1]", "[0,9]", "[0]", "[0,\"1\"]", "[0,-1]", "[]"}) {
    ChatAnswer answer;
    const std::string origins = R"(,"token_origins":["accepted","corrected"],"text_offset":)";
    EXPECT_EQ(taken(&answer, event("ab", origins + offsets)), "ab:corrected") << offsets;
  }
  ChatAnswer answer;
  EXPECT_EQ(taken(&answer, event("ab")), "ab:plain");
  EXPECT_EQ(taken(&answer, event("c", R"(,"token_origins":["new"],"text_offset":[2])")), "c:plain");
}

TEST(ChatAnswer, WhatNestsDeepIsRefused) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const char* name : {"error", "usage", "choices"}) {
    ChatAnswer answer;
    EXPECT_TRUE(fails_with([&] { answer.take(0, fmt::format("{{\"{}\":{}}}", name, deep)); },
                           "nests deeper than 64"));
  }
}

TEST(ChatAnswer, Figures) {
  ChatAnswer answer;
  EXPECT_EQ(answer.figures(), "");
  const std::string round =
      R"(,"token_origins":["accepted","accepted","corrected"],"text_offset":[)";
  taken(&answer, event("abc", round + "0,1,2]"), 1.0);
  taken(&answer, event("def", round + "3,4,5]"), 1.5);
  taken(&answer, R"({"choices":[],"usage":{"completion_tokens":6}})", 1.6);
  EXPECT_EQ(answer.figures(), "6 tokens, 10.0 tokens/s, 3.00 tokens per round, 67% accepted");
  ChatAnswer plain;
  taken(&plain, event("a"), 1.0);
  taken(&plain, event("b"), 2.0);
  taken(&plain, R"({"choices":[],"usage":{"completion_tokens":5}})", 2.0);
  EXPECT_EQ(plain.figures(), "5 tokens, 4.0 tokens/s");
}

TEST(ChatAnswer, WhatIsNoEventIsASentence) {
  ChatAnswer answer;
  const auto says = [&](const std::string& data, const std::string& part) {
    EXPECT_TRUE(fails_with([&] { answer.take(0, data); }, part)) << data;
  };
  says(R"({"error":{"message":"the server is shutting down"}})", "the server is shutting down");
  says("x", "not JSON");
  for (const char* data : {R"({"choices":{"a":1}})",
                           R"({"choices":[1]})",
                           R"({"choices":"x"})",
                           R"({"choices":[{"delta":[]}]})",
                           R"({"usage":{"completion_tokens":"x"}})",
                           R"({"usage":{"completion_tokens":1e68}})"})
    says(data, "none of a chat");
  EXPECT_EQ(answer.text(), "");
}

TEST(ChatAnswer, NoTextSteersTheTerminal) {
  EXPECT_EQ(without_controls("a\033[2Jb\tc\nd\r\x7f\x07"), "a[2Jb\tc\nd");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "31m\xc2\xa0\xc3\x9b\xc2"),
            "31m\xc2\xa0\xc3\x9b\xc2");
}

TEST(EventReader, AnyCutsGiveTheSameEvents) {
  const std::string stream =
      ": ping\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:b\n\ndata: [DONE]\n\ndata: c";
  for (size_t size = 1; size <= stream.size(); ++size) {
    EventReader reader;
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += size) {
      EXPECT_TRUE(
          reader.take(std::string_view(stream).substr(at, size), [&](std::string_view data) {
            found.emplace_back(data);
            return true;
          }));
    }
    EXPECT_EQ(found, (std::vector<std::string>{"{\"a\": 1}", "b", "[DONE]"})) << size;
  }
  EventReader reader;
  const std::string endless(EventReader::kMaxLineBytes + 1, 'x');
  EXPECT_FALSE(reader.take(endless, [](std::string_view) { return true; }));
}

}  // namespace
}  // namespace outrider
