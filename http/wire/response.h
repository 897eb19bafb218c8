// What the server answers with, and how it goes over a connection: a body with its length, or a
// stream in chunks (to HTTP/1.0 peers, nginx's default among them, until the connection closes).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace outrider {

class Connection;

// The body of a streamed response, pulled by whoever sends it.
class ByteSource {
 public:
  // Destroyed when the response ends for whatever reason; what still runs for it is then cancelled.
  virtual ~ByteSource() = default;
  // Waits a short while (at most about 50 ms) for bytes and appends them; false when there will be
  // no more.
  virtual bool next(std::string* out) = 0;
};

struct ServerResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::unique_ptr<ByteSource> stream;  // instead of body; must not outlive who made it
  bool client_gone = false;            // nobody is left to read this
};

// Sends a response to the request that connection.head() holds. True when another request may
// follow, which is never so unless keep_alive. Runs a stream to its end or its client's.
bool send_response(Connection& connection, ServerResponse response, bool keep_alive);

}  // namespace outrider
