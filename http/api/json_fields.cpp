// See json_fields.h.
#include "http/api/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using json = nlohmann::ordered_json;

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

// 2.0 is 2, as for the JSON readers of other servers: some clients have no other numbers.
std::optional<int64_t> as_whole_number(const json& value) {
  constexpr double kExact = 1LL << 53;
  if (!value.is_number_float()) return as_integer(value);
  const auto number = value.get<double>();
  const bool is_whole = std::abs(number) <= kExact && number == std::floor(number);
  return is_whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

std::vector<int32_t> ids_of(const json& array, int32_t vocab_size, const std::string& path) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const json& element : array) {
    const std::optional<int64_t> id = as_integer(element);
    if (!id) throw bad_param(path, fmt::format("'{}' must be a list of token ids", path));
    if (*id < 0 || *id >= vocab_size) {
      throw bad_param(
          path,
          fmt::format("token id {} in '{}' is out of vocabulary [0, {})", *id, path, vocab_size));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace

struct JsonFields::Impl {
  json value;

  // nullptr when absent or null.
  const json* find(const std::string& name) const {
    const auto it = value.find(name);
    return it == value.end() || it->is_null() ? nullptr : &*it;
  }
};

JsonFields::JsonFields(std::shared_ptr<const Impl> impl, std::string path)
    : impl_(std::move(impl)), path_(std::move(path)) {}

JsonFields JsonFields::parse(std::string_view text, const JsonLimits& limits) {
  const std::string fault = json_fault(text, limits);
  if (!fault.empty()) throw ApiError(400, fmt::format("the body {}", fault));
  auto impl = std::make_shared<Impl>();
  impl->value = json::parse(text.begin(), text.end(), nullptr, false);
  return JsonFields(std::move(impl), "");
}

std::string JsonFields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

ApiError JsonFields::fault(const std::string& name, std::string_view what) const {
  return bad_param(path_of(name), fmt::format("'{}' {}", path_of(name), what));
}

JsonKind JsonFields::kind(const std::string& name) const {
  const auto it = impl_->value.find(name);
  if (it == impl_->value.end()) return JsonKind::kAbsent;
  if (it->is_null()) return JsonKind::kNull;
  if (it->is_boolean()) return JsonKind::kBoolean;
  if (it->is_number()) return JsonKind::kNumber;
  if (it->is_string()) return JsonKind::kText;
  return it->is_array() ? JsonKind::kArray : JsonKind::kObject;
}

bool JsonFields::has(const std::string& name) const { return impl_->find(name) != nullptr; }

std::vector<std::string> JsonFields::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : impl_->value.items()) names.push_back(name);
  return names;
}

std::optional<bool> JsonFields::boolean(const std::string& name) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) throw fault(name, "must be true or false");
  return value->get<bool>();
}

std::optional<int64_t> JsonFields::integer(const std::string& name,
                                           int64_t minimum,
                                           int64_t maximum) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = as_whole_number(*value);
  if (!number || *number < minimum || *number > maximum) {
    throw fault(name, fmt::format("must be an integer from {} to {}", minimum, maximum));
  }
  return number;
}

std::optional<double> JsonFields::number(const std::string& name,
                                         double minimum,
                                         double maximum) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= minimum && number <= maximum)) {
    throw fault(name, fmt::format("must be a number from {} to {}", minimum, maximum));
  }
  return number;
}

std::optional<std::string> JsonFields::text(const std::string& name) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw fault(name, "must be a string");
  return value->get<std::string>();
}

std::string JsonFields::needed_text(const std::string& name) const {
  std::optional<std::string> value = text(name);
  if (!value) throw fault(name, "is missing");
  return *std::move(value);
}

std::optional<JsonFields> JsonFields::object(const std::string& name) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) throw fault(name, "must be an object");
  return JsonFields(std::make_shared<Impl>(Impl{*value}), path_of(name));
}

std::optional<std::vector<JsonFields>> JsonFields::objects(const std::string& name) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  const ApiError wrong = fault(name, "must be a list of objects");
  if (!value->is_array()) throw wrong;
  std::vector<JsonFields> objects;
  for (const json& element : *value) {
    if (!element.is_object()) throw wrong;
    objects.push_back(JsonFields(std::make_shared<Impl>(Impl{element}),
                                 fmt::format("{}[{}]", path_of(name), objects.size())));
  }
  return objects;
}

std::optional<std::vector<std::string>> JsonFields::texts(const std::string& name) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  const ApiError wrong = fault(name, "must be a list of strings");
  if (!value->is_array()) throw wrong;
  std::vector<std::string> texts;
  for (const json& element : *value) {
    if (!element.is_string()) throw wrong;
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<int32_t>> JsonFields::token_ids(const std::string& name,
                                                          int32_t vocab_size) const {
  const json* value = impl_->find(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) throw fault(name, "must be a list of token ids");
  return ids_of(*value, vocab_size, path_of(name));
}

std::vector<JsonFields::Prompt> JsonFields::prompts(const std::string& name,
                                                    int32_t vocab_size) const {
  const std::string path = path_of(name);
  const ApiError wrong = fault(name,
                               "must be a string, a list of strings, a list of token ids or a list "
                               "of lists of token ids, and not empty");
  const json* value = impl_->find(name);
  if (!value) throw wrong;
  if (value->is_string()) return {Prompt{.text = value->get<std::string>(), .ids = {}}};
  if (!value->is_array() || value->empty()) throw wrong;
  if (value->front().is_number()) {
    return {Prompt{.text = std::nullopt, .ids = ids_of(*value, vocab_size, path)}};
  }
  std::vector<Prompt> prompts;
  for (const json& element : *value) {
    if (element.is_string()) {
      prompts.push_back({.text = element.get<std::string>(), .ids = {}});
    } else if (element.is_array() && !element.empty()) {
      prompts.push_back({.text = std::nullopt, .ids = ids_of(element, vocab_size, path)});
    } else {
      throw wrong;
    }
  }
  return prompts;
}

std::string JsonFields::dump(const std::string& name) const {
  const json* value = impl_->find(name);
  return value ? dumped(*value) : "null";
}

std::string JsonFields::dump() const { return dumped(impl_->value); }

std::string json_quoted(std::string_view text) { return dumped(json(std::string(text))); }

}  // namespace outrider
