// Which fields a call's body may have, in one table: those that are used, those that change nothing
// here, and those of other servers that would change the answer and are refused. So nothing a
// client asks for is left out without a word.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/api/json_fields.h"

namespace outrider {

enum class Endpoint : uint8_t {
  kCompletions = 1,
  kChat = 2,
  kTokenize = 4,
  kDetokenize = 8,
  kResponses = 16,
  kMessages = 32
};

bool is_known_field(std::string_view name, Endpoint endpoint);

// Throws ApiError (400) for a field that would change the answer, and when `strict` for one that is
// not known. Otherwise returns a sentence for each unknown field, which is ignored; each name is
// logged once.
std::vector<std::string> check_fields(const JsonFields& body, Endpoint endpoint, bool strict);

}  // namespace outrider
