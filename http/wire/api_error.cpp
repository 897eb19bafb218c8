// See api_error.h.
#include "http/wire/api_error.h"

#include <nlohmann/json.hpp>

#include "runtime/base/files/json_depth.h"

namespace outrider {
namespace {

// OpenAI's.
const char* error_type(int status) {
  static constexpr std::pair<int, const char*> kTypes[] = {{401, "authentication_error"},
                                                           {403, "permission_error"},
                                                           {404, "not_found_error"},
                                                           {429, "rate_limit_error"},
                                                           {501, "not_supported_error"},
                                                           {503, "service_unavailable_error"}};
  for (const auto& [known, type] : kTypes) {
    if (status == known) return type;
  }
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string error_json(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Json body = {{"message", error.what()},
                     {"type", error_type(error.status())},
                     {"param", or_null(error.param())},
                     {"code", or_null(error.code())}};
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

}  // namespace outrider
