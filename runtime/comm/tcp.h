// TCP between the coordinator and drafts outside the job: addresses as people write them, a
// listening socket, a connection with a deadline, and the settings that both ends want. Throws
// Error with one sentence. Any thread.
#pragma once

#include <functional>
#include <string>

namespace outrider {

struct TcpAddress {
  std::string host;
  int port = 0;
};
// "host:7000", "10.0.0.1:7000", "[::1]:7000". what: the option, for errors.
TcpAddress parse_tcp_address(const std::string& text, const std::string& what);
std::string text_of(const TcpAddress& address);

class TcpListener {
 public:
  // Binds and listens; port 0: any free one. loopback_only_because: not empty: an address that
  // other hosts reach is refused, in these words.
  TcpListener(const TcpAddress& address, const std::string& loopback_only_because);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  int descriptor() const { return descriptor_; }
  TcpAddress address() const { return address_; }  // with the port that was had
  // The next connection, tuned; -1 when there is none. Never waits.
  int accept() const;

 private:
  int descriptor_ = -1;
  TcpAddress address_;
};

// A connected, tuned descriptor. is_over: asked meanwhile; true gives up.
int connect_tcp(const TcpAddress& address, double timeout_s, const std::function<bool()>& is_over);

// Small messages go at once, and a peer whose host or network is gone is noticed within seconds:
// by probes while nothing is under way, by what is not acknowledged otherwise.
void tune_tcp(int descriptor);

// Of the other end: "10.0.0.7:51342".
std::string peer_of(int descriptor);

}  // namespace outrider
