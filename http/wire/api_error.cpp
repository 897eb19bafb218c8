// See api_error.h.
#include "http/wire/api_error.h"

#include <nlohmann/json.hpp>

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

std::string error_json(int status, const std::string& message) {
  return error_json(ErrorBody{status, message, {}, {}});
}

}  // namespace outrider
