// The messages of a chat call, checked and brought into the form that chat templates expect.
#pragma once

#include <string>

#include "http/api/json_fields.h"
#include "http/wire/options.h"

namespace outrider {

// JSON object for ChatTemplate::render(): messages, tools when given, add_generation_prompt, and
// the allowed chat_template_kwargs. Text parts are joined with newlines, "developer" becomes
// "system", the arguments of tool calls become objects. Throws ApiError naming the message at
// fault; images, audio and files are refused.
std::string chat_template_inputs(const JsonFields& body, const CallLimits& limits);

}  // namespace outrider
