// The listener and its connections. What a client sends is read and checked by connection.h, what
// it gets is written by response.h. One thread per connection, made on demand; a few are kept for
// health probes when all others are taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "http/wire/connection.h"
#include "http/wire/options.h"
#include "http/wire/request_head.h"
#include "http/wire/response.h"

namespace outrider {

struct ServerRequest {
  const RequestHead& head;
  RequestBody body;
  std::function<bool()> client_gone;  // cheap; may be asked often from the handler's thread
};

class GuardedServer {
 public:
  // Called on the connection's thread.
  using Handler = std::function<ServerResponse(ServerRequest)>;
  // Asked before a request's body is read: may it be as large and as slow as a file's?
  using IsUpload = std::function<bool(const RequestHead&)>;

  GuardedServer(const HttpOptions& options, Handler handler, IsUpload is_upload);
  ~GuardedServer();

  // Reads certificate and key, binds and listens; throws Error when that cannot be.
  void start();
  int port() const;  // 0 of a Unix socket
  size_t num_connections() const;
  uint64_t num_malformed_requests() const;
  // Closes the listener, lets running responses end for `grace`, then cuts the rest.
  void stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
