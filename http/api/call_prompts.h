// The prompts of a call as token ids: the chat template, the tokenizer, truncation, and what room
// the context leaves for the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "http/api/openai_request.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace outrider {

// What of the served model prompts are made with.
struct TextModel {
  const Tokenizer& tokenizer;
  const std::optional<ChatTemplate>& chat_template;
  int64_t max_model_len = 0;
};

// All throw ApiError naming the parameter.
RenderedPrompt render_chat(const TextModel& model, const std::string& template_inputs);
std::vector<int32_t> encode_chat(const TextModel& model,
                                 const RenderedPrompt& rendered,
                                 bool add_special_tokens);

// Fills in the call's prompt_ids, a chat's from what was rendered, and sets its params.max_tokens,
// which is the most on entry, to what they leave.
void add_prompts(const TextModel& model, const RenderedPrompt* chat, CompletionCall* call);

}  // namespace outrider
