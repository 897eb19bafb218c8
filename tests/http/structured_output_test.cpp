// Which grammar a body asks for, in every server's words; what is refused, and with which param; a
// schema that is none through the whole service.
#include "http/api/structured_output.h"

#include <gtest/gtest.h>

#include <tuple>

#include "http/api/schema_gaps.h"
#include "http/wire/api_error.h"
#include "tests/http/http_fixture.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

std::optional<RequestedGrammar> grammar_of(const std::string& body, CallLimits limits = {}) {
  return read_grammar(JsonFields::parse(body), limits);
}

std::string param_of(const std::string& body, CallLimits limits = {}) {
  try {
    grammar_of(body, limits);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
  return "accepted";
}

TEST(StructuredOutput, EveryServersFieldsMeanTheirGrammar) {
  using enum GrammarKind;
  const std::string schema = R"({"type":"object","properties":{"z":{},"a":{}}})";
  const std::string in_text = R"("{\"type\":\"object\",\"properties\":{\"z\":{},\"a\":{}}}")";
  const std::string any = R"({"type":"object","additionalProperties":true})";
  const std::string tag = R"({"type":"structural_tag","format":{"type":"any_text"}})";
  const std::string choice = R"(root ::= "a\"b" | "c")";
  using Row = std::tuple<std::string, GrammarKind, std::string, std::string>;
  for (
      const auto& [body, kind, text, param] : std::vector<Row>{
          {R"("response_format":{"type":"json_object"})", kJsonSchema, any, "response_format"},
          {R"("response_format":{"type":"json_object","schema":)" + schema + "}",
           kJsonSchema,
           schema,
           "response_format"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)" +
               schema + "}}",
           kJsonSchema,
           schema,
           "response_format"},
          {R"("response_format":)" + tag, kStructuralTag, tag, "response_format"},
          {R"("structured_outputs":{"json":)" + schema + "}",
           kJsonSchema,
           schema,
           "structured_outputs.json"},
          {R"("structured_outputs":{"json":)" + in_text + R"(,"disable_any_whitespace":true})",
           kCompactJson,
           schema,
           "structured_outputs.json"},
          {R"("structured_outputs":{"json_object":true,"regex":null})",
           kJsonSchema,
           any,
           "structured_outputs.json_object"},
          {R"("structured_outputs":{"regex":"a+"})", kRegex, "a+", "structured_outputs.regex"},
          {R"("structured_outputs":{"choice":["a\"b","c"]})",
           kEbnf,
           choice,
           "structured_outputs.choice"},
          {R"("structured_outputs":{"grammar":"root ::= \"a\""})",
           kEbnf,
           "root ::= \"a\"",
           "structured_outputs.grammar"},
          {R"("structured_outputs":{"structural_tag":)" + tag + "}",
           kStructuralTag,
           tag,
           "structured_outputs.structural_tag"},
          {R"("guided_json":)" + schema, kJsonSchema, schema, "guided_json"},
          {R"("guided_regex":"a+")", kRegex, "a+", "guided_regex"},
          {R"("guided_choice":["a\"b","c"])", kEbnf, choice, "guided_choice"},
          {R"("guided_grammar":"start: \"a\"")", kLark, "start: \"a\"", "guided_grammar"},
          {R"("grammar":"root ::= \"a\"")", kEbnf, "root ::= \"a\"", "grammar"},
          {R"("json_schema":)" + schema, kJsonSchema, schema, "json_schema"},
          {R"("regex":"a+")", kRegex, "a+", "regex"},
          {R"("ebnf":"root ::= \"a\"","grammar":"")", kEbnf, "root ::= \"a\"", "ebnf"}}) {
    const auto requested = grammar_of("{" + body + "}");
    ASSERT_TRUE(requested) << body;
    EXPECT_EQ(requested->grammar.kind, kind) << body;
    EXPECT_EQ(requested->grammar.text, text) << body;
    EXPECT_EQ(requested->param, param) << body;
  }
}

TEST(StructuredOutput, OffIsOff) {
  for (const char* body : {"{}",
                           R"({"response_format":null})",
                           R"({"response_format":{"type":"text"}})",
                           R"({"structured_outputs":{}})",
                           R"({"structured_outputs":{"json_object":false,"json":null}})",
                           R"({"grammar":"","guided_choice":[],"guided_json":null})"}) {
    EXPECT_FALSE(grammar_of(body)) << body;
  }
}

TEST(StructuredOutput, WhatHasAnotherFormIsRefused) {
  EXPECT_EQ(param_of(R"({"response_format":{"type":"xml"}})"), "response_format");
  EXPECT_EQ(param_of(R"({"response_format":{}})"), "response_format");
  EXPECT_EQ(param_of(R"({"response_format":{"type":"json_schema"}})"), "response_format");
  EXPECT_EQ(param_of(R"({"response_format":"json_object"})"), "response_format");
  EXPECT_EQ(param_of(R"({"guided_choice":[1]})"), "guided_choice");
  EXPECT_EQ(param_of(R"({"guided_regex":1})"), "guided_regex");
  EXPECT_EQ(param_of(R"({"guided_json":"{"})"), "guided_json");
  EXPECT_EQ(param_of(R"({"guided_json":"{\"a\":1,\"a\":2}"})"), "guided_json");
  EXPECT_EQ(param_of(R"({"structured_outputs":{"whitespace_pattern":" "}})"),
            "structured_outputs.whitespace_pattern");
  EXPECT_EQ(param_of(R"({"structured_outputs":{"grammar":""}})"), "structured_outputs.grammar");
  EXPECT_EQ(param_of(R"({"structured_outputs":{"choice":[]}})"), "structured_outputs.choice");
  EXPECT_EQ(param_of(R"({"guided_regex":"a","guided_choice":["b"]})"), "guided_choice");
  EXPECT_EQ(param_of(R"({"response_format":{"type":"json_object"},"regex":"a"})"), "regex");
  EXPECT_EQ(param_of(R"({"regex":"aaaa"})", {.max_grammar_bytes = 3}), "regex");
}

using StructuredOutputService = HttpFixture;

TEST_F(StructuredOutputService, WithoutAnEngineItIsRefused) {
  const json out = post_json("/v1/completions", R"({"prompt":"a","guided_regex":"a"})", 400);
  EXPECT_EQ(out["error"]["param"], "guided_regex");
  EXPECT_TRUE(engine.submitted().empty());
}

TEST_F(StructuredOutputService, ABadGrammarCostsItsRequestAndAGoodOneReachesTheEngine) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  make_service(true, test_engine());
  const json refused =
      post_json("/v1/completions", R"({"prompt":"a","guided_json":{"type":"objekt"}})", 400);
  EXPECT_EQ(refused["error"]["param"], "guided_json");
  EXPECT_TRUE(engine.submitted().empty());
  post_json("/v1/completions", R"({"prompt":"a","guided_json":{"type":"object"},"n":2})");
  ASSERT_EQ(engine.submitted().size(), 2u);
  EXPECT_EQ(engine.submitted()[1].params.grammar->text, R"({"type":"object"})");
}

// A schema of which a part cannot be enforced: a warning, or a refusal where `strict` is asked for.
TEST_F(StructuredOutputService, WhatOfASchemaIsNotAppliedIsWarnedOfOrRefused) {
  if (!GrammarEngine::is_built()) GTEST_SKIP() << "built without xgrammar";
  make_service(true, test_engine());
  const std::string schema = R"({"type":"array","uniqueItems":true,"items":{"type":"integer"}})";
  const auto body = [&](const std::string& strict) {
    return R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)"
           R"("json_schema":{"name":"x",)" +
           strict + R"("schema":)" + schema + "}}}";
  };
  const json warned = post_json("/v1/chat/completions", body(""));
  ASSERT_EQ(warned["warnings"].size(), 1u) << warned;
  EXPECT_EQ(warned["warnings"][0], "response_format: 'uniqueItems' is not applied at #");
  const json refused = post_json("/v1/chat/completions", body(R"("strict":true,)"), 400);
  EXPECT_EQ(refused["error"]["message"],
            "'response_format' cannot be enforced as a whole: 'uniqueItems' is not applied at #");
}

TEST(SchemaGaps, EachConstraintThatIsNotAppliedIsNamedWithItsPlace) {
  using Row = std::pair<const char*, std::vector<std::string>>;
  for (const auto& [schema, gaps] : std::vector<Row>{
           {R"({"type":"object","properties":{"a":{"type":"string","pattern":"a+"}}})", {}},
           {R"({"type":"string","enum":["a"]})", {}},
           {R"({"enum":["a"],"pattern":"a"})", {"'pattern' beside 'enum' is not applied at #"}},
           {R"({"type":"object","anyOf":[{"type":"object"}]})", {}},
           {R"({"type":"object","anyOf":[{"required":["a"]}]})",
            {"'type' beside 'anyOf' is not applied at #",
             "'required' names \"a\", which is not among the properties, at #/anyOf/0"}},
           {R"({"$ref":"#/$defs/a","minLength":2,"$defs":{"a":{"minimum":3}}})",
            {"'minLength' beside '$ref' is not applied at #",
             "'minimum' without 'type' is not applied at #/$defs/a"}},
           {R"({"type":"array","items":[{"not":{}}],"uniqueItems":false})",
            {"'not' is not applied at #/items/0"}},
           {R"({"type":"boolean","enum":[true,"a"]})",
            {"'type' beside 'enum' is not applied at #"}},
           {R"({"type":["integer","null"],"enum":[1,2.0,null]})", {}},
           {R"({"type":"string","format":"uri","pattern":"^a"})",
            {"'pattern' beside 'format' is not applied at #"}},
           {R"({"properties":{"a":{"$ref":"#/b/c"}},"b":{"c":{"uniqueItems":true,"$ref":"#/b/d"},
               "d":{"contains":{},"items":{"$ref":"#"}}}})",
            {"'uniqueItems' beside '$ref' is not applied at #/b/c",
             "'contains' is not applied at #/b/d"}},
           {R"({"$ref":"#/%zz~","items":{"$ref":"#/~2"}})",
            {"'items' beside '$ref' is not applied at #"}},
           {R"({"type":"array","anyOf":[{"type":"object"},{"type":"array"}]})",
            {"'type' beside 'anyOf' is not applied at #"}},
           {R"({"type":["number","null"],"anyOf":[{"type":"integer"},{"type":["null"]}]})", {}},
           {R"({"if":false,"else":{"const":1},"not":false})", {"'if' is not applied at #"}},
           {R"({"type":"string","pattern":"^[\\t\"\\\\]\\s\\.\\x41$"})", {}},
           {R"({"type":"string","pattern":"^C:\\\\"})",
            {"'pattern' has a character that JSON escapes and the engine does not, at #"}},
           {R"({"properties":{"a":{"type":"string","pattern":"say \"x\""}}})",
            {"'pattern' has a character that JSON escapes and the engine does not, at "
             "#/properties/a"}},
           {R"({"type":"string","pattern":"\\u000A"})",
            {"'pattern' has a character that JSON escapes and the engine does not, at #"}},
           {R"(true)", {}}}) {
    EXPECT_EQ(schema_gaps(schema, 9), gaps) << schema;
  }
  EXPECT_EQ(schema_gaps(R"({"not":{},"if":{},"contains":{}})", 2).size(), 2u);
}

// Thousands of schemas below it would each keep the whole of it.
TEST(SchemaGaps, LongNamesAreCut) {
  const std::string name(100'000, 'n');
  const auto gaps = schema_gaps(R"({"$defs":{")" + name + R"(":{"anyOf":[{"not":{}}]}}})", 9);
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_LT(gaps[0].size(), 400u);
}

// The option of the server holds where a request says nothing.
TEST(StructuredOutput, WhitespaceIsAnOption) {
  const CallLimits compact{.disable_any_whitespace = true};
  EXPECT_EQ(grammar_of(R"({"guided_json":{}})", compact)->grammar.kind, GrammarKind::kCompactJson);
  EXPECT_EQ(
      grammar_of(R"({"guided_json":{},"structured_outputs":{"disable_any_whitespace":false}})",
                 compact)
          ->grammar.kind,
      GrammarKind::kJsonSchema);
}

}  // namespace
}  // namespace outrider::testing
