// The service over a fake engine and the tokenizer of tests/http/data, and small helpers to read
// its JSON.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "http/service.h"
#include "tests/http/fake_engine.h"

namespace outrider::testing {

inline std::shared_ptr<const Tokenizer> test_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::load(std::string(OUTRIDER_SOURCE_DIR) + "/tests/http/data");
  return tokenizer;
}

inline std::vector<int32_t> ids_of(const std::string& text) {
  return test_tokenizer()->encode(text, {.add_special_tokens = false});
}

inline std::shared_ptr<const GrammarEngine> test_engine() {
  const int32_t vocab_size = test_tokenizer()->vocab_size();
  std::vector<std::string> bytes;
  for (int32_t id = 0; id < vocab_size; ++id)
    bytes.push_back(test_tokenizer()->is_special(id) ? "" : test_tokenizer()->token_bytes(id));
  return std::make_shared<const GrammarEngine>(bytes, vocab_size);
}

// One token per byte, so that tests can cut characters and stop strings anywhere.
inline std::vector<int32_t> bytes_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

constexpr const char* kTestTemplate =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class HttpFixture : public ::testing::Test {
 protected:
  HttpFixture() : engine(test_tokenizer()->vocab_size()), metrics("test-model", 512, 4) {
    play("hello world, this is text");
    options.port = 0;
    make_service(true);
  }

  void make_service(bool with_template, std::shared_ptr<const GrammarEngine> grammars = nullptr) {
    ServedModel model;
    model.tokenizer = test_tokenizer();
    if (with_template) model.chat_template = ChatTemplate::parse(template_source);
    model.answer_formats = answer_formats;
    model.defaults = defaults;
    model.system_fingerprint = "fp-test";
    model.grammars = std::move(grammars);
    service = std::make_unique<OpenAiService>(engine, metrics, std::move(model), options);
  }

  void play(const std::string& text, size_t tokens_per_event = 3) {
    Script script;
    script.tokens = ids_of(text);
    script.tokens_per_event = tokens_per_event;
    play(script);
  }
  void play(const Script& script) {
    engine.script = [script](const Request&) { return script; };
  }
  // Requests for kEndlessTokens go on for longer than any test: what happens to them meanwhile does
  // so however slow the machine is.
  static constexpr int kEndlessTokens = 1'000'000;
  void play_endless(std::chrono::milliseconds pause = std::chrono::milliseconds(5)) {
    engine.mutable_info().max_model_len = 5 * kEndlessTokens;
    play(Script{.tokens = ids_of("abc "), .pause = pause, .endless = true});
  }

  ServerResponse post(const std::string& path, const std::string& body) {
    ServiceCall call;
    call.path = path;
    call.body.text = body;
    call.request_id = "fixed";
    return service->handle(std::move(call));
  }
  ServerResponse get(const std::string& path) {
    ServiceCall call;
    call.method = "GET";
    call.path = path;
    return service->handle(std::move(call));
  }
  nlohmann::json post_json(const std::string& path, const std::string& body, int status = 200) {
    const ServerResponse reply = post(path, body);
    EXPECT_EQ(reply.status, status) << reply.body;
    return nlohmann::json::parse(reply.body, nullptr, false);
  }

  // Runs a stream to its end; the events' data, [DONE] included.
  std::vector<std::string> stream(const std::string& path, const std::string& body) {
    const ServerResponse reply = post(path, body);
    EXPECT_EQ(reply.content_type, "text/event-stream") << reply.body;
    std::string text;
    if (reply.stream) {
      while (reply.stream->next(&text)) {
      }
    }
    return events_of(text);
  }

  // Reads on until the text has come; false when it does not within a minute.
  static bool read_until(ByteSource& stream, const std::string& text, std::string* out) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    bool has_more = true;
    while (has_more && out->find(text) == std::string::npos &&
           std::chrono::steady_clock::now() < end) {
      has_more = stream.next(out);
    }
    return out->find(text) != std::string::npos;
  }

  static std::vector<std::string> events_of(const std::string& text) {
    std::vector<std::string> events;
    size_t at = 0;
    while (at < text.size()) {
      const size_t end = text.find("\n\n", at);
      EXPECT_NE(end, std::string::npos);
      if (end == std::string::npos) break;
      const std::string event = text.substr(at, end - at);
      if (event.rfind("data: ", 0) == 0) events.push_back(event.substr(6));
      at = end + 2;
    }
    return events;
  }

  // The methods that a response lists; empty when it has none.
  static std::string allow_of(const ServerResponse& response) {
    for (const auto& [name, value] : response.headers) {
      if (name == "Allow") return value;
    }
    return "";
  }
  static std::string error_of(const nlohmann::json& body) { return body["error"]["message"]; }

  const char* template_source = kTestTemplate;
  FakeEngine engine;
  ServingMetrics metrics;
  GenerationDefaults defaults;
  AnswerFormats answer_formats = choose_answer_formats({}, "auto", "auto");
  HttpOptions options;
  std::unique_ptr<OpenAiService> service;
};

}  // namespace outrider::testing
