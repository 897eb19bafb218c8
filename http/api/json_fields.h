// Typed access to a JSON object that a client sent. Nothing is coerced but whole numbers written
// 2.0: true is not 1, 1.5 is not an integer, a negative number is not an unsigned one. Every fault
// is an ApiError (400) that names the field. Immutable; cheap to copy. The JSON library stays in
// the .cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/wire/api_error.h"
#include "runtime/base/files/json_gate.h"

namespace outrider {

enum class JsonKind : uint8_t { kAbsent, kNull, kBoolean, kNumber, kText, kArray, kObject };

// Of a request's body, whose size the server has bounded. Objects keep their order, which schemas
// and templates show, so finding a key takes time in their number.
inline constexpr JsonLimits kBodyLimits{.max_bytes = SIZE_MAX, .max_depth = 64, .max_keys = 2048};

class JsonFields {
 public:
  // The text must be one object: valid UTF-8 JSON, no duplicate keys, within the limits.
  static JsonFields parse(std::string_view text, const JsonLimits& limits = kBodyLimits);

  // A field that is null counts as absent for everything but kind().
  JsonKind kind(const std::string& name) const;
  bool has(const std::string& name) const;
  std::vector<std::string> names() const;

  std::optional<bool> boolean(const std::string& name) const;
  std::optional<int64_t> integer(const std::string& name, int64_t minimum, int64_t maximum) const;
  std::optional<double> number(const std::string& name, double minimum, double maximum) const;
  std::optional<std::string> text(const std::string& name) const;
  std::string needed_text(const std::string& name) const;  // absent is a fault too
  std::optional<JsonFields> object(const std::string& name) const;
  std::optional<std::vector<JsonFields>> objects(const std::string& name) const;
  std::optional<std::vector<std::string>> texts(const std::string& name) const;
  // Token ids in [0, vocab_size).
  std::optional<std::vector<int32_t>> token_ids(const std::string& name, int32_t vocab_size) const;

  // One element of a prompt: a text or token ids.
  struct Prompt {
    std::optional<std::string> text;
    std::vector<int32_t> ids;
  };
  // A string, a list of ids, or a list of strings and lists of ids.
  std::vector<Prompt> prompts(const std::string& name, int32_t vocab_size) const;

  // The field as JSON text ("null" when absent).
  std::string dump(const std::string& name) const;
  std::string dump() const;  // the whole object

  // Where the object stands in the request, e.g. "messages[2]"; part of every error.
  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const;
  // "'messages[2].role' must be ...", of a field.
  ApiError fault(const std::string& name, std::string_view what) const;

 private:
  struct Impl;
  JsonFields(std::shared_ptr<const Impl> impl, std::string path);
  std::shared_ptr<const Impl> impl_;
  std::string path_;
};

// A value of the JSON library in one line; bytes that are not UTF-8 become U+FFFD.
template <typename Json>
std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text as a JSON string with its quotes; bytes as above.
std::string json_quoted(std::string_view text);

}  // namespace outrider
