// See api_error.h.
#include "http/wire/api_error.h"

#include <nlohmann/json.hpp>

#include "runtime/base/files/json_depth.h"

namespace outrider {

std::string error_json(const ErrorBody& error) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Json body = {{"message", error.message},
                     {"type", error_type(error.status)},
                     {"param", or_null(error.param)},
                     {"code", or_null(error.code)}};
  return Json{{"error", body}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_message_of(std::string_view body) {
  using Json = nlohmann::json;
  if (json_nests_deeper_than(body, kMaxJsonDepth)) return std::string(body);
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) return std::string(body);
  for (const Json& place : {json.value("error", Json()), json}) {
    const auto says = [](const Json& text) {
      return text.is_string() && !text.get_ref<const std::string&>().empty();
    };
    if (says(place)) return place.get<std::string>();
    if (!place.is_object()) continue;
    for (const char* name : {"message", "detail"}) {
      const Json text = place.value(name, Json());
      if (says(text)) return text.get<std::string>();
    }
  }
  return std::string(body);
}

std::string error_json(int status, const std::string& message) {
  return error_json(ErrorBody{status, message, {}, {}});
}

}  // namespace outrider
