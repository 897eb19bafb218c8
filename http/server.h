// The HTTP front: routes requests through access checks to the service, and the life of the
// listener from start to drain and stop. Used by the serve command on the coordinator's process.
#pragma once

#include <chrono>
#include <memory>

#include "http/guarded_server.h"
#include "http/options.h"
#include "http/service.h"
#include "http/serving_metrics.h"

namespace outrider {

class HttpServer {
 public:
  // All references must outlive the server.
  HttpServer(const HttpOptions& options, OpenAiService& service, ServingMetrics& metrics);
  ~HttpServer();

  // Listens; throws Error when the address cannot be had.
  void start();
  int port() const { return server_.port(); }

  // Readiness fails and new generations are refused at once; what runs may end. The listener stays
  // open so that probes are answered.
  void begin_drain();
  // begin_drain(), waits up to the timeout for what runs, ends the rest with errors, closes
  // everything. True when nothing had to be cut off. May be called again.
  bool stop(std::chrono::milliseconds drain_timeout);

 private:
  ServerResponse respond(const ServerRequest& request);
  ServerResponse refused(int status, const std::string& message);
  bool wait_idle(std::chrono::milliseconds timeout) const;

  const HttpOptions& options_;
  OpenAiService& service_;
  ServingMetrics& metrics_;
  GuardedServer server_;
};

}  // namespace outrider
