// See request_fields.h.
#include "http/api/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "http/wire/api_error.h"
#include "runtime/base/log.h"
#include "runtime/base/settings/options.h"

namespace outrider {
namespace {

constexpr uint8_t kC = static_cast<uint8_t>(Endpoint::kCompletions);
constexpr uint8_t kM = static_cast<uint8_t>(Endpoint::kChat);
constexpr uint8_t kT = static_cast<uint8_t>(Endpoint::kTokenize);
constexpr uint8_t kD = static_cast<uint8_t>(Endpoint::kDetokenize);
constexpr uint8_t kR = static_cast<uint8_t>(Endpoint::kResponses);
constexpr uint8_t kA = static_cast<uint8_t>(Endpoint::kMessages);
constexpr uint8_t kCM = kC | kM;
constexpr uint8_t kAll = kCM | kR | kA;  // that make text

// Used, or without an effect on the answer (user, metadata ...).
struct KnownField {
  const char* name;
  uint8_t endpoints;
};

constexpr KnownField kKnown[] = {
    {"model", kAll | kT | kD},
    {"prompt", kC | kT | kR},
    {"messages", kM | kT | kA},
    {"content", kT},
    {"tokens", kD},
    {"max_tokens", kCM | kA},
    {"max_completion_tokens", kCM},
    {"n_predict", kCM},  // llama.cpp's name of max_tokens
    {"min_tokens", kAll},
    {"temperature", kAll},
    {"top_p", kAll},
    {"top_k", kAll},
    {"min_p", kAll},
    {"typical_p", kAll},
    {"repetition_penalty", kAll},
    {"repeat_penalty", kAll},  // llama.cpp's name of it
    {"repeat_last_n", kAll},
    {"presence_penalty", kAll},
    {"frequency_penalty", kAll},
    {"logit_bias", kAll},
    {"allowed_token_ids", kAll},
    {"bad_words", kAll},
    {"seed", kAll},
    {"n", kCM},
    {"best_of", kCM},
    {"stop", kCM | kR},
    {"stop_token_ids", kAll},
    {"ignore_eos", kAll},
    {"include_stop_str_in_output", kAll},
    {"skip_special_tokens", kAll},
    {"spaces_between_special_tokens", kAll},
    {"add_special_tokens", kAll | kT},
    {"add_special", kT},
    {"parse_special", kT},
    {"with_pieces", kT},
    {"return_token_strs", kT},
    {"truncate_prompt_tokens", kAll},
    {"truncation_side", kAll},
    {"stream", kAll},
    {"stream_options", kCM | kR},
    {"echo", kCM},
    {"logprobs", kCM},
    {"top_logprobs", kM | kR},
    {"prompt_logprobs", kCM},
    {"return_token_ids", kCM},
    {"return_token_origins", kCM},
    {"return_tokens_as_token_ids", kCM},
    {"speculative", kAll},
    {"priority", kAll},
    {"request_id", kAll},
    {"resume_token_ids", kAll},
    {"response_format", kCM},
    {"structured_outputs", kAll},
    {"guided_json", kAll},
    {"guided_regex", kAll},
    {"guided_choice", kAll},
    {"guided_grammar", kAll},
    {"guided_decoding_backend", kAll},
    {"json_schema", kAll},
    {"grammar", kAll},
    {"regex", kAll},
    {"ebnf", kAll},
    {"tools", kM | kT | kR | kA},
    {"tool_choice", kM | kR | kA},
    {"parallel_tool_calls", kM | kR},
    {"add_generation_prompt", kM | kT},
    {"continue_final_message", kM | kT},
    {"chat_template_kwargs", kM | kT | kR | kA},
    {"reasoning_effort", kM | kT},
    {"reasoning_format", kM},
    {"separate_reasoning", kM},
    {"include_reasoning", kM | kR},
    {"modalities", kM},
    {"cache_salt", kAll},
    {"cache_prompt", kAll},
    {"user", kAll},
    {"metadata", kAll},
    {"store", kCM | kR},
    {"service_tier", kAll},
    {"prompt_cache_key", kCM | kR},
    {"safety_identifier", kCM | kR},
    {"input", kR},
    {"instructions", kR},
    {"max_output_tokens", kR},
    {"text", kR},
    {"reasoning", kR},
    {"include", kR},
    {"previous_response_id", kR},
    {"conversation", kR},
    {"background", kR},
    {"truncation", kR},
    {"system", kA},
    {"stop_sequences", kA},
    {"thinking", kA},
    {"output_config", kA},
    {"cache_control", kA},
    // Of other servers, about times, chunks, or samplers that are refused unless they are off.
    {"timings_per_token", kCM},
    {"return_progress", kCM},
    {"stream_interval", kAll},
    {"session_id", kAll},
    {"prompt_cache_retention", kCM | kR},
    {"media_io_kwargs", kM},
    {"mm_processor_kwargs", kM},
    {"id_slot", kCM},
    {"n_keep", kCM},
    {"dry_base", kCM},
    {"dry_allowed_length", kCM},
    {"dry_penalty_last_n", kCM},
    {"dry_sequence_breakers", kCM},
    {"xtc_threshold", kCM},
    {"mirostat_tau", kCM},
    {"mirostat_eta", kCM},
    {"dynatemp_exponent", kCM},
};

// Known to other servers and not done here: silence would be a wrong answer.
struct RefusedField {
  const char* name;
  std::optional<double> off = std::nullopt;  // a number that means "off"
  const char* instead = nullptr;             // the name of ours
};

constexpr RefusedField kRefused[] = {
    // OpenAI
    {"suffix"},
    {"functions"},
    {"function_call"},
    {"audio"},
    {"prediction"},
    {"web_search_options"},
    // vLLM
    {"use_beam_search"},
    {"length_penalty", 1},
    {"logits_processors"},
    {"logprob_token_ids"},
    {"prompt_embeds"},
    {"chat_template"},
    {"documents"},
    {"lora_request"},
    {"kv_transfer_params"},
    {"ec_transfer_params"},
    {"watermarking"},
    {"repetition_detection"},
    {"thinking_token_budget"},
    // llama.cpp
    {"lora"},
    {"n_probs", 0, "logprobs"},
    {"post_sampling_probs"},
    {"samplers"},
    {"min_keep", 0},
    {"n_indent", 0},
    {"t_max_predict_ms", 0},
    {"dry_multiplier", 0},
    {"xtc_probability", 0},
    {"mirostat", 0},
    {"dynatemp_range", 0},
    {"top_n_sigma", -1},
    // Ollama
    {"format"},
};

// null, false and empty mean "off" and are what clients send by default.
bool is_off(const JsonFields& body, const RefusedField& field) {
  const std::string value = body.dump(field.name);
  if (value == "null" || value == "false" || value == "[]" || value == "{}" || value == "\"\"")
    return true;
  return field.off && body.kind(field.name) == JsonKind::kNumber &&
         body.number(field.name, -1e300, 1e300) == field.off;
}

// Whether the field is one of these, and off. Throws ApiError when it is on.
bool is_refused(const JsonFields& body, const std::string& name) {
  const auto* const field = std::ranges::find(kRefused, name, &RefusedField::name);
  if (field == std::end(kRefused)) return false;
  if (is_off(body, *field)) return true;
  throw bad_param(name,
                  field->instead == nullptr
                      ? fmt::format("'{}' is not supported", name)
                      : fmt::format("'{}' is not supported: use '{}'", name, field->instead));
}

constexpr size_t kMostBytes = 64;  // shown of a name

std::string unknown_field(const std::string& name) {
  std::vector<std::string> names;
  for (const KnownField& field : kKnown) names.emplace_back(field.name);
  const std::string nearest = nearest_name(name, names);
  return fmt::format("unknown parameter {}{}",
                     json_quoted(std::string_view(name).substr(0, kMostBytes)),
                     nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest));
}

void log_once(const std::string& name) {
  constexpr size_t kMostNames = 256;  // clients make them up
  static std::mutex mutex;
  static std::set<std::string> logged;
  std::lock_guard lock(mutex);
  if (logged.size() < kMostNames && logged.insert(name.substr(0, kMostBytes)).second)
    log_warning("requests have the {}, which is ignored", unknown_field(name));
}

}  // namespace

bool is_known_field(std::string_view name, Endpoint endpoint) {
  return std::ranges::any_of(kKnown, [&](const KnownField& field) {
    return name == field.name && (field.endpoints & static_cast<uint8_t>(endpoint)) != 0;
  });
}

std::vector<std::string> check_fields(const JsonFields& body, Endpoint endpoint, bool strict) {
  constexpr size_t kMostWarnings = 16;
  std::vector<std::string> warnings;
  for (const std::string& name : body.names()) {
    if (is_refused(body, name) || is_known_field(name, endpoint)) continue;
    if (strict) throw bad_param(name, unknown_field(name));
    log_once(name);
    if (warnings.size() < kMostWarnings) warnings.push_back(unknown_field(name) + " was ignored");
  }
  return warnings;
}

}  // namespace outrider
