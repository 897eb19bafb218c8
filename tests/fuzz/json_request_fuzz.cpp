// Calls of the API, from the body's bytes to prompts and sampling parameters, and back: the first
// byte chooses the path, the rest is the body. The engine answers at once. Nothing may end in a
// 500.
#include "http/service.h"
#include "runtime/base/log.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace outrider;

// Says the same few tokens to everybody, and checks what it is asked.
class InstantEngine : public Engine {
 public:
  explicit InstantEngine(int32_t vocab_size) {
    info_.served_model_name = "m";
    info_.max_model_len = 512;
    info_.vocab_size = vocab_size;
  }
  const EngineInfo& info() const override { return info_; }
  uint64_t next_request_id() override { return ++last_id_; }
  void cancel(uint64_t) override {}
  EngineStatus status() const override { return {.ready = true}; }

  AdmissionResult submit(Request request) override {
    const SamplingParams& params = request.params;
    const size_t length = request.prompt.size() + static_cast<size_t>(params.max_tokens);
    FUZZ_CHECK(!request.prompt.empty() && length <= static_cast<size_t>(info_.max_model_len));
    for (const int32_t id : request.prompt) FUZZ_CHECK(id >= 0 && id < info_.vocab_size);
    FUZZ_CHECK(params.temperature >= 0 && params.top_p > 0 && params.top_p <= 1);
    FUZZ_CHECK(params.min_tokens <= params.max_tokens);
    ResultEvent event{.finish_reason = FinishReason::kStop};
    if (params.prompt_logprobs)
      event.prompt_logprobs.resize(request.prompt.size() - 1, {.logprob = -1, .rank = 1});
    const size_t num_tokens = std::min<size_t>(static_cast<size_t>(params.max_tokens), 4);
    for (size_t i = 0; i < num_tokens; ++i) {
      event.tokens.push_back(static_cast<int32_t>("{<\xE4\""[i] & 0xff));
      event.origins.push_back(TokenOrigin::kPlain);
      if (params.num_logprobs >= 0) event.logprobs.push_back({.logprob = -1, .rank = 1});
    }
    request.stream->push(event);
    return {};
  }

 private:
  EngineInfo info_;
  uint64_t last_id_ = 0;
};

constexpr const char* kPaths[] = {"/v1/completions",
                                  "/v1/chat/completions",
                                  "/v1/responses",
                                  "/v1/messages",
                                  "/v1/messages/count_tokens",
                                  "/tokenize",
                                  "/detokenize",
                                  "/apply-template"};
constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls|tojson if "
    "m.tool_calls }}<|im_end|>{% endfor %}{{ tools|tojson if tools }}<tool_call></tool_call>";

std::shared_ptr<const GrammarEngine> grammars_of(const Tokenizer& tokenizer) {
  if (!GrammarEngine::is_built()) return nullptr;
  std::vector<std::string> bytes;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    bytes.push_back(tokenizer.is_special(id) ? "" : tokenizer.token_bytes(id));
  return std::make_shared<const GrammarEngine>(bytes, tokenizer.vocab_size());
}

struct Served {
  std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::load(OUTRIDER_SOURCE_DIR "/tests/http/data");
  InstantEngine engine{tokenizer->vocab_size()};
  ServingMetrics metrics{"m", 512, 4};
  HttpOptions options;
  OpenAiService service{engine,
                        metrics,
                        {.tokenizer = tokenizer,
                         .chat_template = ChatTemplate::parse(kTemplate),
                         .answer_formats = choose_answer_formats(kTemplate, "hermes", "qwen3"),
                         .grammars = grammars_of(*tokenizer)},
                        options};

  Served() { set_log_level(LogLevel::kError); }
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  static Served served;
  fuzz::Input input(data, num_bytes);
  ServiceCall call;
  call.path = kPaths[input.byte() % std::size(kPaths)];
  call.body.text = input.rest();
  ServerResponse reply = served.service.handle(std::move(call));
  FUZZ_CHECK(reply.status < 500);
  while (reply.stream && reply.stream->next(&reply.body)) {
  }
  FUZZ_CHECK(!reply.body.empty());
  return 0;
}
