// See call_prompts.h.
#include "http/api/call_prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "http/wire/api_error.h"
#include "runtime/base/error.h"

namespace outrider {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's, of /v1/completions

// -1 leaves room for the answer: max_tokens, what is used instead, or one token of a chat.
void truncate(const CompletionCall& call, int64_t context, std::vector<int32_t>* prompt) {
  if (!call.truncate_prompt_tokens) return;
  const int32_t standard = call.kind == CallKind::kChat ? 1 : kDefaultMaxTokens;
  const int32_t max_tokens = call.clamp_max_tokens ? 1 : call.max_tokens.value_or(standard);
  const int64_t fits = std::max<int64_t>(context - max_tokens, 1);
  const int64_t keep = *call.truncate_prompt_tokens < 0 ? fits : *call.truncate_prompt_tokens;
  const int64_t num_too_many = static_cast<int64_t>(prompt->size()) - keep;
  if (num_too_many <= 0) return;
  const auto begin = call.truncates_end ? prompt->end() - num_too_many : prompt->begin();
  prompt->erase(begin, begin + num_too_many);
}

// Of a text's tokens, those in front that the tokenizer adds to every text.
size_t num_added_in_front(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  const std::vector<int32_t> added = tokenizer.encode("", {});
  const auto [end, unused] = std::ranges::mismatch(prompt, added);
  return static_cast<size_t>(end - prompt.begin());
}

// Truncates the prompt when asked to and sets params.max_tokens from what room the context leaves.
void settle_lengths(int64_t context, CompletionCall* call, std::vector<int32_t>* prompt) {
  truncate(*call, context, prompt);
  const std::string param = call->kind == CallKind::kChat ? "messages" : "prompt";
  if (prompt->empty()) throw bad_param(param, "the prompt has no tokens");
  const auto length = static_cast<int64_t>(prompt->size());
  const bool needs_room = call->max_tokens != 0;
  if (length + (needs_room ? 1 : 0) > context) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens. However, your "
                               "request has {} input tokens. Please reduce the length of the "
                               "input.",
                               context,
                               length),
                   param,
                   "context_length_exceeded");
  }
  const int64_t room = context - length;
  if (call->clamp_max_tokens && call->max_tokens)
    call->max_tokens = static_cast<int32_t>(std::min<int64_t>(*call->max_tokens, room));
  if (call->max_tokens && *call->max_tokens > room) {
    throw ApiError(400,
                   fmt::format("'max_tokens' or 'max_completion_tokens' is too large: {}. This "
                               "model's maximum context length is {} tokens and your request has "
                               "{} input tokens ({} > {} - {}).",
                               *call->max_tokens,
                               context,
                               length,
                               *call->max_tokens,
                               context,
                               length),
                   "max_tokens",
                   "context_length_exceeded");
  }
  const int64_t standard =
      call->kind == CallKind::kChat ? room : std::min<int64_t>(kDefaultMaxTokens, room);
  const auto max_tokens = static_cast<int32_t>(call->max_tokens ? *call->max_tokens : standard);
  // Of several prompts the longest decides what is left by default.
  call->params.max_tokens = std::min(call->params.max_tokens, max_tokens);
}

}  // namespace

RenderedPrompt render_chat(const TextModel& model, const std::string& template_inputs) {
  if (!model.chat_template) {
    throw ApiError(400, "this model has no chat template: use /v1/completions");
  }
  try {
    return model.chat_template->render(template_inputs);
  } catch (const Error& error) {
    throw bad_param("messages", error.what());
  }
}

std::vector<int32_t> encode_chat(const TextModel& model,
                                 const RenderedPrompt& rendered,
                                 bool add_special) {
  EncodeOptions options;
  options.add_special_tokens = add_special;
  options.literal_spans = rendered.literal_spans;
  return model.tokenizer.encode(rendered.text, options);
}

void add_prompts(const TextModel& model, const RenderedPrompt* chat, CompletionCall* call) {
  const bool special = call->add_special_tokens;
  const auto add = [&](std::vector<int32_t> ids, bool hides_added) {
    settle_lengths(model.max_model_len, call, &ids);
    call->num_added.push_back(hides_added ? num_added_in_front(model.tokenizer, ids) : 0);
    call->prompt_ids.push_back(std::move(ids));
  };
  if (chat) add(encode_chat(model, *chat, special), false);
  for (JsonFields::Prompt& prompt : call->prompts) {
    if (prompt.text) {
      EncodeOptions options;
      options.add_special_tokens = special;
      add(model.tokenizer.encode(*prompt.text, options), call->echo && special);
    } else {
      add(std::move(prompt.ids), false);
    }
  }
  call->prompts.clear();
}

}  // namespace outrider
