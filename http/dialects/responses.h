// OpenAI's /v1/responses, without its state: nothing is stored, so a conversation is sent whole.
#pragma once

#include <string_view>

#include "http/dialects/dialect.h"

namespace outrider {

// Throws ApiError for what needs stored responses, tools that are no functions, and input that is
// not text. `strict`: unknown fields are an error.
DialectCall read_responses_call(std::string_view body, bool strict);

}  // namespace outrider
