// Answers taken apart: each format as the chat templates of its models write it, in pieces of any
// size. The expected values are written by hand from those templates.
#include "http/answers/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/base/error.h"

namespace outrider {
namespace {

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  // "name arguments"

  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "reasoning \"" << answer.reasoning << "\", content \"" << answer.content << '"';
  for (const std::string& call : answer.calls) *out << ", call " << call;
}

std::shared_ptr<const OfferedFunctions> functions() {
  return std::make_shared<const OfferedFunctions>(
      OfferedFunctions{{"weather", {"city"}}, {"add", {}}});
}

void add(const AnswerPieces& pieces, Answer* answer) {
  answer->reasoning += pieces.reasoning;
  answer->content += pieces.content;
  for (const ToolCallPiece& piece : pieces.calls) {
    const auto index = static_cast<size_t>(piece.index);
    if (!piece.name.empty()) {
      EXPECT_EQ(index, answer->calls.size()) << "calls are announced in order, once";
      EXPECT_EQ(piece.id.size(), 9u);
      answer->calls.push_back(piece.name + " ");
    }
    ASSERT_LT(index, answer->calls.size()) << "arguments before their call";
    answer->calls[index] += piece.arguments;
  }
}

Answer parsed(AnswerParserOptions options, std::string_view text, size_t piece_bytes) {
  Answer answer;
  const std::unique_ptr<AnswerParser> parser = make_answer_parser(std::move(options));
  for (size_t i = 0; i < text.size(); i += piece_bytes)
    add(parser->push(text.substr(i, piece_bytes)), &answer);
  add(parser->finish(), &answer);
  return answer;
}

AnswerParserOptions options_of(const std::string& tool_calls, const std::string& reasoning) {
  AnswerParserOptions options;
  options.formats = choose_answer_formats({}, tool_calls, reasoning);
  options.functions = functions();
  return options;
}

struct Case {
  const char* tool_calls;
  const char* reasoning;
  const char* text;
  Answer expected;
};

const Case kCases[] = {
    {"hermes", "none", "It is sunny.\n", {"", "It is sunny.\n", {}}},
    {"hermes",
     "qwen3",
     "<think>\nWhich city?\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"weather\", "
     "\"arguments\": {\"city\": \"Bern }\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": "
     "1}, "
     "\"name\": \"add\"}\n</tool_call>",
     {"Which city?", "Let me look.", {"weather {\"city\": \"Bern }\"}", "add {\"a\": 1}"}}},
    {"hermes", "none", "<tool_call>{\"name\": \"add\"}</tool_call> done", {"", "done", {"add {}"}}},
    {"hermes",
     "none",
     "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 2}\"}</tool_call>",
     {"", "", {"add {\"a\": 2}"}}},
    {"hermes", "none", "a <tool_cal", {"", "a <tool_cal", {}}},
    {"hermes", "deepseek_r1", " <think>a</think> b", {"a", "b", {}}},
    {"hermes", "deepseek_r1", " hello <think>", {"", " hello <think>", {}}},
    {"hermes",
     "none",
     "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Be",
     {"", "", {"weather {\"city\": \"Be"}}},
    {"llama3_json",
     "none",
     "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}; {\"name\": "
     "\"add\", \"parameters\": {}}",
     {"", "", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"llama3_json",
     "none",
     "{\"name\": \"Bob\", \"age\": 3}",
     {"", "{\"name\": \"Bob\", \"age\": 3}", {}}},
    {"llama3_json", "none", "[1, 2]", {"", "[1, 2]", {}}},
    {"llama3_json", "none", "Well, {\"name\": \"add\"}", {"", "Well, {\"name\": \"add\"}", {}}},
    {"json",
     "none",
     "[{\"arguments\": {\"a\": [1]}, \"name\": \"add\"}, {\"name\": \"add\", \"arguments\": {}}]",
     {"", "", {"add {\"a\": [1]}", "add {}"}}},
    {"mistral",
     "mistral",
     "[THINK]so[/THINK]I look.[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\"}[TOOL_CALLS]add[ARGS]{}",
     {"so", "I look.", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"mistral_list",
     "none",
     "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}, \"id\": "
     "\"9Ae3\"}, "
     "{\"name\": \"add\", \"arguments\": {}}]",
     {"", "", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"deepseek_v3",
     "deepseek_r1",
     "<think>hm</"
     "think>Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
     "```json\n{\"city\": "
     "\"Bern\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
     "add\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {"hm", "Yes.", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"deepseek_v31",
     "none",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\"}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     {"", "", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"kimi_k2",
     "none",
     "ok<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
     "<|tool_call_argument_begin|>{\"city\": "
     "\"Bern\"}<|tool_call_end|><|tool_call_begin|>functions.add:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     {"", "ok", {"weather {\"city\": \"Bern\"}", "add {}"}}},
    {"glm45",
     "glm45",
     "<think></think>\nLet "
     "me.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>[1, "
     "2]</arg_value>\n</tool_call>\n<tool_call>add\n</tool_call>",
     {"", "Let me.", {"weather {\"city\": \"12\", \"days\": [1, 2]}", "add {}"}}},
    {"qwen3_coder",
     "none",
     "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n</function>\n</"
     "tool_call>",
     {"", "", {"weather {\"city\": \"Bern\", \"days\": 3}", "add {}"}}},
    {"openai",
     "openai_gptoss",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.weather "
     "<|constrain|>json<|message|>{\"city\": \"Bern\"}<|call|>",
     {"hm", "", {"weather {\"city\": \"Bern\"}"}}},
    {"openai",
     "openai_gptoss",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
     {"hm", "Hi.", {}}},
    {"openai", "openai_gptoss", "plain", {"", "plain", {}}},
};

TEST(AnswerParser, TakesEveryFormatApartInPiecesOfAnySize) {
  for (const Case& c : kCases) {
    for (const size_t piece_bytes : {1, 2, 3, 5, 7, 16, 10'000}) {
      EXPECT_EQ(parsed(options_of(c.tool_calls, c.reasoning), c.text, piece_bytes), c.expected)
          << c.tool_calls << " in pieces of " << piece_bytes << ": " << c.text;
    }
  }
}

TEST(AnswerParser, BeginsInReasoningWhereThePromptDoes) {
  AnswerParserOptions options = options_of("hermes", "deepseek_r1");
  options.begins_in_reasoning = true;
  EXPECT_EQ(parsed(options, "so\n</think>\n\nYes.", 4), (Answer{"so", "Yes.", {}}));
  EXPECT_EQ(parsed(options, "cut off ", 4), (Answer{"cut off", "", {}}));
}

TEST(AnswerParser, ReasoningIsTextForAServerThatDoesNotLookForIt) {
  EXPECT_EQ(parsed(options_of("hermes", "none"), "<think>a</think>b", 1),
            (Answer{"", "<think>a</think>b", {}}));
}

TEST(AnswerParser, DropsCallsBehindTheFirstWhenOneIsWanted) {
  AnswerParserOptions options = options_of("hermes", "none");
  options.parallel = false;
  const std::string call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
  EXPECT_EQ(parsed(options, call + call, 5), (Answer{"", "", {"add {\"a\": 1}"}}));
}

TEST(AnswerParser, IsNotNeededWhereNothingIsLookedFor) {
  AnswerParserOptions options;
  options.formats = choose_answer_formats({}, "hermes", "none");
  EXPECT_EQ(make_answer_parser(options), nullptr);
}

// Whatever a model writes: no hang, no crash, and the same parts however the text is cut.
TEST(AnswerParser, AnyTextGivesTheSamePartsHoweverItIsCut) {
  const std::vector<std::string> bits = {"<tool_call>",
                                         "</tool_call>",
                                         "<function=",
                                         "</function>",
                                         "<parameter=",
                                         "</parameter>",
                                         ">",
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "[TOOL_CALLS]",
                                         "[ARGS]",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         "\"name\"",
                                         "\"add\"",
                                         "\"arguments\"",
                                         ":",
                                         ",",
                                         "add",
                                         "12",
                                         " ",
                                         "\n",
                                         "<think>",
                                         "</think>",
                                         "<|channel|>",
                                         "<|message|>",
                                         "analysis",
                                         "to=functions.",
                                         "<|end|>",
                                         "\\",
                                         "\"",
                                         "```",
                                         "<｜tool▁calls▁begin｜>",
                                         "<｜tool▁call▁begin｜>",
                                         "<｜tool▁sep｜>",
                                         "<|python_tag|>",
                                         "x"};
  std::mt19937 random(20261124);
  for (int i = 0; i < 30'000; ++i) {
    const Case& c = kCases[random() % std::size(kCases)];
    std::string text;
    for (size_t n = random() % 14; n > 0; --n) text += bits[random() % bits.size()];
    const AnswerParserOptions options = options_of(c.tool_calls, c.reasoning);
    ASSERT_EQ(parsed(options, text, 1), parsed(options, text, 10'000))
        << c.tool_calls << ": " << text;
  }
}

TEST(AnswerFormat, IsChosenByTheTemplate) {
  const auto name = [](std::string_view source) {
    return choose_answer_formats(source, "auto", "auto").tool_calls->name;
  };
  EXPECT_EQ(name("... <tool_call>\\n{...}\\n</tool_call> ..."), "hermes");
  EXPECT_EQ(name("<tool_call><function=x><parameter=y>"), "qwen3_coder");
  EXPECT_EQ(name("<tool_call>{{ name }}<arg_key>"), "glm45");
  EXPECT_EQ(name("[TOOL_CALLS]{{ name }}[ARGS]"), "mistral");
  EXPECT_EQ(name("[TOOL_CALLS] ["), "mistral_list");
  EXPECT_EQ(name("<|start_header_id|> {\"name\": x, \"parameters\": y}"), "llama3_json");
  EXPECT_EQ(name("<|start_header_id|>"), "json");
  EXPECT_EQ(choose_answer_formats("</think>", "auto", "auto").reasoning->name, "deepseek_r1");
  EXPECT_EQ(choose_answer_formats("", "auto", "auto").reasoning, nullptr);
  EXPECT_EQ(choose_answer_formats("</think>", "auto", "none").reasoning, nullptr);
}

TEST(AnswerFormat, AnUnknownNameIsRefusedWithTheNamesThereAre) {
  try {
    choose_answer_formats("", "hermess", "auto");
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("hermes,"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace outrider
