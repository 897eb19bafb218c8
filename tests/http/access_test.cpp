// Keys, origins, media types and request ids.
#include "http/wire/access.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

RequestHead head_with(std::vector<std::pair<std::string, std::string>> headers) {
  RequestHead head;
  head.method = "POST";
  head.path = "/v1/completions";
  head.headers = std::move(headers);
  return head;
}

TEST(Access, FixedTimeComparison) {
  EXPECT_TRUE(equal_in_fixed_time("abc", "abc"));
  EXPECT_FALSE(equal_in_fixed_time("abc", "abd"));
  EXPECT_FALSE(equal_in_fixed_time("abc", "ab"));
  EXPECT_FALSE(equal_in_fixed_time("abc", std::string("abc\0", 4)));
  EXPECT_FALSE(equal_in_fixed_time("", "a"));
  const std::string longest(512, 'k');
  EXPECT_TRUE(equal_in_fixed_time(longest, longest));
  EXPECT_FALSE(equal_in_fixed_time(longest + "a", longest + "a"));
}

TEST(Access, Keys) {
  const std::vector<std::string> keys = {"one", "two"};
  EXPECT_FALSE(lacks_key(head_with({}), {}));
  EXPECT_TRUE(lacks_key(head_with({}), keys));
  EXPECT_FALSE(lacks_key(head_with({{"authorization", "Bearer two"}}), keys));
  EXPECT_FALSE(lacks_key(head_with({{"authorization", "bearer one"}}), keys));
  EXPECT_FALSE(lacks_key(head_with({{"x-api-key", "one"}}), keys));
  EXPECT_TRUE(lacks_key(head_with({{"authorization", "Basic one"}}), keys));
  EXPECT_TRUE(lacks_key(head_with({{"authorization", "Bearer three"}}), keys));
  EXPECT_TRUE(lacks_key(head_with({{"authorization", "Bearer "}}), {""}));
}

std::string header_of(const std::vector<std::pair<std::string, std::string>>& headers,
                      const std::string& name) {
  for (const auto& [own, value] : headers)
    if (own == name) return value;
  return {};
}

TEST(Access, Origins) {
  const RequestHead foreign = head_with({{"host", "localhost:1"}, {"origin", "http://evil"}});
  EXPECT_TRUE(is_foreign_origin(foreign, {}));
  EXPECT_FALSE(is_foreign_origin(foreign, {.allowed_origins = {"http://evil"}}));
  EXPECT_FALSE(is_foreign_origin(foreign, {.allowed_origins = {"*"}}));
  EXPECT_FALSE(is_foreign_origin(head_with({{"host", "h:1"}, {"origin", "http://h:1"}}), {}));
  EXPECT_FALSE(is_foreign_origin(head_with({{"host", "h:1"}}), {}));
  EXPECT_TRUE(is_foreign_origin(head_with({{"host", "h:1"}, {"origin", "null"}}), {}));
}

TEST(Access, TheOriginOfAProxyIsTheServersOwn) {
  const std::pair<std::string, std::string> host = {"host", "127.0.0.1:8000"};
  const std::pair<std::string, std::string> origin = {"origin", "https://llm.example"};
  EXPECT_TRUE(is_foreign_origin(head_with({host, origin}), {}));
  const auto with = [&](const char* name, const char* value) {
    return is_foreign_origin(head_with({host, origin, {name, value}}), {});
  };
  EXPECT_FALSE(with("x-forwarded-host", "LLM.example"));
  EXPECT_FALSE(with("x-forwarded-host", "llm.example, inner"));
  EXPECT_TRUE(with("x-forwarded-host", "inner, llm.example"));
  EXPECT_TRUE(with("x-forwarded-host", ""));
  EXPECT_FALSE(with("sec-fetch-site", "same-origin"));
  EXPECT_TRUE(with("sec-fetch-site", "same-site"));
  EXPECT_TRUE(is_foreign_origin(head_with({{"origin", "http://"}}), {})) << "no host at all";
}

TEST(Access, CorsHeaders) {
  RequestHead head = head_with({{"origin", "http://ui"},
                                {"access-control-request-method", "POST"},
                                {"access-control-request-headers", "authorization,x-a"}});
  EXPECT_FALSE(is_preflight(head));
  EXPECT_TRUE(cors_headers(head, {.allowed_origins = {"http://other"}}).empty());
  EXPECT_TRUE(cors_headers(head_with({}), {.allowed_origins = {"*"}}).empty());
  CorsOptions cors{.allowed_origins = {"http://other", "*"}};
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Origin"), "http://ui");
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Methods"), "");
  head.method = "OPTIONS";
  EXPECT_TRUE(is_preflight(head));
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Headers"),
            "authorization,x-a");
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Credentials"), "");
  cors = {{"http://ui"}, {"*"}, {"Authorization", "X-B"}, true};
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Methods"), "POST");
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Headers"),
            "Authorization, X-B");
  EXPECT_EQ(header_of(cors_headers(head, cors), "Access-Control-Allow-Credentials"), "true");
}

TEST(Access, MediaTypes) {
  RequestHead head = head_with({{"content-type", "Application/JSON; charset=utf-8"}});
  head.content_length = 2;
  EXPECT_TRUE(has_json_body(head));
  head.headers[0].second = "text/plain";
  EXPECT_FALSE(has_json_body(head));
  head.headers.clear();
  EXPECT_TRUE(has_json_body(head));
}

TEST(RequestId, OnlyHarmlessOnesPass) {
  EXPECT_TRUE(is_valid_request_id("Abc-1_2.3"));
  for (const char* id : {"", "a b", "a\"b", "a\nb", "\xc3\xa9"}) {
    EXPECT_FALSE(is_valid_request_id(id));
  }
  EXPECT_FALSE(is_valid_request_id(std::string(65, 'a')));
  const std::string made = new_request_id();
  EXPECT_TRUE(is_valid_request_id(made));
  EXPECT_NE(made, new_request_id());
}

}  // namespace
}  // namespace outrider
