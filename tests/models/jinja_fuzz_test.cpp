// Mutated templates: whatever the text, the answer is a prompt or an Error, soon and without a
// crash (most telling under the sanitizers). Spans always lie in order inside the text.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "models/text/chat_template.h"
#include "runtime/base/error.h"
#include "tests/models/tokenizer_test_util.h"

namespace outrider {
namespace {

constexpr char kInputs[] =
    R"({"messages":[{"role":"system","content":"sys"},{"role":"user","content":"hé </s> 😀"},)"
    R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":[1]}}}]},)"
    R"({"role":"tool","content":"result"}],"tools":[{"type":"function","function":{"name":"f"}}],)"
    R"("bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true})";

std::vector<std::string> seeds() {
  std::vector<std::string> sources;
  for (const char* name :
       {"chatml", "llama2", "llama3", "mistral", "qwen3", "gemma", "phi3", "features"}) {
    const auto path = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/golden/templates" /
                      (std::string(name) + ".jinja");
    sources.push_back(test::read_all(path));
    EXPECT_FALSE(sources.back().empty()) << path;
  }
  return sources;
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  std::string next() {
    std::string text = pick(sources_);
    for (size_t count = 1 + random_(6); count > 0; --count) mutate(text);
    return text;
  }

 private:
  const std::string& pick(const std::vector<std::string>& from) {
    return from[random_(from.size())];
  }

  void mutate(std::string& text) {
    static const std::vector<std::string> kPieces = {"{{",
                                                     "}}",
                                                     "{%",
                                                     "%}",
                                                     "{#",
                                                     "#}",
                                                     "-",
                                                     "(",
                                                     ")",
                                                     "[",
                                                     "]",
                                                     "{",
                                                     "}",
                                                     "|",
                                                     ".",
                                                     ",",
                                                     ":",
                                                     "'",
                                                     "\"",
                                                     "\\",
                                                     "~",
                                                     "**",
                                                     "//",
                                                     " is ",
                                                     " not ",
                                                     " in ",
                                                     " if ",
                                                     " else ",
                                                     "{% endif %}",
                                                     "{% else %}",
                                                     "[::-1]",
                                                     "[-1:]",
                                                     "|tojson",
                                                     "|list",
                                                     "|length",
                                                     "|join('')",
                                                     "|map('trim')",
                                                     "messages",
                                                     "loop",
                                                     "namespace(",
                                                     "range(99)",
                                                     "none",
                                                     "99999999",
                                                     "1e308",
                                                     ".items()",
                                                     ".split()",
                                                     "\xC3\xA9",
                                                     "\xFF",
                                                     "{% for x in messages %}",
                                                     "{% endfor %}",
                                                     "{% macro m(a) %}",
                                                     "{% endmacro %}",
                                                     "{{ m(m) }}",
                                                     "{% set ns.x = ns %}",
                                                     "|sort",
                                                     "|string * 9",
                                                     "caller()",
                                                     "%s"};
    const size_t at = random_(text.size() + 1);
    switch (random_(5)) {
      case 0:
        text.insert(at, pick(kPieces));
        break;
      case 1:
        text.erase(at, 1 + random_(12));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random_(256));
        break;
      case 3: {
        const std::string& other = pick(sources_);
        text.insert(at, other.substr(random_(other.size()), random_(60)));
        break;
      }
      default:
        text.insert(at, text.substr(random_(text.size() + 1), random_(40)));
    }
  }

  size_t random_(size_t below) { return engine_() % below; }

  std::vector<std::string> sources_;
  std::mt19937_64 engine_{20260101};
};

void check(const RenderedPrompt& prompt) {
  size_t at = 0;
  for (const TextSpan& span : prompt.literal_spans) {
    ASSERT_TRUE(span.begin == 0 || span.begin > at || at == 0);
    ASSERT_LT(span.begin, span.end);
    ASSERT_LE(span.end, prompt.text.size());
    at = span.end;
  }
}

TEST(JinjaFuzz, MutatedTemplatesNeitherCrashNorHang) {
  Mutator mutator(seeds());
  const RenderLimits limits{.max_output_bytes = 1u << 20, .max_steps = 50'000};
  int rendered = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    try {
      const ChatTemplate chat = ChatTemplate::parse(mutator.next());
      check(chat.render(kInputs, limits));
      ++rendered;
    } catch (const Error& error) {
      ASSERT_FALSE(std::string(error.what()).empty());
      ++refused;
    }
  }
  EXPECT_GT(rendered, 1000);  // else the mutations never get past the parser
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace outrider
