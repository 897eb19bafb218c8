// See config_fields.h.
#include "models/checkpoint/config_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "models/checkpoint/checked_json.h"
#include "models/checkpoint/model_documents.h"
#include "models/gguf/gguf_file.h"
#include "runtime/base/error.h"

namespace outrider {

using Json = nlohmann::json;

struct ConfigFields::Object {
  Json json;
  std::set<std::string> known;

  const Json* find(const char* key) {
    known.insert(key);
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
};

std::optional<ConfigFields> ConfigFields::read(const std::filesystem::path& model,
                                               const char* name) {
  const JsonLimits limits;
  const auto json = read_model_document(model, name, limits.max_bytes);
  if (!json) return std::nullopt;
  return ConfigFields(*json, is_gguf(model) ? model.string() : (model / name).string());
}

ConfigFields::ConfigFields(const std::string& json, std::string where)
    : object_(std::make_shared<Object>()), where_(std::move(where)) {
  check_json(json, {}, where_);
  object_->json = Json::parse(json);
  if (!object_->json.is_object()) fail("must be an object");
}

ConfigFields::ConfigFields(std::shared_ptr<Object> object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {}

void ConfigFields::fail(const std::string& what) const {
  throw Error(fmt::format("{}: {}", where_, what));
}

bool ConfigFields::has(const char* key) const {
  object_->known.insert(key);
  return object_->json.contains(key);
}

bool ConfigFields::is_set(const char* key) const { return object_->find(key) != nullptr; }

std::optional<int64_t> ConfigFields::optional_int(const char* key, IntRange range) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return std::nullopt;
  // An unsigned value beyond int64 is out of every range asked for here.
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < range.low || value->get<int64_t>() > range.high) {
    fail(fmt::format("\"{}\" must be a whole number from {} to {}", key, range.low, range.high));
  }
  return value->get<int64_t>();
}

int32_t ConfigFields::integer(const char* key, IntRange range) const {
  const auto value = optional_int(key, range);
  if (!value) fail(fmt::format("\"{}\" is missing", key));
  return static_cast<int32_t>(*value);
}

int32_t ConfigFields::integer_or(const char* key, IntRange range, int64_t otherwise) const {
  return static_cast<int32_t>(optional_int(key, range).value_or(otherwise));
}

std::optional<double> ConfigFields::optional_number(const char* key) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    fail(fmt::format("\"{}\" must be a number", key));
  }
  return value->get<double>();
}

double ConfigFields::number_or(const char* key, double low, double high, double otherwise) const {
  const double value = optional_number(key).value_or(otherwise);
  if (!(value >= low && value <= high)) {
    fail(fmt::format("\"{}\" must be from {} to {}", key, low, high));
  }
  return value;
}

bool ConfigFields::flag_or(const char* key, bool otherwise) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) fail(fmt::format("\"{}\" must be true or false", key));
  return value->get<bool>();
}

std::string ConfigFields::text_or(const char* key, const char* otherwise) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) fail(fmt::format("\"{}\" must be a text", key));
  return printable(value->get_ref<const std::string&>());
}

std::optional<std::vector<std::string>> ConfigFields::texts(const char* key) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> all;
  for (const Json& item : value->is_array() ? *value : Json::array({*value})) {
    if (!item.is_string()) fail(fmt::format("\"{}\" holds something other than texts", key));
    all.push_back(printable(item.get_ref<const std::string&>()));
  }
  return all;
}

std::optional<std::vector<double>> ConfigFields::numbers(const char* key) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<double> all;
  for (const Json& item : value->is_array() ? *value : Json::array({*value})) {
    if (!item.is_number() || !std::isfinite(item.get<double>())) {
      fail(fmt::format("\"{}\" must hold numbers", key));
    }
    all.push_back(item.get<double>());
  }
  return all;
}

std::optional<ConfigFields> ConfigFields::object(const char* key) const {
  const Json* value = object_->find(key);
  if (value == nullptr) return std::nullopt;
  auto inner = std::make_shared<Object>();
  inner->json = *value;
  const ConfigFields fields(std::move(inner), fmt::format("{}: {}", where_, key));
  if (!value->is_object()) fields.fail("must be an object");
  return fields;
}

void ConfigFields::know(const std::vector<const char*>& keys) const {
  object_->known.insert(keys.begin(), keys.end());
}

std::vector<std::string> ConfigFields::unknown_keys() const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : object_->json.items()) {
    const bool says_something = !value.is_null() && value != false && value != "" &&
                                !((value.is_array() || value.is_object()) && value.empty());
    if (says_something && !object_->known.contains(key)) unknown.push_back(key);
  }
  return unknown;
}

}  // namespace outrider
