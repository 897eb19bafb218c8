// See schema_gaps.h.
#include "http/api/schema_gaps.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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
// Keywords whose value is a schema, a list of schemas, or an object of schemas.
constexpr const char* kWithSchemas[] = {"items",
                                        "prefixItems",
                                        "additionalProperties",
                                        "properties",
                                        "patternProperties",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$defs",
                                        "definitions"};

class GapFinder {
 public:
  explicit GapFinder(size_t most) : most_(most) {}

  void look_at(const Json& schema, const std::string& path) {
    if (!schema.is_object()) return;
    const auto alone = std::find_if(std::begin(kAlone), std::end(kAlone), [&](const char* name) {
      return schema.contains(name);
    });
    if (alone != std::end(kAlone)) {
      look_beside(schema, *alone, path);
    } else {
      look_at_unread(schema, path);
      look_at_required(schema, path);
    }
    for (const char* name : kWithSchemas) {
      const auto value = schema.find(name);
      if (value != schema.end()) look_into(*value, name, path);
    }
  }

  std::vector<std::string> take() { return std::move(gaps_); }

 private:
  void look_into(const Json& value, const std::string& name, const std::string& path) {
    const bool is_list = name == "prefixItems" || name == "anyOf" || name == "oneOf" ||
                         name == "allOf" || value.is_array();
    const bool is_named = name == "properties" || name == "patternProperties" || name == "$defs" ||
                          name == "definitions";
    if (is_list || is_named) {
      for (const auto& [key, part] : value.items()) look_at(part, path + "/" + name + "/" + key);
    } else {
      look_at(value, path + "/" + name);
    }
  }

  // The type beside a list of values, or of parts that have one of their own, adds nothing.
  void look_beside(const Json& schema, const std::string& alone, const std::string& path) {
    for (const char* name : kConstraints) {
      if (name == alone || !schema.contains(name)) continue;
      if (std::string_view(name) == "type" && says_type(schema.at(alone), alone)) continue;
      add(fmt::format("'{}' beside '{}' is not applied at #{}", name, alone, path));
    }
  }

  static bool says_type(const Json& value, const std::string& alone) {
    if (alone == "const" || alone == "enum") return true;
    return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& part) {
             return part.is_object() && (part.contains("type") || part.contains("const") ||
                                         part.contains("enum") || part.contains("$ref"));
           });
  }

  void look_at_unread(const Json& schema, const std::string& path) {
    for (const char* name : kUnread) {
      const auto value = schema.find(name);
      if (value == schema.end() || *value == false) continue;
      add(fmt::format("'{}' is not applied at #{}", name, path));
    }
    if (schema.contains("type")) return;
    for (const char* name : kOfScalars) {
      if (schema.contains(name))
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

  size_t most_;
  std::vector<std::string> gaps_;
};

}  // namespace

std::vector<std::string> schema_gaps(std::string_view schema, size_t most) {
  GapFinder finder(most);
  finder.look_at(Json::parse(schema), "");
  return finder.take();
}

}  // namespace outrider
