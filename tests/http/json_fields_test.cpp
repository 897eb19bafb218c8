// Typed access to client JSON: nothing is coerced, limits hold, faults name the field.
#include "http/api/json_fields.h"

#include <gtest/gtest.h>

#include "http/wire/api_error.h"

namespace outrider {
namespace {

std::string fault_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param() + "|" + error.what();
  }
  return "none";
}

std::string parse_fault(const std::string& text) {
  return fault_of([&] { JsonFields::parse(text); });
}

TEST(JsonFields, ReadsTypedFields) {
  const JsonFields body = JsonFields::parse(
      R"({"b":true,"i":-5,"x":0.5,"t":"hé","o":{"k":1},"l":["a","b"],"ids":[1,2],"n":null})");
  EXPECT_EQ(body.boolean("b"), true);
  EXPECT_EQ(body.integer("i", -10, 10), -5);
  EXPECT_EQ(body.number("x", 0, 1), 0.5);
  EXPECT_EQ(body.number("i", -10, 10), -5.0);
  EXPECT_EQ(body.text("t"), "hé");
  EXPECT_EQ(body.object("o")->integer("k", 0, 9), 1);
  EXPECT_EQ(*body.texts("l"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*body.token_ids("ids", 3), (std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(body.boolean("n"));
  EXPECT_FALSE(body.has("n"));
  EXPECT_EQ(body.kind("n"), JsonKind::kNull);
  EXPECT_EQ(body.kind("absent"), JsonKind::kAbsent);
}

TEST(JsonFields, WholeNumbersMayHaveADecimalPoint) {
  const JsonFields body = JsonFields::parse(R"({"a":2.0,"b":-1e3,"c":2.5,"d":9007199254740994.0})");
  EXPECT_EQ(body.integer("a", 0, 9), 2);
  EXPECT_EQ(body.integer("b", -1000, 0), -1000);
  EXPECT_NE(fault_of([&] { body.integer("a", 3, 9); }), "none");
  EXPECT_NE(fault_of([&] { body.integer("c", 0, 9); }), "none");
  EXPECT_NE(fault_of([&] { body.integer("d", 0, INT64_MAX); }), "none");  // others may be meant
}

TEST(JsonFields, CoercesNothing) {
  const JsonFields body = JsonFields::parse(
      R"({"t":true,"f":1.5,"big":1e30,"neg":-1,"huge":18446744073709551615,"s":"1","over":99999999999999999999})");
  for (const char* name : {"t", "f", "big", "neg", "huge", "s", "over"}) {
    const std::string fault = fault_of([&] { body.integer(name, 0, INT64_MAX); });
    EXPECT_EQ(fault.rfind(std::string(name) + "|", 0), 0u) << fault;
  }
  for (const char* name : {"f", "s", "neg"}) {
    EXPECT_NE(fault_of([&] { body.boolean(name); }), "none") << name;
    EXPECT_NE(fault_of([&] { body.object(name); }), "none") << name;
  }
  EXPECT_NE(fault_of([&] { body.number("t", 0, 9); }), "none");
  EXPECT_NE(fault_of([&] { body.number("s", 0, 9); }), "none");
  EXPECT_NE(fault_of([&] { body.number("big", 0, 9); }), "none");
  EXPECT_NE(fault_of([&] { body.text("f"); }), "none");
}

TEST(JsonFields, RefusesBrokenJson) {
  for (const char* text : {"",
                           "{",
                           "[]",
                           "1",
                           "null",
                           "{\"a\":1,}",
                           "{\"a\":01}",
                           "{\"a\":NaN}",
                           "{\"a\":\"\xff\"}",
                           "{\"a\":1} x",
                           "{'a':1}",
                           "{\"a\":\"\n\"}"}) {
    EXPECT_NE(parse_fault(text), "none") << text;
  }
}

TEST(JsonFields, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_NE(parse_fault(R"({"a":1,"a":2})").find("the key \"a\" twice"), std::string::npos);
  EXPECT_NE(parse_fault(R"({"x":[{"a":1,"\u0061":2}]})").find("\"a\" twice"), std::string::npos);
  EXPECT_EQ(parse_fault(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})"), "none");
}

TEST(JsonFields, DepthIsLimitedWithoutRecursion) {
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(parse_fault(nested(64)), "none");
  EXPECT_NE(parse_fault(nested(65)).find("nested deeper"), std::string::npos);
  EXPECT_NE(parse_fault("{\"a\":" + std::string(5'000'000, '[')).find("nested deeper"),
            std::string::npos);
}

TEST(JsonFields, NumberOfValuesIsLimited) {
  std::string text = "{\"a\":[0";
  for (int i = 0; i < 100; ++i) text += ",0";
  text += "]}";
  EXPECT_NE(fault_of([&] { JsonFields::parse(text, {.max_depth = 64, .max_values = 100}); }),
            "none");
  EXPECT_EQ(parse_fault(text), "none");
}

TEST(JsonFields, PromptsInAllForms) {
  const auto prompts = [](const std::string& value) {
    return JsonFields::parse("{\"prompt\":" + value + "}").prompts("prompt", 10);
  };
  EXPECT_EQ(prompts("\"hi\"")[0].text, "hi");
  EXPECT_EQ(prompts("[1,2]")[0].ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts("[\"a\",\"b\"]").size(), 2u);
  const auto mixed = prompts("[\"a\",[3]]");
  EXPECT_EQ(mixed[0].text, "a");
  EXPECT_EQ(mixed[1].ids, std::vector<int32_t>{3});
  for (const char* wrong : {"[]",
                            "[[]]",
                            "null",
                            "5",
                            "[10]",
                            "[-1]",
                            "[1.5]",
                            "[true]",
                            "[1,\"a\"]",
                            "[\"a\",1]",
                            "[[\"a\"]]",
                            "{}",
                            "[4294967297]",
                            "[1e0]"}) {
    EXPECT_NE(fault_of([&] { prompts(wrong); }), "none") << wrong;
  }
}

TEST(JsonFields, PathsNameNestedFields) {
  const JsonFields body = JsonFields::parse(R"({"messages":[{"role":"a"},{"role":5}]})");
  const auto messages = *body.objects("messages");
  EXPECT_EQ(fault_of([&] { messages[1].text("role"); }).rfind("messages[1].role|", 0), 0u);
}

TEST(JsonQuoted, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(json_quoted("a\"\n\x01"), "\"a\\\"\\n\\u0001\"");
  EXPECT_EQ(json_quoted("\xff"), "\"\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace outrider
