// See http_client.h. The only file that knows cpp-httplib.
#include "http/wire/http_client.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace outrider {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kLongIdle = std::chrono::seconds(1);

}  // namespace

ServerAddress parse_server_address(const std::string& url) {
  const bool secure = url.starts_with("https://");
  if (!secure && !url.starts_with("http://"))
    throw Error(fmt::format("'{}' must begin with http:// or https://", url));
#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
  if (secure) throw Error("this build's HTTP library has no TLS: use an http:// address");
#endif
  const size_t host = secure ? 8 : 7;
  const size_t slash = std::min(url.find('/', host), url.size());
  ServerAddress address{url.substr(0, slash), url.substr(slash)};
  const bool bad_character = std::any_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '@' || c == '?' || c == '#' || c == 0x7f;
  });
  if (slash == host || bad_character)
    throw Error(fmt::format("'{}' is no address like http://127.0.0.1:8000", url));
  while (address.path_prefix.ends_with('/')) address.path_prefix.pop_back();
  if (address.path_prefix.ends_with("/v1"))
    address.path_prefix.resize(address.path_prefix.size() - 3);
  return address;
}

struct HttpClient::Impl {
  Impl(ServerAddress where, Timeouts limits)
      : address(std::move(where)), timeouts(limits), client(address.origin) {
    client.set_keep_alive(true);
    // Head and body are two writes: with Nagle's rule the second would wait for the first's
    // acknowledgement, up to 40 ms.
    client.set_tcp_nodelay(true);
    client.set_follow_location(false);
    client.set_decompress(false);
    client.set_connection_timeout(timeouts.connect);
    client.set_read_timeout(timeouts.read);
    client.set_write_timeout(timeouts.read);
  }

  ServerAddress address;
  Timeouts timeouts;
  httplib::Client client;
  SteadyClock::time_point last_used = SteadyClock::now();
};

HttpClient::HttpClient(ServerAddress address, Timeouts timeouts)
    : impl_(std::make_unique<Impl>(std::move(address), timeouts)) {
  if (!impl_->client.is_valid())
    throw Error(
        fmt::format("'{}' is no address like http://127.0.0.1:8000", impl_->address.origin));
}

HttpClient::~HttpClient() = default;

HttpOutcome HttpClient::exchange(const HttpExchange& exchange) {
  if (SteadyClock::now() - impl_->last_used > kLongIdle) impl_->client.stop();
  httplib::Request request;
  request.method = exchange.body.empty() ? "GET" : "POST";
  request.path = impl_->address.path_prefix + exchange.path;
  request.set_header("Accept-Encoding", "identity");
  for (const auto& [name, value] : exchange.headers) request.set_header(name, value);
  if (!exchange.body.empty()) {
    request.set_header("Content-Type", "application/json");
    request.body = exchange.body;
  }
  auto last_byte = SteadyClock::now();
  request.response_handler = [&](const httplib::Response& head) {
    last_byte = SteadyClock::now();
    if (exchange.on_head) exchange.on_head(head.status);
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    last_byte = SteadyClock::now();
    return !exchange.on_bytes || exchange.on_bytes({data, size});
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  const bool sent = impl_->client.send(request, response, error);
  impl_->last_used = SteadyClock::now();
  if (sent) return HttpOutcome::kDone;
  impl_->client.stop();
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
    case httplib::Error::SSLConnection:
    case httplib::Error::SSLLoadingCerts:
    case httplib::Error::SSLServerVerification:
      return HttpOutcome::kNoConnection;
    case httplib::Error::Canceled:
      return HttpOutcome::kStopped;
    default:
      break;
  }
  // The library does not tell a silent server from one that went away; the time it took does.
  const bool silent = impl_->last_used - last_byte >= impl_->timeouts.read;
  return silent ? HttpOutcome::kTimeout : HttpOutcome::kBroken;
}

void HttpClient::stop() { impl_->client.stop(); }

HttpClient::Answer HttpClient::get(const std::string& path,
                                   const std::vector<std::pair<std::string, std::string>>& headers,
                                   size_t max_bytes) {
  Answer answer;
  const auto receive = [&](std::string_view bytes) {
    answer.body.append(bytes.substr(0, max_bytes - answer.body.size()));
    return answer.body.size() < max_bytes;
  };
  answer.outcome = exchange({.path = path,
                             .headers = headers,
                             .on_head = [&](int status) { answer.status = status; },
                             .on_bytes = receive});
  return answer;
}

}  // namespace outrider
