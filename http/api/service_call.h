// What is asked of the API and what comes back, without a transport: between whoever has a request
// (the HTTP server, `outrider batch`, a batch of /v1/batches) and what answers it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "http/wire/byte_budget.h"
#include "http/wire/byte_source.h"

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

struct ServiceReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string allow;                   // with 405: the methods of the path
  std::unique_ptr<ByteSource> stream;  // instead of body; must not outlive the service
  bool client_gone = false;            // nobody is left to read this
};

}  // namespace outrider
