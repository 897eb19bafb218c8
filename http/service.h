// The OpenAI API, and its dialects, without a transport: a method, a path and a body in; a status
// and JSON, or a stream of server-sent events, out. Used by the HTTP server and by `outrider
// batch`. Thread-safe: handle() runs on the caller's thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/api/call_prompts.h"
#include "http/api/generation.h"
#include "http/api/openai_request.h"
#include "http/api/service_call.h"
#include "http/api/serving_metrics.h"
#include "http/dialects/dialect.h"
#include "http/wire/api_error.h"
#include "http/wire/byte_budget.h"
#include "http/wire/options.h"
#include "models/checkpoint/model_config.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "scheduler/engine.h"
#include "scheduler/sampling/grammar_engine.h"

namespace outrider {

// What the front end needs of the model.
struct ServedModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  AnswerFormats answer_formats = choose_answer_formats({}, "auto", "auto");
  std::shared_ptr<const GrammarEngine> grammars;  // null: no structured output
  GenerationDefaults defaults;
  std::vector<int32_t> end_token_ids;  // of the model's configuration; the tokenizer's is added
  std::string system_fingerprint;      // of answers; empty: null
};

class OpenAiService {
 public:
  // All references must outlive the service. Only call, default_seed, sse_ping_interval,
  // stall_after, metrics_namespaces and build of the options are used.
  OpenAiService(Engine& engine,
                ServingMetrics& metrics,
                ServedModel model,
                const HttpOptions& options);

  // Never throws. A non-streaming generation is waited for; a streaming one is waited for up to its
  // first event, so that an early error has its own status.
  ServerResponse handle(ServiceCall call);

  // From now on new generations are 503 and readiness fails.
  void begin_drain() { draining_ = true; }
  // What still runs ends with an error, streams with an error event.
  void abort_running() { aborting_ = true; }
  int num_running() const { return num_running_.load(); }

 private:
  ServerResponse route(ServiceCall& call);
  ServerResponse route_get(const ServiceCall& call);
  ServerResponse route_post(ServiceCall& call);
  ServerResponse generate(ServiceCall& call, CallKind kind, bool clamp_max_tokens = false);
  ServerResponse generate_in_dialect(ServiceCall& call, DialectCall dialect);
  ServerResponse count_tokens(std::string_view body) const;
  ServerResponse run_to_end(const ServiceCall& call,
                            Generation& generation,
                            const ResponseWriter& writer);
  // These wait for more of the answer, a moment or up to its first event. False when the client
  // has left.
  bool wait_a_slice(const ServiceCall& call, Generation& generation);
  bool wait_first_event(const ServiceCall& call, Generation& generation);
  void check_answer_size(const Generation& generation, size_t num_logprobs) const;
  CompletionCall prepare(const ServiceCall& call, CallKind kind, bool clamp_max_tokens);
  TextModel text_model() const;
  void settle_answer(std::string_view prompt, CompletionCall* call) const;
  std::vector<int32_t> shown_special_ids(bool looks_for_calls) const;
  void check_grammar(CompletionCall& call) const;

  ServerResponse health() const;
  ServerResponse readiness() const;
  ServerResponse tokenize(std::string_view body) const;
  ServerResponse detokenize(std::string_view body) const;
  ServerResponse apply_template(std::string_view body) const;
  ServerResponse error_reply(const ApiError& error);

  Engine& engine_;
  ServingMetrics& metrics_;
  ServedModel model_;
  const HttpOptions& options_;
  const int64_t created_;
  ByteBudget large_answers_;
  std::vector<int32_t> shown_of_reasoning_;  // special tokens that parsers of answers look for
  std::vector<int32_t> shown_of_calls_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> aborting_{false};
  std::atomic<int> num_running_{0};
  std::atomic<uint64_t> num_unseeded_{0};
};

}  // namespace outrider
