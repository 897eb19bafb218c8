// Anthropic's /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "http/dialects/dialect.h"

namespace outrider {

// Throws ApiError for tools that are no functions and input that is not text. `strict`: unknown
// fields are an error.
DialectCall read_messages_call(std::string_view body, bool strict);

// The body for /tokenize that counts what a message would send, and the answer from its count.
std::string token_count_body(std::string_view body, bool strict);
std::string token_count_json(int64_t num_tokens);

bool is_messages_path(std::string_view path);
// OpenAI's body of an error as Anthropic's.
std::string messages_error_json(std::string_view error);

}  // namespace outrider
