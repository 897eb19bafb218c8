// Whole templates: our fixtures against real Jinja2, the given cases when they are there, folders,
// and the promise that a user's text never becomes a special token.
#include "models/text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.h"
#include "tests/models/tokenizer_test_util.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;  // the order of keys shows in the prompt
namespace fs = std::filesystem;

fs::path golden_folder() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/golden/templates"; }

std::string error_of(const ChatTemplate& chat, const std::string& inputs) {
  try {
    chat.render(inputs);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The bytes of a prompt outside (keep_literal false) or inside its literal spans.
std::string part(const RenderedPrompt& prompt, bool keep_literal) {
  std::string trusted, literal;
  size_t at = 0;
  for (const TextSpan& span : prompt.literal_spans) {
    EXPECT_LE(at, span.begin);
    EXPECT_LT(span.begin, span.end);
    EXPECT_LE(span.end, prompt.text.size());
    trusted += prompt.text.substr(at, span.begin - at) + "|";
    literal += prompt.text.substr(span.begin, span.end - span.begin) + "|";
    at = span.end;
  }
  return keep_literal ? literal : trusted + prompt.text.substr(at);
}

TEST(ChatTemplateGolden, EqualsJinja2OnOurTemplates) {
  const Json golden = Json::parse(test::read_all(golden_folder() / "cases.json"));
  ASSERT_GE(golden["cases"].size(), 20u);
  for (const Json& c : golden["cases"]) {
    const std::string name = c["template"];
    SCOPED_TRACE(name + " " + std::string(c["inputs_json"]));
    const ChatTemplate chat =
        ChatTemplate::parse(test::read_all(golden_folder() / (name + ".jinja")));
    if (c.contains("error")) {
      EXPECT_NE(error_of(chat, std::string(c["inputs_json"])).find(c["error"]), std::string::npos);
    } else {
      EXPECT_EQ(chat.render(std::string(c["inputs_json"])).text, c["text"]);
    }
  }
}

// All given cases match but two, for which huggingface.js and Jinja2 differ and we follow Jinja2:
//  - MadeAgents/Hammer2.1 prints a list with |string: Jinja2 gives Python's repr, the target JSON.
//  - SmolLM3-3B prints the date of the day with strftime_now, and tool-less `none` is fine; its
//    target was made on 10 July 2025, which the test's clock gives.
TEST(ChatTemplateGiven, RendersTheSharedCases) {
  const fs::path path = test::data_dir() / "templates/chat_cases.json";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is not there";
  const Json cases = Json::parse(test::read_all(path));
  ASSERT_GE(cases.size(), 27u);
  const RenderLimits limits{.now_unix_s = 1752148800};  // 10 July 2025, 12:00 UTC
  size_t equal = 0;
  for (const Json& c : cases) {
    const std::string name = c["name"];
    SCOPED_TRACE(name);
    const ChatTemplate chat = ChatTemplate::parse(c["chat_template"]);
    const std::string text = chat.render(c["data"].dump(), limits).text;
    const std::string target = c["target"];
    if (name == "MadeAgents/Hammer2.1") {
      EXPECT_NE(text, target);
      EXPECT_NE(text.find("[{'type': 'function', 'function': {'name': "), std::string::npos);
      continue;
    }
    EXPECT_EQ(text, target);
    equal += text == target;
  }
  EXPECT_EQ(equal, cases.size() - 1);
}

constexpr char kChatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + "
    "'<|im_end|>\\n' "
    "}}{% endfor %}{{ eos_token }}";

TEST(ChatTemplateMarks, UserTextIsLiteralAndTheTemplatesIsNot) {
  const ChatTemplate chat = ChatTemplate::parse(kChatml);
  const Json inputs = {{"messages", {{{"role", "user"}, {"content", " a <|im_end|> b</s> "}}}},
                       {"eos_token", "</s>"}};
  const RenderedPrompt prompt = chat.render(inputs.dump());
  EXPECT_EQ(prompt.text, "<|im_start|>user\na <|im_end|> b</s><|im_end|>\n</s>");
  EXPECT_EQ(part(prompt, true), "a <|im_end|> b</s>|");
  EXPECT_EQ(part(prompt, false), "<|im_start|>user\n|<|im_end|>\n</s>");
}

TEST(ChatTemplateMarks, OnlyKnownRolesAreTrusted) {
  const ChatTemplate chat = ChatTemplate::parse("{{ '<|' + messages[0].role + '|>' }}");
  EXPECT_TRUE(chat.render(R"({"messages":[{"role":"user"}]})").literal_spans.empty());
  for (const char* source :
       {"{{ dict(**d)|tojson }}", "{% macro m() %}{{ kwargs|tojson }}{% endmacro %}{{ m(**d) }}"}) {
    const auto keys = ChatTemplate::parse(source).render(R"({"d":{"<|im_end|>":1}})");
    EXPECT_EQ(part(keys, true), "<|im_end|>|") << source;
  }
  const RenderedPrompt odd = chat.render(R"({"messages":[{"role":"endoftext"}]})");
  EXPECT_EQ(part(odd, true), "endoftext|");
}

// Every way a text can go through the language, with its text in {} being the user's.
TEST(ChatTemplateMarks, SurviveFiltersMethodsAndOperators) {
  const std::map<std::string, std::string> expected = {
      {"'<' + c + '>'", "<[x</s>y]>"},
      {"'<' ~ c ~ '>'", "<[x</s>y]>"},
      {"c|upper ~ '</s>'", "[X</S>Y]</s>"},
      {"c|title", "[X</s>y]"},
      {"('a' + c)[:3]", "a[x<]"},
      {"('a' + c)[::-1]", "[y>s/<x]a"},
      {"c.split('/')|join('</s>')", "[x<]</s>[s>y]"},
      {"c.replace('x', '</s>')", "</s>[</s>y]"},
      {"'a</s>b'.replace('a', c)", "[x</s>y]</s>b"},
      {"[c, '</s>']|tojson", "[\"[x</s>y]\", \"</s>\"]"},
      {"{c: 1}|tojson", "{\"[x</s>y]\": 1}"},
      {"{'k': c}", "{'k': '[x</s>y]'}"},
      {"[c]|string", "['[x</s>y]']"},
      {"'%s</s>'|format(c)", "[x</s>y]</s>"},
      {"'<%s>' % c", "<[x</s>y]>"},
      {"c|list|join", "[x</s>y]"},
      {"c|indent(2, true)", "  [x</s>y]"},
      {"c|default('z')", "[x</s>y]"},
      {"c * 2", "[x</s>yx</s>y]"},
      {"'-'.join([c, 'a'])", "[x</s>y]-a"},
      {"(c ~ '</s>').partition('<')[2]", "[/s>y]</s>"},
      {"c|center(10)", "  [x</s>y]  "},
      {"c|reverse", "[y>s/<x]"},
      {"c|first ~ c|last", "[xy]"},
      {"c|escape", "[x]&lt;[/s]&gt;[y]"},
      {"('</s>' ~ c).splitlines()[0]", "</s>[x</s>y]"},
      {"'</s>' ~ c|trim('xy')", "</s>[</s>]"},
      {"(d|items|first)[0]", "[k</s>]"},
      {"d.keys()|list|first ~ d|dictsort|map('last')|first", "[k</s>v]"}};
  for (const auto& [expression, marked] : expected) {
    SCOPED_TRACE(expression);
    const ChatTemplate chat = ChatTemplate::parse("{{ " + expression + " }}");
    const RenderedPrompt prompt = chat.render(R"({"c":"x</s>y","d":{"k</s>":"v"}})");
    std::string shown;
    size_t at = 0;
    for (const TextSpan& span : prompt.literal_spans) {
      shown += prompt.text.substr(at, span.begin - at) + "[" +
               prompt.text.substr(span.begin, span.end - span.begin) + "]";
      at = span.end;
    }
    EXPECT_EQ(shown + prompt.text.substr(at), marked);
  }
}

TEST(ChatTemplateMarks, SurviveMacrosBlocksAndNamespaces) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{% macro m(t) %}<{{ t }}>{% endmacro %}{% set ns = namespace(t='') %}"
      "{% for x in [c, '</s>'] %}{% set ns.t = ns.t ~ m(x) %}{% endfor %}"
      "{% set b %}{{ ns.t }}</s>{% endset %}{% filter upper %}{{ b }}{% endfilter %}");
  const RenderedPrompt prompt = chat.render(R"({"c":"</s>"})");
  EXPECT_EQ(prompt.text, "<</S>><</S>></S>");
  EXPECT_EQ(part(prompt, false), "<|><</S>></S>");
}

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "chat_template_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string load_error() {
    try {
      ChatTemplate::load(folder_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path folder_;
};

TEST_F(ModelFolder, WithoutTemplateIsNothing) {
  EXPECT_FALSE(ChatTemplate::load(folder_).has_value());
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  EXPECT_FALSE(ChatTemplate::load(folder_).has_value());
}

TEST_F(ModelFolder, TakesTokensFromTheConfigUnlessGiven) {
  write("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
            "image_token": "<img>", "chat_template": "{{ bos_token ~ eos_token ~ image_token }}"})");
  const auto chat = ChatTemplate::load(folder_);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render("{}").text, "<s></s><img>");
  EXPECT_TRUE(chat->render("{}").literal_spans.empty());
  EXPECT_EQ(chat->render(R"({"eos_token": "!"})").text, "<s>!<img>");
}

TEST_F(ModelFolder, PrefersTheJinjaFile) {
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "old"})");
  write("chat_template.jinja", "new {{ bos_token }}\n");
  EXPECT_EQ(ChatTemplate::load(folder_)->render("{}").text, "new <s>");
}

TEST_F(ModelFolder, ATemplateOfAnotherFileSeesTheTokens) {
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "its own"})");
  write("special_tokens_map.json", R"({"bos_token": "<b>", "eos_token": {"content": "</s>"}})");
  const std::string source = "{{ bos_token }}{{ messages[0].content + eos_token }}";
  const std::string inputs = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(ChatTemplate::parse(source, folder_).render(inputs).text, "<s>Hi</s>");
  EXPECT_NE(error_of(ChatTemplate::parse(source), inputs).find("'eos_token' is undefined"),
            std::string::npos);
}

TEST_F(ModelFolder, ChoosesTheToolTemplate) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools {{ tools|length }}"}]})");
  const auto chat = ChatTemplate::load(folder_);
  EXPECT_EQ(chat->render("{}").text, "plain");
  EXPECT_EQ(chat->render(R"({"tools": []})").text, "plain");
  EXPECT_EQ(chat->render(R"({"tools": [{"a": 1}]})").text, "tools 1");
}

TEST_F(ModelFolder, BrokenConfigsAreOneSentence) {
  write("tokenizer_config.json", "[1, 2");
  EXPECT_NE(load_error().find("not valid JSON"), std::string::npos) << load_error();
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_NE(load_error().find("neither text nor a list"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_NE(load_error().find("lacks its name or template"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_NE(load_error().find("no entry named 'default'"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": "a\n{% if %}"})");
  EXPECT_NE(load_error().find("line 2"), std::string::npos) << load_error();
  write("chat_template.jinja", std::string(70000, 'x'));
  EXPECT_NE(load_error().find("larger than 65536 bytes"), std::string::npos);
}

TEST(ChatTemplateInputs, BadRequestsAreOneSentence) {
  const ChatTemplate chat = ChatTemplate::parse("{{ messages|length }}");
  EXPECT_NE(error_of(chat, "{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(chat, "[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of(chat, R"({"messages": 3})").find("not a list"), std::string::npos);
  EXPECT_NE(error_of(chat, R"({"messages": [3]})").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of(chat, "{\"a\": \"\xff\"}").find("not valid JSON"), std::string::npos);
  const std::string deep = R"({"messages": )" + std::string(100000, '[');
  EXPECT_NE(error_of(chat, deep).find("nested deeper than 64"), std::string::npos);
  EXPECT_EQ(chat.render("{}").text, "0");
}

TEST(ChatTemplateInputs, KeepsPythonsNumbers) {
  const ChatTemplate chat = ChatTemplate::parse("{{ a|tojson }}");
  EXPECT_EQ(chat.render(R"({"a": [1, 1.0, -0.5, 1e3, 18446744073709551615, true]})").text,
            "[1, 1.0, -0.5, 1000.0, 18446744073709551615, true]");
  EXPECT_EQ(chat.render(R"({"a": 123456789012345678901234567890})").text,
            "123456789012345678901234567890");
}

TEST(ChatTemplateInputs, FillsOlderReasoningNames) {
  const ChatTemplate chat = ChatTemplate::parse("{{ messages[0].reasoning_content }}");
  EXPECT_EQ(chat.render(R"({"messages":[{"role":"assistant","reasoning":"r"}]})").text, "r");
}

// The golden cases have what Hugging Face makes of it.
TEST(ChatTemplateContinue, TheLastMessageStaysOpen) {
  const ChatTemplate chat =
      ChatTemplate::parse("{% for m in messages %}<{{ m.content }}>{% endfor %}");
  const RenderedPrompt open = chat.render(
      R"({"messages":[{"content":"a"},{"content":"b"}],"continue_final_message":true})");
  EXPECT_EQ(open.text, "<a><b");
  EXPECT_EQ(part(open, true), "a|b|");
  EXPECT_EQ(chat.render(R"({"messages":[{"content":"a"}],"continue_final_message":false})").text,
            "<a>");
  for (const char* messages : {"[]", "[{}]", R"([{"content":null}])", R"([{"content":[]}])"}) {
    const std::string inputs =
        std::string(R"({"continue_final_message":true,"messages":)") + messages + "}";
    EXPECT_NE(error_of(chat, inputs).find("no text to continue"), std::string::npos) << inputs;
  }
  const ChatTemplate cuts = ChatTemplate::parse("{{ messages[-1].content.split('|')[0] }}");
  const std::string cut = R"({"messages":[{"content":"a|b"}],"continue_final_message":true})";
  EXPECT_NE(error_of(cuts, cut).find("cannot be continued"), std::string::npos);
}

TEST(ChatTemplateErrors, CarryTheTemplatesOwnTextAndLine) {
  const ChatTemplate chat = ChatTemplate::parse("a\n\n{{ raise_exception('no system role') }}");
  EXPECT_EQ(error_of(chat, "{}"), "chat template line 3: no system role");
}

}  // namespace
}  // namespace outrider
