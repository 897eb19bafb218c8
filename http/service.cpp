// See service.h.
#include "http/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "http/api/call_prompts.h"
#include "http/api/chat_messages.h"
#include "http/api/event_stream.h"
#include "http/api/openai_response.h"
#include "http/api/request_fields.h"
#include "http/api/schema_gaps.h"
#include "http/dialects/messages.h"
#include "http/dialects/responses.h"
#include "http/wire/access.h"
#include "http/wire/api_error.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kSlice{40};  // how often a waiting call looks for its client
// How long the head of a stream is held back for a first event when pings are off.
constexpr std::chrono::milliseconds kMaxHold{15000};
// What a listed token takes until its answer is sent: 231 MB were seen for one of 1.2 million.
constexpr size_t kBytesPerLogprob = 200;
constexpr size_t kMostGaps = 16;  // of one schema, in warnings

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

// OpenAI's ids: cmpl-... and chatcmpl-...
ResponseHead response_head(const ServiceCall& call, CallKind kind, const EngineInfo& info) {
  const std::string id = call.request_id.empty() ? new_request_id() : call.request_id;
  return {(kind == CallKind::kChat ? "chatcmpl-" : "cmpl-") + id,
          unix_seconds(),
          info.served_model_name};
}

constexpr const char* kGet = "GET, HEAD";
constexpr const char* kPost = "POST";
constexpr std::string_view kModelPrefix = "/v1/models/";

// Clients send a slash at the end, and leave out /v1 where their base URL lacks it.
std::string canonical_path(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const bool lacks_version = path == "/completions" || path == "/chat/completions" ||
                             path == "/models" || path.starts_with("/models/") ||
                             path == "/responses" || path.starts_with("/messages");
  return lacks_version ? "/v1" + path : path;
}

// As the header Allow lists them; empty where there is no such path.
std::string allowed_methods(std::string_view path) {
  static constexpr std::pair<std::string_view, const char*> kPaths[] = {
      {"/v1/completions", kPost},
      {"/v1/chat/completions", kPost},
      {"/v1/responses", kPost},
      {"/v1/messages", kPost},
      {"/v1/messages/count_tokens", kPost},
      {"/tokenize", kPost},
      {"/detokenize", kPost},
      {"/apply-template", kPost},
      {"/ping", "GET, HEAD, POST"},
      {"/v1/models", kGet},
      {"/health", kGet},
      {"/health/ready", kGet},
      {"/livez", kGet},
      {"/readyz", kGet},
      {"/metrics", kGet},
      {"/version", kGet},
      {"/load", kGet},
      {"/server_info", kGet},
      {"/tokenizer_info", kGet}};
  for (const auto& [known, methods] : kPaths) {
    if (path == known) return methods;
  }
  return path.starts_with(kModelPrefix) ? kGet : "";
}

}  // namespace

OpenAiService::OpenAiService(Engine& engine,
                             ServingMetrics& metrics,
                             ServedModel model,
                             const HttpOptions& options)
    : engine_(engine),
      metrics_(metrics),
      model_(std::move(model)),
      options_(options),
      created_(unix_seconds()),
      large_answers_(options.call.max_answer_bytes_in_flight) {
  std::vector<int32_t>& ids = model_.end_token_ids;
  if (const std::optional<int32_t> id = model_.tokenizer->eos_id()) ids.push_back(*id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  shown_of_reasoning_ = shown_special_ids(false);
  shown_of_calls_ = shown_special_ids(true);
}

std::vector<int32_t> OpenAiService::shown_special_ids(bool looks_for_calls) const {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < model_.tokenizer->vocab_size(); ++id) {
    if (model_.tokenizer->is_special(id) &&
        is_shown(model_.answer_formats, looks_for_calls, model_.tokenizer->token_bytes(id)))
      ids.push_back(id);
  }
  return ids;
}

ServerResponse OpenAiService::error_reply(const ApiError& error) {
  metrics_.requests_refused(error.status()).add();
  return {.status = error.status(), .body = error_json(error)};
}

ServerResponse OpenAiService::handle(ServiceCall call) {
  try {
    return route(call);
  } catch (const ApiError& error) {
    return error_reply(error);
  } catch (const std::exception& error) {
    // What went wrong inside is for the log, not for the client.
    log_error("call to {} failed: {}", call.path, error.what());
    return error_reply({500, "internal error"});
  }
}

ServerResponse OpenAiService::route(ServiceCall& call) {
  call.path = canonical_path(std::move(call.path));
  if (call.path.starts_with("/v1/responses/"))
    throw ApiError(404, "responses are not stored: there is none of this id");
  const std::string allowed = allowed_methods(call.path);
  if (allowed.empty()) throw ApiError(404, "there is no such path");
  if (call.method == "POST" && allowed != kGet) return route_post(call);
  if ((call.method == "GET" || call.method == "HEAD") && allowed != kPost) return route_get(call);
  ServerResponse reply =
      error_reply({405, fmt::format("{} needs {}", call.path, allowed == kPost ? "POST" : "GET")});
  reply.headers.emplace_back("Allow", allowed);
  return reply;
}

ServerResponse OpenAiService::route_get(const ServiceCall& call) {
  const std::string& path = call.path;
  ServerResponse reply;
  if (path == "/health" || path == "/ping") return health();
  if (path == "/livez") return {.body = text_object_json({{"status", "ok"}})};
  if (path == "/readyz" || path == "/health/ready") return readiness();
  if (path == "/metrics") {
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_.render(options_.metrics_namespaces);
  } else if (path == "/version") {
    reply.body = text_object_json(options_.build);
  } else if (path == "/load") {
    reply.body = fmt::format("{{\"server_load\":{}}}", num_running());
  } else if (path == "/server_info") {
    reply.body = server_info_json(engine_.info(), engine_.status(), options_.build);
  } else if (path == "/tokenizer_info") {
    reply.body = tokenizer_info_json(*model_.tokenizer, engine_.info().max_model_len);
  } else if (path == "/v1/models") {
    reply.body = model_list_json(engine_.info(), created_);
  } else {
    check_model_name(path.substr(kModelPrefix.size()), engine_.info());
    reply.body = model_json(engine_.info(), created_);
  }
  return reply;
}

ServerResponse OpenAiService::route_post(ServiceCall& call) {
  const std::string& path = call.path;
  if (path == "/ping") return health();
  if (path == "/tokenize") return tokenize(call.body.text);
  if (path == "/detokenize") return detokenize(call.body.text);
  if (path == "/apply-template") return apply_template(call.body.text);
  const bool strict = options_.call.strict_params;
  if (path == "/v1/responses")
    return generate_in_dialect(call, read_responses_call(call.body.text, strict));
  if (path == "/v1/messages")
    return generate_in_dialect(call, read_messages_call(call.body.text, strict));
  if (path == "/v1/messages/count_tokens") return count_tokens(call.body.text);
  return generate(call, path == "/v1/completions" ? CallKind::kCompletion : CallKind::kChat);
}

ServerResponse OpenAiService::health() const {
  const EngineStatus status = engine_.status();
  const double limit_s = std::chrono::duration<double>(options_.stall_after).count();
  const bool stalled = status.last_round_age_s > limit_s;
  const bool good = (status.ready || status.draining) && !stalled;
  const char* text = stalled ? "stalled" : good ? "ok" : status.failed ? "failed" : "loading";
  return {.status = good ? 200 : 503, .body = text_object_json({{"status", text}})};
}

ServerResponse OpenAiService::readiness() const {
  const EngineStatus status = engine_.status();
  if (status.draining || draining_) {
    throw ApiError(503, "draining: no new requests are taken", {}, "draining");
  }
  if (status.failed) throw ApiError(503, "the job has ended", {}, "failed");
  if (!status.ready) throw ApiError(503, "the model is being loaded", {}, "loading");
  return {.body = text_object_json({{"status", "ready"}})};
}

TextModel OpenAiService::text_model() const {
  return {*model_.tokenizer, model_.chat_template, engine_.info().max_model_len};
}

CompletionCall OpenAiService::prepare(const ServiceCall& call,
                                      CallKind kind,
                                      bool clamp_max_tokens) {
  const CallContext context{
      engine_.info(), model_.defaults, options_.call, model_.end_token_ids, model_.answer_formats};
  CompletionCall request = kind == CallKind::kChat ? read_chat_call(call.body.text, context)
                                                   : read_completion_call(call.body.text, context);
  request.clamp_max_tokens = clamp_max_tokens;
  request.priority = std::max(request.priority, call.least_priority);
  request.spec_decode_metrics = options_.per_request_spec_decode_metrics;
  if (!request.params.seed && options_.default_seed)
    request.params.seed = mix64(mix64(*options_.default_seed) + num_unseeded_++);
  metrics_.unknown_parameters.add(static_cast<double>(request.warnings.size()));
  std::optional<RenderedPrompt> chat;
  if (kind == CallKind::kChat) {
    chat = render_chat(text_model(), request.template_inputs);
    settle_answer(chat->text, &request);
  }
  check_grammar(request);
  request.params.bad_words = encode_bad_words(request.bad_words, *model_.tokenizer);
  request.params.max_tokens = INT32_MAX;
  add_prompts(text_model(), chat ? &*chat : nullptr, &request);
  request.params.min_tokens = std::min(request.params.min_tokens, request.params.max_tokens);
  return request;
}

namespace {

bool ends_in_reasoning(std::string_view message, const ReasoningFormat& format) {
  const size_t begin = message.rfind(format.begin);
  const size_t end = message.rfind(format.end);
  return begin != std::string_view::npos && (end == std::string_view::npos || end < begin);
}

}  // namespace

// What the answer to this prompt may begin with. A grammar is about what follows the reasoning.
void OpenAiService::settle_answer(std::string_view prompt, CompletionCall* call) const {
  const AnswerFormats& formats = model_.answer_formats;
  if (call->functions) {
    call->shown_special_ids = shown_of_calls_;
  } else if (formats.reasoning) {
    call->shown_special_ids = shown_of_reasoning_;
  }
  if (!formats.reasoning) return;
  const std::string_view end = prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1);
  // In harmony every answer begins behind the end of a message, with its reasoning.
  bool is_over = !formats.is_harmony() && end.ends_with(formats.reasoning->end);
  call->begins_in_reasoning = end.ends_with(formats.reasoning->begin);
  if (call->continued && !call->continued->empty()) {
    call->begins_in_reasoning = ends_in_reasoning(*call->continued, *formats.reasoning);
    is_over = !call->begins_in_reasoning;
  }
  if (!call->params.grammar || is_over) return;
  const auto ids_of = [&](std::string_view text) {
    return model_.tokenizer->encode(text, {.add_special_tokens = false});
  };
  Grammar grammar = *call->params.grammar;
  grammar.reasoning = {
      ids_of(formats.reasoning->begin), ids_of(formats.reasoning->end), call->begins_in_reasoning};
  // A text answer of harmony comes in a channel of its own, whatever was written before it.
  const std::string_view answer_begin = formats.reasoning->answer_begin;
  if (!answer_begin.empty() && !call->functions)
    grammar.reasoning = {{}, ids_of(answer_begin), true};
  call->params.grammar = std::make_shared<const Grammar>(std::move(grammar));
}

// Compiled here, so that the ranks find it done and a bad one costs its own request alone.
void OpenAiService::check_grammar(CompletionCall& call) const {
  if (!call.params.grammar) return;
  const std::string& param = call.grammar_param;
  if (model_.grammars == nullptr) {
    throw bad_param(param,
                    fmt::format("'{}' is not supported: this server has no grammar engine, "
                                "xgrammar, for its model",
                                param));
  }
  if (!model_.grammars->knows(*call.params.grammar)) engine_.announce(call.params.grammar);
  std::vector<std::pair<std::string, std::string>> gaps;  // (field, what of it is not applied)
  try {
    for (std::string& gap :
         model_.grammars->check(*call.params.grammar, options_.call.max_grammar_compile))
      gaps.emplace_back(param, std::move(gap));
  } catch (const Error& error) {
    throw bad_param(param, fmt::format("'{}' cannot be used: {}", param, error.what()));
  }
  for (const auto& [field, schema] : call.grammar_schemas) {
    const size_t room = kMostGaps - std::min(kMostGaps, gaps.size());
    for (std::string& gap : schema_gaps(schema, room)) gaps.emplace_back(field, std::move(gap));
  }
  for (const auto& [field, gap] : gaps) {
    if (call.strict_grammar)
      throw bad_param(field, fmt::format("'{}' cannot be enforced as a whole: {}", field, gap));
    call.warnings.push_back(fmt::format("{}: {}", field, gap));
  }
}

ServerResponse OpenAiService::generate(ServiceCall& call, CallKind kind, bool clamp_max_tokens) {
  if (draining_) {
    throw ApiError(503, "draining: no new requests are taken", {}, "draining");
  }
  ++num_running_;  // until its last byte: drain waits for zero
  const std::shared_ptr<void> running(&num_running_, [](std::atomic<int>* count) { --*count; });
  auto generation = std::make_unique<Generation>(engine_,
                                                 metrics_,
                                                 model_.tokenizer,
                                                 prepare(call, kind, clamp_max_tokens),
                                                 model_.answer_formats);
  call.body = {};
  check_answer_size(*generation, generation->num_prompt_logprobs());
  generation->start();
  if (!generation->call().request_id.empty()) call.request_id = generation->call().request_id;
  ResponseHead head = response_head(call, kind, engine_.info());
  head.system_fingerprint = model_.system_fingerprint;
  if (!generation->call().stream) {
    const ResponseWriter writer(generation->call(), std::move(head), model_.tokenizer);
    return run_to_end(call, *generation, writer);
  }
  if (!wait_first_event(call, *generation)) return {.client_gone = true};
  ServerResponse reply;
  reply.content_type = "text/event-stream";
  reply.stream = std::make_unique<CallEventStream>(
      std::move(generation),
      std::move(head),
      model_.tokenizer,
      CallEventStream::Surroundings{metrics_, aborting_, options_.sse_ping_interval, running});
  return reply;
}

ServerResponse OpenAiService::generate_in_dialect(ServiceCall& call, DialectCall dialect) {
  call.body.text = std::move(dialect.chat_body);
  try {
    ServerResponse reply = generate(call, CallKind::kChat, dialect.clamp_max_tokens);
    if (reply.stream) {
      reply.stream = dialect_stream(std::move(dialect.writer), std::move(reply.stream));
    } else if (!reply.client_gone) {
      reply.body = dialect_answer(*dialect.writer, reply.body);
    }
    return reply;
  } catch (const ApiError& error) {
    throw renamed(error, dialect.names);
  }
}

// What is too much for an empty server is the request's own fault.
void OpenAiService::check_answer_size(const Generation& generation, size_t num_logprobs) const {
  const size_t most = large_answers_.most_bytes() / kBytesPerLogprob;
  if (num_logprobs <= most) return;
  throw bad_param(
      generation.call().num_prompt_logprobs ? "prompt_logprobs" : "logprobs",
      fmt::format("the answer would list {} log-probabilities, more than the {} of one answer: ask "
                  "for less at once",
                  num_logprobs,
                  most));
}

bool OpenAiService::wait_a_slice(const ServiceCall& call, Generation& generation) {
  if (call.client_gone && call.client_gone()) {
    metrics_.clients_gone.add();
    return false;
  }
  if (aborting_) throw ApiError(503, "the server is shutting down", {}, "shutting_down");
  generation.poll(kSlice);
  return true;
}

bool OpenAiService::wait_first_event(const ServiceCall& call, Generation& generation) {
  const auto ping = options_.sse_ping_interval;
  const auto hold = ping.count() > 0 ? std::min(ping, kMaxHold) : kMaxHold;
  const auto deadline = std::chrono::steady_clock::now() + hold;
  while (!generation.has_output() && std::chrono::steady_clock::now() < deadline) {
    if (!wait_a_slice(call, generation)) return false;
  }
  return true;
}

ServerResponse OpenAiService::run_to_end(const ServiceCall& call,
                                         Generation& generation,
                                         const ResponseWriter& writer) {
  ByteBudget::Share share;
  while (!generation.done()) {
    if (!large_answers_.grow(&share, kBytesPerLogprob * generation.num_logprobs())) {
      check_answer_size(generation, generation.num_logprobs());
      throw ApiError(503, "too many log-probabilities in answers at once");
    }
    if (!wait_a_slice(call, generation)) {
      generation.log_end(writer.id(), "client gone");
      return {.client_gone = true};
    }
  }
  generation.log_end(writer.id(), "done");
  std::vector<ChoiceOutput> choices;
  for (size_t i = 0; i < generation.num_choices(); ++i) choices.push_back(*generation.take(i));
  return {.body = writer.response(choices, generation.usage(), generation.speculation())};
}

ServerResponse OpenAiService::tokenize(std::string_view text) const {
  const JsonFields body = JsonFields::parse(text);
  check_fields(body, Endpoint::kTokenize, options_.call.strict_params);
  check_model_name(body.text("model"), engine_.info());
  std::vector<int32_t> ids;
  const std::optional<bool> add_special = body.boolean("add_special_tokens");
  if (body.has("messages")) {
    ids = encode_chat(text_model(),
                      render_chat(text_model(), chat_template_inputs(body, options_.call)),
                      add_special.value_or(false));
  } else {
    // vLLM's field is prompt, llama.cpp's is content; their defaults for special tokens differ.
    const bool is_content = !body.has("prompt");
    const std::optional<std::string> prompt = body.text(is_content ? "content" : "prompt");
    if (!prompt) throw bad_param("prompt", "'prompt', 'content' or 'messages' is needed");
    EncodeOptions options;
    options.add_special_tokens =
        add_special.value_or(body.boolean("add_special").value_or(!is_content));
    options.parse_special_tokens = body.boolean("parse_special").value_or(true);
    ids = model_.tokenizer->encode(*prompt, options);
  }
  TokenListing listing = TokenListing::kIds;
  if (body.boolean("with_pieces").value_or(false)) {
    listing = TokenListing::kPieces;
  } else if (body.boolean("return_token_strs").value_or(false)) {
    listing = TokenListing::kIdsAndTexts;
  }
  const int32_t max_model_len = engine_.info().max_model_len;
  return {.body = tokenize_json(ids, listing, *model_.tokenizer, max_model_len)};
}

ServerResponse OpenAiService::count_tokens(std::string_view text) const {
  const std::string counted = tokenize(token_count_body(text, options_.call.strict_params)).body;
  return {.body = token_count_json(*JsonFields::parse(counted).integer("count", 0, INT64_MAX))};
}

// llama.cpp's: the text that a chat's prompt is made from.
ServerResponse OpenAiService::apply_template(std::string_view text) const {
  const JsonFields body = JsonFields::parse(text);
  check_fields(body, Endpoint::kChat, options_.call.strict_params);
  check_model_name(body.text("model"), engine_.info());
  const RenderedPrompt rendered =
      render_chat(text_model(), chat_template_inputs(body, options_.call));
  return {.body = text_object_json({{"prompt", rendered.text}})};
}

ServerResponse OpenAiService::detokenize(std::string_view text) const {
  const JsonFields body = JsonFields::parse(text);
  check_fields(body, Endpoint::kDetokenize, options_.call.strict_params);
  check_model_name(body.text("model"), engine_.info());
  const auto ids = body.token_ids("tokens", engine_.info().vocab_size);
  if (!ids) throw bad_param("tokens", "'tokens' must be a list of token ids");
  const std::string decoded = model_.tokenizer->decode(*ids, false);
  return {.body = text_object_json({{"prompt", decoded}, {"content", decoded}})};
}

}  // namespace outrider
