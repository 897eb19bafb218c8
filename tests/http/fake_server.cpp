// The HTTP server over the fake engine as a program, for the Python clients of tests/e2e: prints
// "port N" and serves until its input ends. One argument: the path of a Unix socket; two:
// certificate and key for TLS. Every request gets the same text again and again up to its
// max_tokens.
#include <cstdio>
#include <iostream>
#include <string>

#include "http/server.h"
#include "tests/http/fake_engine.h"

int main(int argc, char** argv) {
  using namespace outrider;
  const std::string data = std::string(OUTRIDER_SOURCE_DIR) + "/tests/http/data";
  const auto tokenizer = Tokenizer::load(data);
  testing::FakeEngine engine(tokenizer->vocab_size());
  engine.script = [&](const Request&) {
    testing::Script script;
    script.tokens = tokenizer->encode("hello world, the outrider rides ahead. ");
    script.pause = std::chrono::milliseconds(1);
    script.endless = true;
    return script;
  };
  ServingMetrics metrics("test-model", engine.info().max_model_len, 4);
  HttpOptions options;
  options.port = 0;
  if (argc == 2) options.uds = argv[1];
  if (argc == 3) {
    options.ssl_certfile = argv[1];
    options.ssl_keyfile = argv[2];
  }
  ServedModel model;
  model.tokenizer = tokenizer;
  model.chat_template = ChatTemplate::parse(
      "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
      "{% endfor %}<|im_start|>assistant\n");
  OpenAiService service(engine, metrics, std::move(model), options);
  HttpServer server(options);
  server.start();
  const HttpServer::Opening opening = server.open(service, metrics);
  std::printf("port %d\n", server.port());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
  }
  server.stop(std::chrono::milliseconds(1000));
  return 0;
}
