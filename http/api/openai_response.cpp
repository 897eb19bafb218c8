// See openai_response.h. Field names and shapes are OpenAI's, with vLLM's additions (stop_reason,
// token_ids, prompt_token_ids, metrics.speculative_decoding) and our token_origins.
#include "http/api/openai_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "http/api/json_fields.h"

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// JSON has no infinities; -9999 is what OpenAI and vLLM show for "impossible".
double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

const char* origin_name(TokenOrigin origin) {
  static constexpr const char* kNames[] = {"plain", "accepted", "corrected", "bonus"};
  return kNames[static_cast<size_t>(origin)];
}

Json finish_reason_json(const ChoiceOutput& choice) {
  switch (choice.finish_reason) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return choice.has_called ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return nullptr;
}

Json stop_reason_json(const StopReason& reason) {
  if (reason.text) return *reason.text;
  if (reason.token_id) return *reason.token_id;
  return nullptr;
}

Json usage_json(const Usage& usage) {
  Json out = {{"prompt_tokens", usage.prompt_tokens},
              {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
              {"completion_tokens", usage.completion_tokens},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens > 0)
    out["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

// Of a chunk of a stream.
void add_usage(const CompletionCall& call, const Usage& usage, Json* out) {
  if (call.include_usage)
    (*out)["usage"] = call.continuous_usage ? usage_json(usage) : Json(nullptr);
}

// histogram[k] = rounds with draft tokens of which exactly k were accepted.
Json speculation_json(const SpeculationReport& report) {
  const SpeculationStats& stats = report.stats;
  const auto num_positions = std::max(static_cast<size_t>(std::max(report.num_spec_tokens, 0)),
                                      stats.accepted_per_position.size());
  std::vector<int32_t> at_least = {stats.num_spec_rounds};  // [k] = rounds that accepted k or more
  std::ranges::copy(stats.accepted_per_position, std::back_inserter(at_least));
  at_least.resize(num_positions + 2);
  Json histogram = Json::array();
  for (size_t k = 0; k <= num_positions; ++k) histogram.push_back(at_least[k] - at_least[k + 1]);
  Json by_length = Json::object();
  for (const auto& [draft_len, counts] : report.histograms) {
    by_length[std::to_string(draft_len)] = counts;
  }
  const double rounds = std::max(stats.num_spec_rounds, 1);
  const double drafted = std::max(stats.num_draft_tokens, 1);
  return {{"mean_acceptance_length",
           stats.num_spec_rounds == 0 ? 1.0 : 1.0 + stats.num_accepted_tokens / rounds},
          {"draft_acceptance_rate", stats.num_accepted_tokens / drafted},
          {"acceptance_histogram", std::move(histogram)},
          {"acceptance_histogram_by_draft_length", std::move(by_length)},
          {"num_spec_steps", stats.num_spec_rounds},
          {"num_accepted_draft_tokens", stats.num_accepted_tokens},
          {"num_draft_tokens", stats.num_draft_tokens},
          {"num_spec_tokens", report.num_spec_tokens}};
}

// Ours, beside vLLM's: how the rounds came to their draft tokens.
Json rounds_json(const SpeculationStats& stats) {
  return {{"num_rounds", stats.num_rounds},
          {"num_rounds_draft_at_hand", stats.num_ready_rounds},
          {"num_rounds_draft_waited_for", stats.num_waited_rounds},
          {"num_bonus_drafts", stats.num_bonus_drafts},
          {"num_accepted_bonus_drafts", stats.num_accepted_bonus_drafts}};
}

void add_speculation(const CompletionCall& call,
                     const std::optional<SpeculationReport>& report,
                     Json* out) {
  if (call.spec_decode_metrics == SpecDecodeMetrics::kNone) return;
  Json& metrics = (*out)["metrics"];
  metrics = {{"speculative_decoding", nullptr}};
  if (!report) return;
  Json& figures = metrics["speculative_decoding"];
  figures = speculation_json(*report);
  if (call.spec_decode_metrics == SpecDecodeMetrics::kDetailed) {
    figures["per_step_accepted"] = report->accepted_per_round;
    figures["per_step_drafted"] = report->drafted_per_round;
  }
  metrics["outrider"] = rounds_json(report->stats);
}

// How log-probabilities name tokens.
class TokenNames {
 public:
  TokenNames(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  std::string operator()(int32_t id) const {
    return as_ids_ ? fmt::format("token_id:{}", id) : tokenizer_.token_bytes(id);
  }
  Json bytes(int32_t id) const {
    Json out = Json::array();
    for (const char c : tokenizer_.token_bytes(id)) out.push_back(static_cast<unsigned char>(c));
    return out;
  }

 private:
  const Tokenizer& tokenizer_;
  bool as_ids_;
};

// A JSON key must be valid UTF-8 and appear once; the replacement is done here so that two broken
// byte tokens are seen to be the same key.
std::string valid_key(const std::string& bytes) {
  return Json::parse(dumped(Json(bytes))).get<std::string>();
}

// The most likely tokens, at most so many of them.
std::span<const std::pair<int32_t, float>> top_of(const TokenLogprobs& logprobs, int32_t most) {
  return std::span(logprobs.top).first(std::min(logprobs.top.size(), static_cast<size_t>(most)));
}

// The token itself comes first, as with vLLM.
Json legacy_top(const OutputToken& token, int32_t num_top, const TokenNames& names) {
  if (!token.logprobs) return nullptr;
  Json top = Json::object();
  top[valid_key(names(token.id))] = finite_logprob(token.logprobs->logprob);
  for (const auto& [id, logprob] : top_of(*token.logprobs, num_top)) {
    const std::string key = valid_key(names(id));
    if (!top.contains(key)) top[key] = finite_logprob(logprob);
  }
  return top;
}

Json legacy_logprobs(const std::vector<OutputToken>& tokens,
                     int32_t num_top,
                     const TokenNames& names) {
  Json out;
  for (const char* name : {"text_offset", "token_logprobs", "tokens", "top_logprobs"})
    out[name] = Json::array();
  for (const OutputToken& token : tokens) {
    out["text_offset"].push_back(token.text_offset);
    out["token_logprobs"].push_back(token.logprobs ? Json(finite_logprob(token.logprobs->logprob))
                                                   : Json(nullptr));
    out["tokens"].push_back(names(token.id));
    out["top_logprobs"].push_back(legacy_top(token, num_top, names));
  }
  return out;
}

Json chat_logprobs(const std::vector<OutputToken>& tokens,
                   int32_t num_top,
                   const TokenNames& names) {
  Json content = Json::array();
  for (const OutputToken& token : tokens) {
    Json top = Json::array();
    if (token.logprobs) {
      for (const auto& [id, logprob] : top_of(*token.logprobs, num_top)) {
        top.push_back({{"token", names(id)},
                       {"logprob", finite_logprob(logprob)},
                       {"bytes", names.bytes(id)}});
      }
    }
    content.push_back(
        {{"token", names(token.id)},
         {"logprob", token.logprobs ? finite_logprob(token.logprobs->logprob) : -9999.0},
         {"bytes", names.bytes(token.id)},
         {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json logprobs_json(const CompletionCall& call,
                   const std::vector<OutputToken>& tokens,
                   const Tokenizer& tokenizer) {
  if (call.num_logprobs < 0) return nullptr;
  const TokenNames names(tokenizer, call.tokens_as_ids);
  return call.kind == CallKind::kChat ? chat_logprobs(tokens, call.num_logprobs, names)
                                      : legacy_logprobs(tokens, call.num_logprobs, names);
}

// vLLM's shape: null for the first token, then an object by token id, the prompt's own token first.
Json prompt_logprobs_json(const CompletionCall& call,
                          const ChoiceOutput& choice,
                          const Tokenizer& tokenizer) {
  const auto& [prompt, logprobs] = choice.prompt_logprobs;
  if (!call.num_prompt_logprobs || prompt == nullptr) return nullptr;
  const TokenNames names(tokenizer, call.tokens_as_ids);
  Json out = Json::array({nullptr});
  for (size_t i = 0; i < logprobs->size(); ++i) {
    Json entry = Json::object();
    const auto add = [&](int32_t id, float logprob, int32_t rank) {
      const std::string key = std::to_string(id);
      if (entry.contains(key)) return;
      entry[key] = {
          {"logprob", finite_logprob(logprob)}, {"rank", rank}, {"decoded_token", names(id)}};
    };
    const TokenLogprobs& own = (*logprobs)[i];
    add((*prompt)[i + 1], own.logprob, own.rank);
    int32_t rank = 0;
    for (const auto& [id, logprob] : top_of(own, *call.num_prompt_logprobs))
      add(id, logprob, ++rank);
    out.push_back(std::move(entry));
  }
  return out;
}

// vLLM's keys about the prompt, which are null unless they were asked for.
void add_prompt(const CompletionCall& call,
                const ChoiceOutput& choice,
                const Tokenizer& tokenizer,
                Json* out) {
  (*out)["prompt_logprobs"] = prompt_logprobs_json(call, choice, tokenizer);
  (*out)["prompt_token_ids"] =
      choice.prompt_token_ids ? Json(*choice.prompt_token_ids) : Json(nullptr);
}

void add_token_lists(const CompletionCall& call,
                     const std::vector<OutputToken>& tokens,
                     Json* choice) {
  if (!call.return_token_ids && !call.return_token_origins) return;
  Json ids = Json::array();
  Json origins = Json::array();
  Json offsets = Json::array();
  for (const OutputToken& token : tokens) {
    if (token.from_prompt) continue;
    ids.push_back(token.id);
    origins.push_back(origin_name(token.origin));
    offsets.push_back(token.text_offset);
  }
  (*choice)["token_ids"] = std::move(ids);
  if (!call.return_token_origins) return;
  (*choice)["token_origins"] = std::move(origins);
  (*choice)["text_offset"] = std::move(offsets);
}

Json frame(const ResponseHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", or_null(head.system_fingerprint)}};
}

Json tool_calls_json(const std::vector<ToolCallPiece>& calls, bool is_delta) {
  Json list = Json::array();
  for (const ToolCallPiece& call : calls) {
    Json entry = Json::object();
    if (is_delta) entry["index"] = call.index;
    if (!call.name.empty()) entry.update({{"id", call.id}, {"type", "function"}});
    if (!call.name.empty()) entry["function"]["name"] = call.name;
    entry["function"]["arguments"] = call.arguments;
    list.push_back(std::move(entry));
  }
  return list;
}

// DeepSeek's and llama.cpp's name, and vLLM's.
void add_reasoning(const std::string& reasoning, Json* message) {
  if (reasoning.empty()) return;
  for (const char* name : {"reasoning_content", "reasoning"}) (*message)[name] = reasoning;
}

Json delta_json(const AnswerPieces& pieces) {
  Json delta = Json::object();
  add_reasoning(pieces.reasoning, &delta);
  if (!pieces.content.empty()) delta["content"] = pieces.content;
  if (!pieces.calls.empty()) delta["tool_calls"] = tool_calls_json(pieces.calls, true);
  return delta;
}

// Clients read arguments that are no JSON as none, so a call that was cut is left out. What the
// model itself wrote wrongly is the client's to see.
void drop_cut_call(ChoiceOutput* choice) {
  std::vector<ToolCallPiece>& calls = choice->pieces.calls;
  if (calls.empty() || Json::accept(calls.back().arguments)) return;
  const bool is_cut =
      choice->finish_reason == FinishReason::kLength || choice->stop_reason.text.has_value();
  if (!is_cut && !calls.back().arguments.empty()) return;
  calls.pop_back();
  choice->has_called = !calls.empty();
}

Json message_json(const CompletionCall& call, const ChoiceOutput& choice) {
  const AnswerPieces& pieces = choice.pieces;
  const std::vector<ToolCallPiece>& calls = pieces.calls;
  Json message = {{"role", call.answer_role}, {"content", pieces.content}, {"refusal", nullptr}};
  add_reasoning(pieces.reasoning, &message);
  if (calls.empty()) return message;
  if (pieces.content.empty()) message["content"] = nullptr;
  message["tool_calls"] = tool_calls_json(calls, false);
  return message;
}

const char* chunk_object(CallKind kind) {
  return kind == CallKind::kChat ? "chat.completion.chunk" : "text_completion";
}

}  // namespace

void SpeculationReport::note(const SpeculationStats& later, bool detailed) {
  const int32_t num_drafted = later.num_draft_tokens - stats.num_draft_tokens;
  const int32_t num_accepted = later.num_accepted_tokens - stats.num_accepted_tokens;
  stats = later;
  if (num_drafted <= 0 || num_accepted < 0 || num_accepted > num_drafted) return;
  std::vector<int32_t>& counts = histograms[num_drafted];
  counts.resize(static_cast<size_t>(num_drafted) + 1);
  ++counts[static_cast<size_t>(num_accepted)];
  if (!detailed) return;
  accepted_per_round.push_back(num_accepted);
  drafted_per_round.push_back(num_drafted);
}

ResponseWriter::ResponseWriter(const CompletionCall& call,
                               ResponseHead head,
                               std::shared_ptr<const Tokenizer> tokenizer)
    : call_(call), head_(std::move(head)), tokenizer_(std::move(tokenizer)) {}

std::string ResponseWriter::response(const std::vector<ChoiceOutput>& choices,
                                     const Usage& usage,
                                     const std::optional<SpeculationReport>& speculation) const {
  const bool chat = call_.kind == CallKind::kChat;
  Json out = frame(head_, chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (ChoiceOutput choice : choices) {
    drop_cut_call(&choice);
    Json entry = {{"index", choice.index}};
    if (chat) {
      entry["message"] = message_json(call_, choice);
    } else {
      entry["text"] = choice.delta.text;
    }
    entry["logprobs"] = logprobs_json(call_, choice.delta.tokens, *tokenizer_);
    entry["finish_reason"] = finish_reason_json(choice);
    entry["stop_reason"] = stop_reason_json(choice.stop_reason);
    entry["token_ids"] = nullptr;
    add_token_lists(call_, choice.delta.tokens, &entry);
    if (!chat) add_prompt(call_, choice, *tokenizer_, &entry);
    list.push_back(std::move(entry));
  }
  out["choices"] = std::move(list);
  out["service_tier"] = nullptr;
  out["usage"] = usage_json(usage);
  if (chat) add_prompt(call_, choices.front(), *tokenizer_, &out);
  out["kv_transfer_params"] = nullptr;
  add_speculation(call_, speculation, &out);
  if (!call_.warnings.empty()) out["warnings"] = call_.warnings;
  return dumped(out);
}

std::string ResponseWriter::role_chunk(const ChoiceOutput& choice, const Usage& usage) const {
  Json out = frame(head_, chunk_object(call_.kind));
  out["choices"] = Json::array({{{"index", choice.index},
                                 {"delta", {{"role", call_.answer_role}, {"content", ""}}},
                                 {"logprobs", nullptr},
                                 {"finish_reason", nullptr}}});
  if (choice.prompt_token_ids) out["prompt_token_ids"] = *choice.prompt_token_ids;
  add_usage(call_, usage, &out);
  return dumped(out);
}

std::string ResponseWriter::delta_chunk(const ChoiceOutput& choice, const Usage& usage) const {
  Json out = frame(head_, chunk_object(call_.kind));
  Json entry = {{"index", choice.index}};
  if (call_.kind == CallKind::kChat) {
    entry["delta"] = delta_json(choice.pieces);
  } else {
    entry["text"] = choice.delta.text;
    if (choice.prompt_token_ids) entry["prompt_token_ids"] = *choice.prompt_token_ids;
  }
  entry["logprobs"] = choice.delta.tokens.empty()
                          ? Json(nullptr)
                          : logprobs_json(call_, choice.delta.tokens, *tokenizer_);
  entry["finish_reason"] = finish_reason_json(choice);
  if (choice.finish_reason != FinishReason::kNone) {
    entry["stop_reason"] = stop_reason_json(choice.stop_reason);
  }
  add_token_lists(call_, choice.delta.tokens, &entry);
  out["choices"] = Json::array({std::move(entry)});
  if (choice.is_first && !call_.warnings.empty()) out["warnings"] = call_.warnings;
  add_usage(call_, usage, &out);
  return dumped(out);
}

std::string ResponseWriter::usage_chunk(const Usage& usage,
                                        const std::optional<SpeculationReport>& speculation) const {
  Json out = frame(head_, chunk_object(call_.kind));
  out["choices"] = Json::array();
  out["usage"] = usage_json(usage);
  add_speculation(call_, speculation, &out);
  return dumped(out);
}

std::string sse_event(std::string_view data) { return fmt::format("data: {}\n\n", data); }

namespace {

Json model_entry(const EngineInfo& info, int64_t created) {
  return {{"id", info.served_model_name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "outrider"},
          {"root", info.model_root},
          {"parent", nullptr},
          {"max_model_len", info.max_model_len}};
}

}  // namespace

std::string model_json(const EngineInfo& info, int64_t created) {
  return dumped(model_entry(info, created));
}

std::string model_list_json(const EngineInfo& info, int64_t created) {
  return dumped(Json{{"object", "list"}, {"data", Json::array({model_entry(info, created)})}});
}

std::string server_info_json(const EngineInfo& info,
                             const EngineStatus& status,
                             const std::vector<std::pair<std::string, std::string>>& build) {
  const char* draft_state = status.draft == DraftState::kUp     ? "up"
                            : status.draft == DraftState::kDown ? "down"
                                                                : "none";
  Json out = {{"model", info.served_model_name},
              {"root", info.model_root},
              {"max_model_len", info.max_model_len},
              {"vocab_size", info.vocab_size},
              {"num_target_ranks", info.num_target_ranks},
              {"draft", or_null(info.draft)},
              {"draft_state", draft_state},
              {"num_speculative_tokens", info.num_speculative_tokens},
              {"num_requests_running", status.num_running},
              {"num_requests_waiting", status.num_waiting}};
  for (const auto& [name, value] : build) out[name] = value;
  return dumped(out);
}

std::string tokenize_json(const std::vector<int32_t>& ids,
                          TokenListing listing,
                          const Tokenizer& tokenizer,
                          int32_t max_model_len) {
  Json tokens = Json::array();
  Json texts;  // null unless there are some
  for (const int32_t id : ids) {
    if (listing == TokenListing::kPieces) {
      tokens.push_back({{"id", id}, {"piece", tokenizer.token_bytes(id)}});
    } else {
      tokens.push_back(id);
    }
    if (listing == TokenListing::kIdsAndTexts) texts.push_back(tokenizer.token_text(id));
  }
  return dumped(Json{{"count", ids.size()},
                     {"max_model_len", max_model_len},
                     {"tokens", std::move(tokens)},
                     {"token_strs", std::move(texts)}});
}

std::string tokenizer_info_json(const Tokenizer& tokenizer, int32_t max_model_len) {
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? Json(tokenizer.token_bytes(*id)) : Json(nullptr);
  };
  return dumped(Json{{"bos_token", text_of(tokenizer.bos_id())},
                     {"eos_token", text_of(tokenizer.eos_id())},
                     {"vocab_size", tokenizer.vocab_size()},
                     {"model_max_length", max_model_len}});
}

std::string text_object_json(const std::vector<std::pair<std::string, std::string>>& members) {
  Json out = Json::object();
  for (const auto& [name, value] : members) out[name] = value;
  return dumped(out);
}

}  // namespace outrider
