// See schema_gaps.h.
#include "http/api/schema_gaps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

// In the order in which the engine looks for them.
constexpr const char* kAlone[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// What narrows the documents; other keywords only describe.
constexpr const char* kConstraints[] = {"$ref",
                                        "const",
                                        "enum",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "not",
                                        "type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "dependencies",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "uniqueItems",
                                        "pattern",
                                        "format",
                                        "minLength",
                                        "maxLength",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf"};
// What the engine never reads.
constexpr const char* kUnread[] = {"not",
                                   "if",
                                   "dependencies",
                                   "dependentRequired",
                                   "dependentSchemas",
                                   "uniqueItems",
                                   "contains",
                                   "minContains",
                                   "maxContains",
                                   "additionalItems"};
// What it reads where the type is said only.
constexpr const char* kOfScalars[] = {"pattern",
                                      "minLength",
                                      "maxLength",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "multipleOf"};
// Keywords whose value is a schema, or a list of them; and an object of schemas.
constexpr const char* kWithSchemas[] = {
    "items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"};
constexpr const char* kWithNamedSchemas[] = {
    "properties", "patternProperties", "$defs", "definitions"};

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  }
  return type == value.type_name();  // null, boolean, number, string, array, object
}

bool fits(const Json& value, const Json& types) {
  if (types.is_string()) return is_of_type(value, types.get<std::string>());
  return types.is_array() && std::any_of(types.begin(), types.end(), [&](const Json& type) {
           return type.is_string() && is_of_type(value, type.get<std::string>());
         });
}

std::vector<std::string> type_names(const Json& types) {
  std::vector<std::string> names;
  for (const Json& type : types.is_array() ? types : Json::array({types})) {
    if (type.is_string()) names.push_back(type.get<std::string>());
  }
  return names;
}

// Whether values of the inner types are of the outer ones.
bool is_within(const Json& inner, const Json& outer) {
  const std::vector<std::string> allowed = type_names(outer);
  return std::ranges::all_of(type_names(inner), [&](const std::string& type) {
    return std::ranges::count(allowed, type) > 0 ||
           (type == "integer" && std::ranges::count(allowed, "number") > 0);
  });
}

// Whether `alone` leaves nothing for the type beside it to forbid.
bool implies_type(const Json& schema, const std::string& alone) {
  const Json& value = schema.at(alone);
  const Json& types = schema.at("type");
  if (alone == "const") return fits(value, types);
  return value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& part) {
           if (alone == "enum") return fits(part, types);
           if (part.is_object() && part.contains("type")) return is_within(part["type"], types);
           return part.is_object() &&
                  (part.contains("const") || part.contains("enum") || part.contains("$ref"));
         });
}

// Whether a pattern names a quote, a backslash or a control character outside of a class: the
// engine then writes it as it is, which is no JSON. In classes it leaves them out.
bool writes_unescaped(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool is_escape = c == '\\' && i + 1 < pattern.size();
    const char named = is_escape ? pattern[++i] : c;
    if (is_escape && !in_class) {
      if (std::string_view("\\\"tnrfv0c").find(named) != std::string_view::npos) return true;
      const bool is_code = named == 'x' || named == 'u';
      const std::string_view code = pattern.substr(i + 1, is_code ? (named == 'x' ? 2 : 4) : 0);
      const long value = is_code ? std::strtol(std::string(code).c_str(), nullptr, 16) : ' ';
      if (value < ' ' || value == '"' || value == '\\') return true;
    } else if (!is_escape) {
      if (!in_class && (c == '"' || static_cast<unsigned char>(c) < ' ')) return true;
      in_class = in_class ? c != ']' : c == '[';
    }
  }
  return false;
}

// Schemas are looked at from a list, for their depth is the user's.
class GapFinder {
 public:
  GapFinder(const Json& root, size_t most) : root_(root), most_(most) { look_later(root, ""); }

  std::vector<std::string> find() {
    while (!waiting_.empty() && gaps_.size() < most_) {
      const auto [schema, path] = std::move(waiting_.back());
      waiting_.pop_back();
      look_at(*schema, path);
    }
    return std::move(gaps_);
  }

 private:
  // Many schemas may wait below a long name.
  void look_later(const Json& schema, std::string path) {
    constexpr size_t kMostBytes = 256;
    if (!schema.is_object() || !seen_.insert(&schema).second) return;
    if (path.size() > kMostBytes) path = path.substr(0, kMostBytes) + "...";
    waiting_.emplace_back(&schema, std::move(path));
  }

  void look_at(const Json& schema, const std::string& path) {
    const auto* const alone =
        std::ranges::find_if(kAlone, [&](const char* name) { return schema.contains(name); });
    if (alone != std::end(kAlone)) {
      look_beside(schema, *alone, path);
    } else {
      look_at_unread(schema, path);
      look_at_required(schema, path);
    }
    look_inside(schema, path);
  }

  // The last one that waits is the next to be looked at.
  void look_inside(const Json& schema, const std::string& path) {
    const size_t num_waiting = waiting_.size();
    look_behind_ref(schema);
    for (const char* name : kWithSchemas) {
      const auto value = schema.find(name);
      if (value == schema.end()) continue;
      look_later(*value, path + "/" + name);
      if (value->is_array()) look_at_parts(*value, path + "/" + name);
    }
    for (const char* name : kWithNamedSchemas) {
      const auto value = schema.find(name);
      if (value != schema.end() && value->is_object()) look_at_parts(*value, path + "/" + name);
    }
    std::reverse(waiting_.begin() + static_cast<std::ptrdiff_t>(num_waiting), waiting_.end());
  }

  void look_at_parts(const Json& value, const std::string& path) {
    for (const auto& [key, part] : value.items()) look_later(part, path + "/" + key);
  }

  void look_behind_ref(const Json& schema) {
    const auto ref = schema.find("$ref");
    if (ref == schema.end() || !ref->is_string()) return;
    const std::string text = ref->get<std::string>();
    if (!text.starts_with("#/")) return;
    try {
      const Json::json_pointer place(text.substr(1));
      if (root_.contains(place)) look_later(root_.at(place), text.substr(1));
    } catch (const Json::exception&) {
      return;  // the engine refuses what is no reference
    }
  }

  void look_beside(const Json& schema, const std::string& alone, const std::string& path) {
    for (const char* name : kConstraints) {
      if (name == alone || !schema.contains(name)) continue;
      if (std::string_view(name) == "type" && implies_type(schema, alone)) continue;
      add(fmt::format("'{}' beside '{}' is not applied at #{}", name, alone, path));
    }
  }

  void look_at_unread(const Json& schema, const std::string& path) {
    for (const char* name : kUnread) {
      const auto value = schema.find(name);
      const bool false_is_off =
          name == std::string_view("uniqueItems") || name == std::string_view("not");
      if (value == schema.end() || (false_is_off && *value == false)) continue;
      add(fmt::format("'{}' is not applied at #{}", name, path));
    }
    const auto pattern = schema.find("pattern");
    if (pattern != schema.end() && pattern->is_string() &&
        writes_unescaped(pattern->get_ref<const std::string&>())) {
      add(fmt::format("'pattern' has a character that JSON escapes and the engine does not, at #{}",
                      path));
    }
    if (schema.contains("pattern") && schema.contains("format"))
      add(fmt::format("'pattern' beside 'format' is not applied at #{}", path));
    if (schema.contains("type")) return;
    for (const char* name : kOfScalars) {
      if (!schema.contains(name)) continue;
      add(fmt::format("'{}' without 'type' is not applied at #{}", name, path));
    }
  }

  void look_at_required(const Json& schema, const std::string& path) {
    const auto required = schema.find("required");
    if (required == schema.end() || !required->is_array()) return;
    const auto properties = schema.find("properties");
    for (const Json& name : *required) {
      if (!name.is_string()) continue;
      if (properties != schema.end() && properties->contains(name.get<std::string>())) continue;
      add(fmt::format(
          "'required' names {}, which is not among the properties, at #{}", name.dump(), path));
    }
  }

  void add(std::string gap) {
    if (gaps_.size() < most_) gaps_.push_back(std::move(gap));
  }

  const Json& root_;
  size_t most_;
  std::vector<std::pair<const Json*, std::string>> waiting_;
  std::set<const Json*> seen_;
  std::vector<std::string> gaps_;
};

}  // namespace

std::vector<std::string> schema_gaps(std::string_view schema, size_t most) {
  const Json root = Json::parse(schema);
  return GapFinder(root, most).find();
}

}  // namespace outrider
