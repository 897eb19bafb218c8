// Who may ask for what: headers, keys, the chat page, other origins.
#include <gtest/gtest.h>

#include "http/server.h"
#include "tests/http/server_fixture.h"

namespace outrider::testing {
namespace {

TEST_F(Server, HeadersAreNotDecodedOrShadowed) {
  options.api_keys = {"secret"};
  start();
  // Were header values percent-decoded, this would be the key.
  EXPECT_EQ(status_of(ask(get_bytes("/v1/models", "X-Api-Key: %73ecret\r\n"))), 401);
  const std::string response = ask(get_bytes("/v1/models",
                                             "X-Api-Key: secret\r\nREMOTE_ADDR: 9.9.9.9\r\n"
                                             "X-Request-Id: a%0d%0aSet-Cookie: x\r\n"));
  EXPECT_EQ(status_of(response), 200);
  EXPECT_EQ(response.find("Set-Cookie"), std::string::npos);
  EXPECT_EQ(response.find("9.9.9.9"), std::string::npos);
}

TEST_F(Server, KeysGuardAllButProbes) {
  options.api_keys = {"k1", "k2"};
  start();
  const std::string refused = ask(post_bytes(R"({"prompt":"a"})"));
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_NE(refused.find("authentication_error"), std::string::npos);
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})", "Authorization: Bearer k2\r\n"))), 200);
  EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})", "Authorization: Bearer k\r\n"))), 401);
  for (const char* path : {"/v1/models", "/tokenize", "/version", "/server_info", "/nowhere"}) {
    EXPECT_EQ(status_of(ask(get_bytes(path))), 401) << path;
  }
  for (const char* path : {"/health", "/livez", "/readyz", "/metrics", "/health/"}) {
    EXPECT_EQ(status_of(ask(get_bytes(path))), 200) << path;
  }
}

TEST_F(Server, ErrorsOfMessagesHaveAnthropicsBody) {
  options.api_keys = {"k"};
  start();
  const std::string prefix = R"({"type":"error","error":{"type":")";
  const std::string keyless = ask(get_bytes("/v1/messages"));
  EXPECT_EQ(status_of(keyless), 401);
  EXPECT_NE(keyless.find(prefix + "authentication_error"), std::string::npos) << keyless;
  const std::string wrong = ask(get_bytes("/v1/messages", "X-Api-Key: k\r\n"));
  EXPECT_EQ(status_of(wrong), 405);
  EXPECT_NE(wrong.find(prefix + "invalid_request_error"), std::string::npos) << wrong;
}

TEST_F(Server, TheChatPageNeedsNoKeyAndAllowsOnlyItself) {
  options.api_keys = {"k1"};
  start();
  const std::string page = ask(get_bytes("/"));
  EXPECT_EQ(status_of(page), 200);
  EXPECT_NE(page.find("Content-Type: text/html; charset=utf-8"), std::string::npos);
  const std::string mark = "script-src 'nonce-";
  const size_t at = page.find(mark);
  ASSERT_NE(at, std::string::npos);
  const std::string nonce = page.substr(at + mark.size(), 32);
  EXPECT_NE(page.find("<script nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_NE(page.find("<style nonce=\"" + nonce + "\">"), std::string::npos);
  EXPECT_EQ(page.find("nonce=\"NONCE\""), std::string::npos);
  EXPECT_EQ(ask(get_bytes("/")).find(nonce), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
  const std::string head = ask("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(status_of(head), 200);
  EXPECT_EQ(head.find("<html"), std::string::npos);
  const std::string post = ask("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(status_of(post), 405);
  EXPECT_NE(post.find("Allow: GET, HEAD"), std::string::npos);
}

TEST_F(Server, TheChatPageIsThereWhileTheModelIsLoaded) {
  server = std::make_unique<HttpServer>(options);
  server->start();
  EXPECT_EQ(status_of(ask(get_bytes("/"))), 200);
}

TEST_F(Server, TheChatPageCanBeLeftOut) {
  options.webui = false;
  start();
  EXPECT_EQ(status_of(ask(get_bytes("/"))), 404);
}

TEST_F(Server, PathsAreServedWithAndWithoutTheRootPath) {
  options.root_path = "/ai/llm";
  options.api_keys = {"k"};
  start();
  const std::string key = "X-Api-Key: k\r\n";
  for (const std::string prefix : {"", "/ai/llm"}) {
    EXPECT_EQ(status_of(ask(get_bytes(prefix + "/v1/models", key))), 200) << prefix;
    EXPECT_EQ(status_of(ask(get_bytes(prefix + "/v1/models"))), 401) << prefix;
    EXPECT_EQ(status_of(ask(get_bytes(prefix + "/health"))), 200) << prefix;
    EXPECT_NE(ask(get_bytes(prefix + "/")).find("<html"), std::string::npos) << prefix;
    EXPECT_EQ(status_of(ask(post_bytes(R"({"prompt":"a"})", key, prefix + "/v1/completions"))),
              200);
    const std::string message = ask(get_bytes(prefix + "/v1/messages"));
    EXPECT_NE(message.find(R"({"type":"error")"), std::string::npos) << message;
  }
  EXPECT_EQ(status_of(ask(get_bytes("/ai/llmx/health", key))), 404);
  // Without the slash the page's relative addresses would be wrong.
  const std::string moved = ask(get_bytes("/ai/llm"));
  EXPECT_EQ(status_of(moved), 307);
  EXPECT_NE(moved.find("\r\nLocation: llm/\r\n"), std::string::npos) << moved;
}

TEST_F(Server, CrossOriginOnlyWhenAllowed) {
  options.cors.allowed_origins = {"http://ui.example"};
  options.api_keys = {"k"};
  start();
  const auto preflight = [&](const std::string& origin) {
    return ask("OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: " + origin +
               "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
  };
  const std::string allowed = preflight("http://ui.example");
  EXPECT_EQ(status_of(allowed), 200) << "no key is asked for";
  EXPECT_NE(allowed.find("Access-Control-Allow-Origin: http://ui.example"), std::string::npos);
  for (const std::string& other :
       {preflight("http://evil"),
        ask(post_bytes(R"({"prompt":"a"})", "Origin: http://evil\r\n"))}) {
    EXPECT_EQ(status_of(other), 403);
    EXPECT_EQ(other.find("Access-Control"), std::string::npos);
  }
  const std::string keyless = ask(post_bytes(R"({"prompt":"a"})", "Origin: http://ui.example\r\n"));
  EXPECT_EQ(status_of(keyless), 401);
  EXPECT_NE(keyless.find("Access-Control-Allow-Origin: "), std::string::npos)
      << "the page must be able to read why";
}

}  // namespace
}  // namespace outrider::testing
