// A request's fault (or ours) as OpenAI clients understand it. Thrown while a request is read and
// checked; the service, or the server before it, turns it into {"error": {message, type, param,
// code}} with its status.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {

class ApiError : public Error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // empty: null on the wire
  const std::string& code() const { return code_; }    // empty: null on the wire

 private:
  int status_;
  std::string param_;
  std::string code_;
};

// 400 with the field at fault.
inline ApiError bad_param(const std::string& param, const std::string& message) {
  return ApiError(400, message, param);
}

// {"error": {message, type, param, code}}
std::string error_json(const ApiError& error);

// The sentence of an error in any of the shapes that servers have: {"error": {"message"}},
// {"error": "..."}, {"message"}, {"detail"}; else the body as it is.
std::string error_message_of(std::string_view body);

}  // namespace outrider
