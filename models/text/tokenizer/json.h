// Typed, checked reading of tokenizer.json values. Private to the tokenizer_json*.cpp files (the
// one place of the tokenizer that sees the JSON library). One thread, at load.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer/spec.h"

namespace outrider::json_reader {

using Json = nlohmann::json;

// Where in the file we are, for error sentences.
struct Place {
  std::string path;
  Place in(const std::string& name) const { return {path + ": " + name}; }
  [[noreturn]] void fail(const std::string& what) const;  // throws Error "path: what"
};

// A short printable form of text from the file, for error sentences.
std::string excerpt(std::string_view text);

// Parses with a size limit of 64 MiB and a depth limit of 32, since the library recurses when it
// copies or frees deep values.
Json parse(std::string_view text, const Place& place);

// The member, or null when absent or JSON null or when `object` is no object.
const Json* find(const Json& object, const char* key);

// Typed members; the `_or` forms take the default when absent or null. A wrong type is an Error.
std::string string_at(const Json& object, const char* key, const Place& place);
std::string string_or(const Json& object,
                      const char* key,
                      const std::string& fallback,
                      const Place& place);
bool bool_or(const Json& object, const char* key, bool fallback, const Place& place);
int32_t token_id_of(const Json& value, const Place& place);

// The pipeline stages; a null pointer means the stage is absent. Kinds that are not supported are
// an Error that names them.
std::vector<NormalizerStep> read_normalizer(const Json* value, const Place& place);
std::vector<PreTokenizerStep> read_pre_tokenizer(const Json* value, const Place& place);
DecoderSpec read_decoder(const Json* value, const Place& place);
void read_post_processor(const Json* value, TokenizerSpec& spec, const Place& place);

}  // namespace outrider::json_reader
