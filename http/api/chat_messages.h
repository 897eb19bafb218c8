// The messages of a chat call, checked and brought into the form that chat templates expect.
#pragma once

#include <string>

#include "http/api/json_fields.h"
#include "http/wire/options.h"

namespace outrider {

// JSON object for ChatTemplate::render(): messages, tools when given, add_generation_prompt,
// continue_final_message and the allowed chat_template_kwargs. Text parts are joined with newlines,
// "developer" becomes "system", the arguments of tool calls become objects. Throws ApiError naming
// the message at fault; images, audio and files are refused.
std::string chat_template_inputs(const JsonFields& body, const CallLimits& limits);

// add_generation_prompt; without it, whether no message is to be continued.
bool wants_generation_prompt(const JsonFields& body);

// The last message of a body whose messages were checked.
struct ChatTurn {
  std::string role;
  std::string content;
};
ChatTurn final_turn(const JsonFields& body);

}  // namespace outrider
