// The socket that clients connect to: a TCP port, or a Unix socket with a file.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "http/wire/options.h"

namespace outrider {

// "https://[::1]:8000", "unix:/run/outrider.sock". `port` is the one that was had.
std::string url_of(const HttpOptions& options, int port);

class Listener {
 public:
  // Binds and listens; throws Error when the address cannot be had. Of a Unix socket a file that a
  // dead server left is replaced; a live server's and any other file are refused.
  explicit Listener(const HttpOptions& options);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }  // 0: a Unix socket

  // Waits for the next connection; non-blocking, not for child processes. -1 after close().
  int accept();
  // New connections are refused, accept() ends and the Unix socket's file is gone. From any thread.
  void close();

 private:
  void bind_tcp(const std::string& host, int port);
  void bind_unix(const std::string& path);

  int fd_ = -1;
  int port_ = 0;
  std::string path_;  // of a Unix socket's file
  dev_t device_ = 0;  // which file it is
  ino_t inode_ = 0;
  std::atomic<bool> is_closed_{false};
};

}  // namespace outrider
