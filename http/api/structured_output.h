// The fields by which clients ask for structured output: OpenAI's response_format, vLLM's
// structured_outputs and its older guided_*, llama.cpp's grammar and json_schema, SGLang's regex and
// ebnf.
#pragma once

#include <optional>
#include <string>

#include "http/api/json_fields.h"
#include "http/wire/options.h"
#include "scheduler/sampling_params.h"

namespace outrider {

struct RequestedGrammar {
  Grammar grammar;    // without end tokens
  std::string param;  // the field it is from
  bool strict = false;  // a schema of which a part cannot be enforced is refused
};

// Nothing when any output will do. Throws ApiError when a field is not of its form, or when there
// are several.
std::optional<RequestedGrammar> read_grammar(const JsonFields& body, const CallLimits& limits);

}  // namespace outrider
