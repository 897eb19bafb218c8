// The HTTP front: access checks before the service, and the life of the listener from start to
// drain and stop. Used by the serve command on the coordinator's process.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "http/api/serving_metrics.h"
#include "http/batches/batch_api.h"
#include "http/service.h"
#include "http/wire/guarded_server.h"
#include "http/wire/options.h"

namespace outrider {

class HttpServer {
 public:
  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();

  // Listens; throws Error when address, certificate or key cannot be had. Until open() probes and
  // calls are told that the model is being loaded.
  void start();
  int port() const { return server_.port(); }
  // From now on the service answers. All must live until stop() has returned, or the opening has
  // gone, which stops the server too.
  class Opening {
   public:
    explicit Opening(HttpServer& server) : server_(server) {}
    ~Opening() { server_.stop(std::chrono::milliseconds(0)); }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;

   private:
    HttpServer& server_;
  };
  // batches: what answers /v1/files and /v1/batches; null where the server has none.
  [[nodiscard]] Opening open(OpenAiService& service,
                             ServingMetrics& metrics,
                             BatchApi* batches = nullptr);

  // Readiness fails and new generations are refused at once; what runs may end. The listener stays
  // open so that probes are answered.
  void begin_drain();
  // begin_drain(), waits up to the timeout for what runs, ends the rest with errors, closes
  // everything. True when nothing had to be cut off. May be called again.
  bool stop(std::chrono::milliseconds drain_timeout);

 private:
  ServerResponse respond(ServerRequest request);
  ServerResponse answer(ServerRequest request, const std::string& id);
  ServerResponse page(const RequestHead& head);  // at "/"
  ServerResponse serve(ServerRequest request, const std::string& id);
  ServerResponse refused(int status, const std::string& message);
  bool is_upload(const RequestHead& head) const;
  bool wait_idle(std::chrono::milliseconds timeout) const;

  const HttpOptions& options_;
  OpenAiService* service_ = nullptr;  // all set before is_open_
  ServingMetrics* metrics_ = nullptr;
  BatchApi* batches_ = nullptr;
  std::atomic<bool> is_open_{false};
  GuardedServer server_;
};

}  // namespace outrider
