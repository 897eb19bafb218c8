// The HTTP library behind our own guard. cpp-httplib binds, accepts and frames responses; what a
// client sends is read and checked by http/connection and never reaches the library's parser, which
// is handed a fixed head instead. One thread per connection, made on demand; a few are kept for
// health probes when all others are taken.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "http/byte_source.h"
#include "http/options.h"
#include "http/request_head.h"
#include "http/serving_metrics.h"

namespace outrider {

struct ServerRequest {
  const RequestHead& head;
  const std::string& body;
  std::function<bool()> client_gone;  // cheap; may be asked often from the handler's thread
};

struct ServerResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::unique_ptr<ByteSource> stream;  // instead of body, sent in chunks
};

class GuardedServer {
 public:
  // Called on the connection's thread; must not throw.
  using Handler = std::function<ServerResponse(const ServerRequest&)>;
  // When all connections are taken, a few more are let in for these paths only.
  using IsProbe = std::function<bool(const RequestHead&)>;

  GuardedServer(const HttpOptions& options,
                ServingMetrics& metrics,
                Handler handler,
                IsProbe is_probe);
  ~GuardedServer();

  // Binds and listens; throws Error when the address cannot be had.
  void start();
  int port() const;
  // Closes the listener, lets running responses end for `grace`, then cuts the rest.
  void stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

const char* status_text(int status);

}  // namespace outrider
