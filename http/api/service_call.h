// What is asked of the API, without a transport: between whoever has a request (the HTTP server,
// `outrider batch`, a batch of /v1/batches) and what answers it with a ServerResponse.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "http/wire/byte_budget.h"
#include "http/wire/response.h"

namespace outrider {

struct ServiceCall {
  std::string method = "POST";
  std::string path;
  std::string query;         // of the request target, as sent
  std::string content_type;  // as sent
  RequestBody body;
  std::string request_id;              // part of the response's id; made up when empty
  int32_t least_priority = INT32_MIN;  // a smaller one, which would run sooner, becomes this
  std::function<bool()> client_gone;   // empty: there is nobody who could leave
};

}  // namespace outrider
