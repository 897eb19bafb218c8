// See server.h.
#include "http/server.h"

#include <fmt/format.h>

#include <thread>

#include "http/api/openai_response.h"
#include "http/dialects/messages.h"
#include "http/webui/chat_page.h"
#include "http/wire/access.h"
#include "http/wire/api_error.h"
#include "http/wire/listener.h"
#include "runtime/base/log.h"
#include "runtime/base/telemetry/load_progress.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kCutGrace{2000};  // for error events to be written out

// One line per call; never what was asked or answered.
void log_call(const RequestHead& head,
              const ServerResponse& response,
              const std::string& id,
              std::chrono::steady_clock::time_point start) {
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  const char* form = response.stream ? "stream" : "json";
  if (is_public_path(head.path)) {
    log_debug("{} {} {} id={} {} ms", head.method, head.path, response.status, id, elapsed.count());
  } else {
    log_info("{} {} {} id={} {} {} ms",
             head.method,
             head.path,
             response.status,
             id,
             form,
             elapsed.count());
  }
}

std::string loading_message() {
  const LoadProgress& progress = load_progress();
  const size_t all = progress.all_bytes;
  if (all == 0) return "the model is being loaded";
  return fmt::format("the model is being loaded: {} % of {:.3f} GB of weights are read",
                     progress.read_bytes * 100 / all,
                     static_cast<double>(all) / 1e9);
}

ServerResponse still_loading(const RequestHead& head) {
  if (head.path == "/livez") return {.body = text_object_json({{"status", "ok"}})};
  return {.status = 503, .body = error_json({503, loading_message(), {}, "loading"})};
}

}  // namespace

HttpServer::HttpServer(const HttpOptions& options)
    : options_(options),
      server_(
          options,
          [this](ServerRequest request) { return respond(std::move(request)); },
          [this](const RequestHead& head) { return is_upload(head); }) {}

HttpServer::~HttpServer() { stop(std::chrono::milliseconds(0)); }

void HttpServer::start() {
  server_.start();
  log_info("listening on {}", url_of(options_, port()));
}

HttpServer::Opening HttpServer::open(OpenAiService& service,
                                     ServingMetrics& metrics,
                                     BatchApi* batches) {
  service_ = &service;
  metrics_ = &metrics;
  batches_ = batches;
  is_open_ = true;
  return Opening(*this);
}

ServerResponse HttpServer::refused(int status, const std::string& message) {
  if (is_open_) metrics_->requests_refused(status).add();
  ServerResponse response{.status = status, .body = error_json({status, message})};
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ServerResponse HttpServer::respond(ServerRequest request) {
  const auto start = std::chrono::steady_clock::now();
  const RequestHead& head = request.head;
  const std::string_view sent_id = head.header("x-request-id");
  const std::string id = is_valid_request_id(sent_id) ? std::string(sent_id) : new_request_id();
  ServerResponse response = answer(std::move(request), id);
  if (response.status >= 400 && is_messages_path(head.path))
    response.body = messages_error_json(response.body);
  if (response.stream) {
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.headers.emplace_back("X-Accel-Buffering",
                                  "no");  // a proxy must not collect the events
  }
  response.headers.emplace_back("X-Request-Id", id);
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  for (auto& header : cors_headers(head, options_.cors))
    response.headers.push_back(std::move(header));
  log_call(head, response, id, start);
  return response;
}

ServerResponse HttpServer::answer(ServerRequest request, const std::string& id) {
  const RequestHead& head = request.head;
  if (is_foreign_origin(head, options_.cors))
    return refused(403, "requests from this origin are not allowed (--allowed-origins)");
  // Before the key is asked for: a browser sends none with a preflight.
  if (is_preflight(head)) return {.content_type = "text/plain", .body = "OK"};
  if (options_.webui && (head.path == "/" || head.path.empty())) return page(head);
  if (!is_public_path(head.path) && lacks_key(head, options_.api_keys))
    return refused(401, "a valid API key is needed");
  if (!is_file_upload(head.method, head.path) && !has_json_body(head))
    return refused(415, "the body must be application/json");
  if (!is_open_) return still_loading(head);
  return serve(std::move(request), id);
}

ServerResponse HttpServer::page(const RequestHead& head) {
  if (head.method != "GET" && head.method != "HEAD") {
    ServerResponse response = refused(405, "/ needs GET");
    response.headers.emplace_back("Allow", "GET, HEAD");
    return response;
  }
  if (!head.path.empty()) return chat_page();
  // The root path without its last slash: the page's own addresses are relative to it with one.
  ServerResponse response{.status = 307, .content_type = "text/plain"};
  const size_t last = options_.root_path.rfind('/') + 1;
  response.headers.emplace_back("Location", options_.root_path.substr(last) + "/");
  return response;
}

ServerResponse HttpServer::serve(ServerRequest request, const std::string& id) {
  metrics_->http_connections.set(static_cast<double>(server_.num_connections()));
  metrics_->http_requests_malformed.set_total(server_.num_malformed_requests());
  ServiceCall call{.method = request.head.method,
                   .path = request.head.path,
                   .query = request.head.query,
                   .content_type = std::string(request.head.header("content-type")),
                   .body = std::move(request.body),
                   .request_id = id,
                   .client_gone = std::move(request.client_gone)};
  if (!is_batch_path(call.path)) return service_->handle(std::move(call));
  if (batches_ != nullptr) return batches_->handle(call);
  metrics_->requests_refused(404).add();
  return {.status = 404,
          .body = error_json(
              {404, "this server keeps no files and batches: start it with --batch-dir"})};
}

// A large one only of those who may: it is asked before the body is read.
bool HttpServer::is_upload(const RequestHead& head) const {
  return options_.connection.max_upload_bytes > 0 && is_file_upload(head.method, head.path) &&
         !lacks_key(head, options_.api_keys);
}

bool HttpServer::wait_idle(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (service_->num_running() > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void HttpServer::begin_drain() {
  if (!is_open_) return;
  if (batches_ != nullptr) batches_->begin_drain();
  service_->begin_drain();
}

bool HttpServer::stop(std::chrono::milliseconds drain_timeout) {
  bool idle = true;
  if (is_open_) {
    begin_drain();
    idle = wait_idle(drain_timeout);
    if (!idle) log_warning("drain time is over: {} calls are cut off", service_->num_running());
    service_->abort_running();
    wait_idle(kCutGrace);
  }
  server_.stop(std::chrono::milliseconds(500));
  is_open_ = false;
  return idle;
}

}  // namespace outrider
