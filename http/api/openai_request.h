// The bodies of /v1/completions and /v1/chat/completions as typed values with every range checked.
// Pure; nothing of the engine is asked but its description.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/answers/answer_parser.h"
#include "http/api/json_fields.h"
#include "http/wire/options.h"
#include "models/checkpoint/model_config.h"
#include "models/text/tokenizer.h"
#include "scheduler/engine.h"
#include "scheduler/sampling_params.h"

namespace outrider {

enum class CallKind : uint8_t { kCompletion, kChat };

struct CompletionCall {
  CallKind kind = CallKind::kCompletion;
  std::vector<JsonFields::Prompt> prompts;  // completion, until they are token ids
  std::string template_inputs;              // chat: JSON for ChatTemplate::render
  // Set by add_prompts(): the prompts as token ids, and of each, for an echo, how many tokens in
  // front are the tokenizer's own.
  std::vector<std::vector<int32_t>> prompt_ids;
  std::vector<size_t> num_added;
  SamplingParams params;              // noise_seed is set per choice when the call is started
  std::optional<int32_t> max_tokens;  // as given; the default needs the prompt's length
  int32_t num_choices = 1;
  std::vector<std::string> stop;
  std::vector<std::string> bad_words;  // as given; encode_bad_words() makes those of params
  std::string grammar_param;           // the field that params.grammar is from
  bool strict_grammar = false;         // nothing of its schemas may be left out
  std::vector<std::pair<std::string, std::string>> grammar_schemas;  // (field, JSON schema)
  std::shared_ptr<const OfferedFunctions> functions;  // chat: null where no call is looked for
  bool parallel_tool_calls = true;
  bool separates_reasoning = true;  // chat; else it is content as the rest
  bool include_reasoning = true;
  bool begins_in_reasoning = false;  // the prompt ends with the mark; set when it is rendered
  std::vector<int32_t> shown_special_ids;
  std::vector<int32_t> user_stop_token_ids;  // those of the request alone, for stop_reason
  bool include_stop_text = false;
  bool skip_special_tokens = true;
  bool add_special_tokens = true;
  bool echo = false;
  // Chat: who speaks, and, with echo, what of its last message comes before the answer.
  std::string answer_role = "assistant";
  std::string answer_prefix;
  std::optional<std::string> continued;  // the message that the answer goes on with
  // Shown, where params.num_logprobs is the larger: of the answer (-1: none), as prompt_logprobs.
  int32_t num_logprobs = -1;
  std::optional<int32_t> num_prompt_logprobs;
  std::string cache_salt;
  bool cache_prompt = true;  // false: nobody's KV is reused
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool return_token_origins = false;
  // The server's; read_...() leaves them alone.
  SpecDecodeMetrics spec_decode_metrics = SpecDecodeMetrics::kNone;
  bool clamp_max_tokens = false;  // to what the context leaves; else more is refused
  bool tokens_as_ids = false;     // logprobs name tokens "token_id:7"
  int32_t priority = 0;
  std::optional<int32_t> truncate_prompt_tokens;  // -1: to what leaves room for the answer
  bool truncates_end = false;                     // instead of the beginning
  std::vector<int32_t> resume_token_ids;          // of the answer, generated already
  std::string request_id;                         // empty: none was given
  std::vector<std::string> warnings;              // of fields that were ignored
};

// What the server is, as far as a call's checks need it.
struct CallContext {
  const EngineInfo& info;
  const GenerationDefaults& defaults;
  const CallLimits& limits;
  const std::vector<int32_t>& end_token_ids;  // ascending
  const AnswerFormats& answer_formats;
};

// The token sequences of bad_words for SamplingParams: each word as it begins a text and as it
// follows a space. vLLM leaves the second out when it has another length, and so lets through a
// word that is one token after a space and several without; here it is left out only when it ends
// with the first. Ascending, without duplicates. Throws ApiError for a word that has no tokens.
std::vector<std::vector<int32_t>> encode_bad_words(const std::vector<std::string>& words,
                                                   const Tokenizer& tokenizer);

// Throw ApiError naming the parameter.
CompletionCall read_completion_call(std::string_view body, const CallContext& context);
CompletionCall read_chat_call(std::string_view body, const CallContext& context);

// 404 unless the name is the served one; an absent name is fine.
void check_model_name(const std::optional<std::string>& model, const EngineInfo& info);

}  // namespace outrider
