// See openai_request.h. Names and defaults are OpenAI's, with vLLM's additions;
// generation_config.json fills what a request leaves out.
#include "http/api/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "http/api/chat_messages.h"
#include "http/api/request_fields.h"
#include "http/api/structured_output.h"
#include "http/api/tool_choice.h"
#include "http/wire/access.h"
#include "http/wire/api_error.h"

namespace outrider {
namespace {

// llama.cpp's penalties look at so many last tokens, ours at all.
void check_penalty_window(const JsonFields& body, const SamplingParams& params) {
  const int64_t window = body.integer("repeat_last_n", -1, INT32_MAX).value_or(-1);
  const bool penalises = params.repetition_penalty != 1 || params.presence_penalty != 0 ||
                         params.frequency_penalty != 0;
  if (window != -1 && penalises)
    throw body.fault("repeat_last_n", "must be -1: penalties look at the whole text");
}

void read_sampling(const JsonFields& body, const CallContext& context, SamplingParams* params) {
  constexpr double kAny = std::numeric_limits<double>::max();
  const GenerationDefaults& defaults = context.defaults;
  params->temperature =
      static_cast<float>(body.number("temperature", 0, 2).value_or(defaults.temperature));
  params->top_p = static_cast<float>(body.number("top_p", 0, 1).value_or(defaults.top_p));
  if (!(params->top_p > 0)) throw body.fault("top_p", "must be above 0 and at most 1");
  const int64_t top_k = body.integer("top_k", -1, INT32_MAX).value_or(defaults.top_k);
  params->top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  params->min_p = static_cast<float>(body.number("min_p", 0, 1).value_or(defaults.min_p));
  params->typical_p = static_cast<float>(body.number("typical_p", 0, 1).value_or(1));
  if (!(params->typical_p > 0)) throw body.fault("typical_p", "must be above 0 and at most 1");
  const char* const repetition =
      body.has("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  params->repetition_penalty =
      static_cast<float>(body.number(repetition, -kAny, 100).value_or(defaults.repetition_penalty));
  if (!(params->repetition_penalty > 0))
    throw body.fault(repetition, "must be above 0 and at most 100");
  params->presence_penalty = static_cast<float>(body.number("presence_penalty", -2, 2).value_or(0));
  params->frequency_penalty =
      static_cast<float>(body.number("frequency_penalty", -2, 2).value_or(0));
  check_penalty_window(body, *params);
  const std::optional<int64_t> seed = body.integer("seed", INT64_MIN, INT64_MAX);
  if (seed && *seed != -1) params->seed = static_cast<uint64_t>(*seed);
}

int32_t bias_token(const std::string& key, int32_t vocab_size) {
  const bool digits =
      !key.empty() && key.size() <= 9 &&
      std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool canonical = digits && (key.size() == 1 || key.front() != '0');
  if (!canonical || std::stoi(key) >= vocab_size) {
    throw bad_param("logit_bias",
                    fmt::format("'logit_bias' has the key {}, which is no token id "
                                "in [0, {})",
                                json_quoted(key),
                                vocab_size));
  }
  return std::stoi(key);
}

void check_number(const char* name, size_t number, size_t most) {
  if (number <= most) return;
  throw bad_param(name, fmt::format("'{}' has more than {} entries", name, most));
}

void read_logit_bias(const JsonFields& body, const CallContext& context, SamplingParams* params) {
  const std::optional<JsonFields> bias = body.object("logit_bias");
  if (!bias) return;
  const std::vector<std::string> keys = bias->names();
  check_number("logit_bias", keys.size(), context.limits.max_logit_bias);
  for (const std::string& key : keys) {
    const int32_t token = bias_token(key, context.info.vocab_size);
    const std::optional<double> value = bias->number(key, -100, 100);
    if (value) params->logit_bias.emplace_back(token, static_cast<float>(*value));
  }
  std::sort(params->logit_bias.begin(), params->logit_bias.end());
}

void sort_unique(std::vector<int32_t>* ids) {
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

void read_allowed_tokens(const JsonFields& body,
                         const CallContext& context,
                         SamplingParams* params) {
  auto ids = body.token_ids("allowed_token_ids", context.info.vocab_size);
  if (!ids) return;
  if (ids->empty())
    throw body.fault("allowed_token_ids", "must not be empty: it would allow nothing");
  check_number("allowed_token_ids", ids->size(), context.limits.max_allowed_token_ids);
  sort_unique(&*ids);
  params->allowed_token_ids = std::move(*ids);
}

void check_texts(const char* name,
                 const std::vector<std::string>& texts,
                 size_t most,
                 size_t most_bytes) {
  const bool is_good =
      texts.size() <= most && std::ranges::all_of(texts, [&](const std::string& text) {
        return !text.empty() && text.size() <= most_bytes;
      });
  if (is_good) return;
  throw bad_param(
      name, fmt::format("'{}' may hold up to {} strings of 1 to {} bytes", name, most, most_bytes));
}

void read_bad_words(const JsonFields& body, const CallLimits& limits, CompletionCall* call) {
  call->bad_words = body.texts("bad_words").value_or(std::vector<std::string>{});
  check_texts("bad_words", call->bad_words, limits.max_bad_words, limits.max_bad_word_bytes);
}

void read_stops(const JsonFields& body, const CallContext& context, CompletionCall* call) {
  if (body.kind("stop") == JsonKind::kArray) {
    call->stop = *body.texts("stop");
  } else if (const std::optional<std::string> stop = body.text("stop")) {
    call->stop = {*stop};
  }
  const CallLimits& limits = context.limits;
  check_texts("stop", call->stop, limits.max_stop_strings, limits.max_stop_bytes);
  call->user_stop_token_ids =
      body.token_ids("stop_token_ids", context.info.vocab_size).value_or(std::vector<int32_t>{});
  check_number("stop_token_ids", call->user_stop_token_ids.size(), limits.max_stop_token_ids);
  std::vector<int32_t> ids = call->user_stop_token_ids;
  if (!body.boolean("ignore_eos").value_or(false))
    ids.insert(ids.end(), context.end_token_ids.begin(), context.end_token_ids.end());
  sort_unique(&ids);
  call->params.stop_token_ids = std::move(ids);
  call->include_stop_text = body.boolean("include_stop_str_in_output").value_or(false);
}

void read_speculation(const JsonFields& body, SamplingParams* params) {
  const std::optional<JsonFields> speculative = body.object("speculative");
  if (!speculative) return;
  for (const std::string& name : speculative->names()) {
    if (name != "enabled" && name != "num_speculative_tokens" && name != "verify_mode" &&
        name != "fixed_num_speculative_tokens" && name != "async_drafting" &&
        name != "ride_ahead") {
      throw bad_param(speculative->path_of(name),
                      fmt::format("unknown parameter '{}'", speculative->path_of(name)));
    }
  }
  const std::optional<int64_t> tokens = speculative->integer("num_speculative_tokens", 0, 64);
  if (tokens) params->max_draft_len = static_cast<int32_t>(*tokens);
  if (!speculative->boolean("enabled").value_or(true)) params->max_draft_len = 0;
  const std::string name = speculative->text("verify_mode").value_or("auto");
  const std::optional<VerifyMode> mode = verify_mode_from_name(name);
  if (!mode) throw speculative->fault("verify_mode", "must be auto, standard, block or coupled");
  params->verify_mode = *mode;
  params->fixed_draft_len = speculative->boolean("fixed_num_speculative_tokens").value_or(false);
  // "ride_ahead" is its name of an earlier version.
  const std::string async_name = speculative->text("async_drafting")
                                     .value_or(speculative->text("ride_ahead").value_or("auto"));
  const std::optional<AsyncDrafting> async_drafting = async_drafting_from_name(async_name);
  if (!async_drafting)
    throw speculative->fault("async_drafting", "must be auto, off, chain or cache");
  params->async_drafting = *async_drafting;
}

void read_stream_options(const JsonFields& body, CompletionCall* call) {
  call->stream = body.boolean("stream").value_or(false);
  const std::optional<JsonFields> options = body.object("stream_options");
  if (!options) return;
  if (!call->stream) throw body.fault("stream_options", "is only allowed when 'stream' is true");
  // As with vLLM: no usage means no usage in any chunk.
  const bool continuous = options->boolean("continuous_usage_stats").value_or(false);
  call->include_usage = options->boolean("include_usage").value_or(continuous);
  call->continuous_usage = call->include_usage && continuous;
}

void read_lengths(const JsonFields& body, CompletionCall* call) {
  const bool may_be_zero = call->kind == CallKind::kCompletion && call->echo;
  const int64_t least = may_be_zero ? 0 : 1;
  std::optional<int64_t> max_tokens = body.integer("max_tokens", least, INT32_MAX);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", least, INT32_MAX);
  if (newer) max_tokens = newer;
  // llama.cpp's name; -1 is its word for no limit.
  if (!max_tokens && body.has("n_predict") && body.integer("n_predict", -1, INT32_MAX) != -1)
    max_tokens = body.integer("n_predict", least, INT32_MAX);
  if (max_tokens) call->max_tokens = static_cast<int32_t>(*max_tokens);
  call->params.min_tokens =
      static_cast<int32_t>(body.integer("min_tokens", 0, INT32_MAX).value_or(0));
  if (call->max_tokens && call->params.min_tokens > *call->max_tokens)
    throw body.fault("min_tokens", "must not exceed the maximum number of tokens");
}

void read_truncation(const JsonFields& body, const CallContext& context, CompletionCall* call) {
  const std::optional<int64_t> truncate =
      body.integer("truncate_prompt_tokens", -1, context.info.max_model_len);
  if (truncate == 0) throw body.fault("truncate_prompt_tokens", "must not be 0");
  if (truncate) call->truncate_prompt_tokens = static_cast<int32_t>(*truncate);
  const std::string side = body.text("truncation_side").value_or("left");
  if (side != "left" && side != "right")
    throw body.fault("truncation_side", "must be left or right");
  call->truncates_end = side == "right";
}

void read_cache(const JsonFields& body, CompletionCall* call) {
  constexpr size_t kMostBytes = 1024;
  call->cache_salt = body.text("cache_salt").value_or("");
  if (call->cache_salt.size() > kMostBytes)
    throw body.fault("cache_salt", fmt::format("may hold up to {} bytes", kMostBytes));
  call->cache_prompt = body.boolean("cache_prompt").value_or(true);
}

// What is computed is the larger of the two; of each only so many are shown.
void read_logprobs(const JsonFields& body,
                   std::optional<int64_t> of_answer,
                   const CallContext& context,
                   CompletionCall* call) {
  const std::optional<int64_t> of_prompt =
      body.integer("prompt_logprobs", 0, context.limits.max_logprobs);
  if (of_prompt && call->stream)
    throw body.fault("prompt_logprobs", "is not supported when 'stream' is true");
  call->num_logprobs = static_cast<int32_t>(of_answer.value_or(-1));
  if (of_prompt) call->num_prompt_logprobs = static_cast<int32_t>(*of_prompt);
  call->params.num_logprobs = std::max(call->num_logprobs, call->num_prompt_logprobs.value_or(-1));
  const bool is_echoed = call->kind == CallKind::kCompletion && call->echo && of_answer;
  call->params.prompt_logprobs = is_echoed || of_prompt;
}

void read_answer_role(const JsonFields& body, CompletionCall* call) {
  const ChatTurn last = final_turn(body);
  if (body.boolean("continue_final_message").value_or(false)) call->continued = last.content;
  if (!wants_generation_prompt(body)) call->answer_role = last.role;
  if (call->echo && last.role == call->answer_role) call->answer_prefix = last.content;
  call->echo = false;  // of the prompt
}

void read_choices(const JsonFields& body, const CallContext& context, CompletionCall* call) {
  call->num_choices =
      static_cast<int32_t>(body.integer("n", 1, context.limits.max_choices).value_or(1));
  const std::optional<int64_t> best_of = body.integer("best_of", 1, INT32_MAX);
  if (best_of && *best_of != call->num_choices)
    throw body.fault("best_of", "other than n is not supported");
}

// An answer that another server began.
void read_resumed(const JsonFields& body, const CallContext& context, CompletionCall* call) {
  auto ids = body.token_ids("resume_token_ids", context.info.vocab_size);
  if (!ids || ids->empty()) return;
  if (call->num_choices > 1 || call->echo)
    throw body.fault("resume_token_ids", "are of one answer: 'n' must be 1 and 'echo' false");
  call->resume_token_ids = std::move(*ids);
}

std::string read_request_id(const JsonFields& body) {
  std::string id = body.text("request_id").value_or("");
  if (id.empty() || is_valid_request_id(id)) return id;
  throw body.fault("request_id", "may hold up to 64 letters, digits and . _ -");
}

// What both endpoints share.
CompletionCall read_common(const JsonFields& body, CallKind kind, const CallContext& context) {
  CompletionCall call;
  call.kind = kind;
  call.warnings = check_fields(body,
                               kind == CallKind::kChat ? Endpoint::kChat : Endpoint::kCompletions,
                               context.limits.strict_params);
  call.request_id = read_request_id(body);
  check_model_name(body.text("model"), context.info);
  call.echo = body.boolean("echo").value_or(false);
  read_sampling(body, context, &call.params);
  read_logit_bias(body, context, &call.params);
  read_allowed_tokens(body, context, &call.params);
  read_bad_words(body, context.limits, &call);
  read_stops(body, context, &call);
  if (auto requested = read_grammar(body, context.limits)) {
    requested->grammar.end_token_ids = context.end_token_ids;
    const GrammarKind grammar_kind = requested->grammar.kind;
    if (grammar_kind == GrammarKind::kJsonSchema || grammar_kind == GrammarKind::kCompactJson)
      call.grammar_schemas.emplace_back(requested->param, requested->grammar.text);
    call.params.grammar = std::make_shared<const Grammar>(std::move(requested->grammar));
    call.grammar_param = std::move(requested->param);
    call.strict_grammar = requested->strict || context.limits.strict_params;
  }
  read_speculation(body, &call.params);
  read_stream_options(body, &call);
  read_lengths(body, &call);
  read_truncation(body, context, &call);
  read_cache(body, &call);
  read_choices(body, context, &call);
  read_resumed(body, context, &call);
  call.skip_special_tokens = body.boolean("skip_special_tokens").value_or(true);
  call.add_special_tokens =
      body.boolean("add_special_tokens").value_or(kind == CallKind::kCompletion);
  call.return_token_ids = body.boolean("return_token_ids").value_or(false);
  call.return_token_origins = body.boolean("return_token_origins").value_or(false);
  call.tokens_as_ids = body.boolean("return_tokens_as_token_ids").value_or(false);
  call.priority = static_cast<int32_t>(body.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  body.text("user");
  return call;
}

// Tools may bring a grammar of their own, which then takes the place of the answer's.
void read_tool_fields(const JsonFields& body, const CallContext& context, CompletionCall* call) {
  const bool is_schema = call->grammar_schemas.size() == 1;
  ToolRequest tools = read_tools(body,
                                 context.answer_formats,
                                 context.limits,
                                 is_schema ? &call->grammar_schemas.front().second : nullptr);
  call->functions = std::move(tools.functions);
  call->parallel_tool_calls = tools.parallel;
  if (call->functions && !context.answer_formats.shows_tools) {
    call->warnings.emplace_back(
        "the model's chat template has no place for 'tools': the model does not see them");
  }
  if (!tools.grammar) return;
  tools.grammar->end_token_ids = context.end_token_ids;
  call->params.grammar = std::make_shared<const Grammar>(std::move(*tools.grammar));
  if (tools.is_forced || !is_schema) call->grammar_param = "tools";
  if (tools.is_forced) call->grammar_schemas.clear();
  std::ranges::move(tools.schemas, std::back_inserter(call->grammar_schemas));
}

void read_reasoning_fields(const JsonFields& body, CompletionCall* call) {
  const std::string format = body.text("reasoning_format").value_or("auto");
  if (format != "auto" && format != "deepseek" && format != "none")
    throw body.fault("reasoning_format", "must be auto, deepseek or none");
  call->separates_reasoning = format != "none" && body.boolean("separate_reasoning").value_or(true);
  call->include_reasoning = body.boolean("include_reasoning").value_or(true);
}

void check_modalities(const JsonFields& body) {
  const auto modalities = body.texts("modalities");
  if (modalities && *modalities != std::vector<std::string>{"text"}) {
    throw bad_param("modalities", "only the modality text is supported");
  }
}

}  // namespace

std::vector<std::vector<int32_t>> encode_bad_words(const std::vector<std::string>& words,
                                                   const Tokenizer& tokenizer) {
  EncodeOptions options;
  options.add_special_tokens = false;
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& word : words) {
    const size_t begin = word.find_first_not_of(" \t\r\n");
    const bool blank = begin == std::string::npos;  // a newline, say: taken as it is
    const std::string text = blank ? word : word.substr(begin);
    std::vector<int32_t> first = tokenizer.encode(text, options);
    if (first.empty()) {
      throw bad_param("bad_words",
                      fmt::format("'bad_words' has {}, which has no tokens", json_quoted(word)));
    }
    std::vector<int32_t> inside = tokenizer.encode(blank ? text : " " + text, options);
    const bool covered =
        inside.size() >= first.size() && std::equal(first.rbegin(), first.rend(), inside.rbegin());
    if (!covered) sequences.push_back(std::move(inside));
    sequences.push_back(std::move(first));
  }
  std::sort(sequences.begin(), sequences.end());
  sequences.erase(std::unique(sequences.begin(), sequences.end()), sequences.end());
  return sequences;
}

void check_model_name(const std::optional<std::string>& model, const EngineInfo& info) {
  if (!model || *model == info.served_model_name || *model == info.model_root) return;
  throw ApiError(
      404, fmt::format("The model `{}` does not exist.", *model), "model", "model_not_found");
}

CompletionCall read_completion_call(std::string_view text, const CallContext& context) {
  const JsonFields body = JsonFields::parse(text);
  CompletionCall call = read_common(body, CallKind::kCompletion, context);
  call.prompts = body.prompts("prompt", context.info.vocab_size);
  if (call.prompts.size() > static_cast<size_t>(context.limits.max_prompts))
    throw body.fault("prompt", fmt::format("has more than {} prompts", context.limits.max_prompts));
  if (!call.resume_token_ids.empty() && call.prompts.size() > 1)
    throw body.fault("resume_token_ids", "are of one answer: 'prompt' must be one prompt");
  read_logprobs(body, body.integer("logprobs", 0, context.limits.max_logprobs), context, &call);
  return call;
}

CompletionCall read_chat_call(std::string_view text, const CallContext& context) {
  const JsonFields body = JsonFields::parse(text);
  CompletionCall call = read_common(body, CallKind::kChat, context);
  read_tool_fields(body, context, &call);
  read_reasoning_fields(body, &call);
  check_modalities(body);
  call.template_inputs = chat_template_inputs(body, context.limits);
  const bool logprobs = body.boolean("logprobs").value_or(false);
  const std::optional<int64_t> top = body.integer("top_logprobs", 0, context.limits.max_logprobs);
  if (top && *top > 0 && !logprobs) throw body.fault("top_logprobs", "needs 'logprobs' to be true");
  read_logprobs(body, logprobs ? std::optional(top.value_or(0)) : std::nullopt, context, &call);
  read_answer_role(body, &call);
  return call;
}

}  // namespace outrider
