// What the bytes of a connection go through: its socket as it is, or TLS over it. No call blocks.
// The context is made at start and read by all connections; the rest is the connection's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace outrider {

class Transport {
 public:
  enum class Outcome : uint8_t {
    kDone,
    kNeedsReadable,  // again when the socket is readable
    kNeedsWritable,
    kEnded,   // the peer has closed, or an error
    kNotTls,  // of begin(): what came are the bytes of plain HTTP
  };
  struct Result {
    Outcome outcome = Outcome::kDone;
    size_t num_bytes = 0;
  };

  virtual ~Transport() = default;
  // The handshake; called until it is done.
  virtual Outcome begin() = 0;
  virtual Result read(char* to, size_t most) = 0;
  virtual Result write(std::string_view bytes) = 0;
  // Bytes that have left the socket and wait for read().
  virtual bool has_unread() const = 0;
  // Tells the peer that nothing follows.
  virtual void end_output() = 0;
};

// The socket is non-blocking and stays the caller's.
std::unique_ptr<Transport> plain_transport(int fd);

class TlsContext {
 public:
  // PEM files: the certificate with its chain, and its private key, which may be in the same file.
  // Throws Error that says which option's file is wrong, and why.
  TlsContext(const std::string& certfile, const std::string& keyfile);

  // The server's end of a new connection.
  std::unique_ptr<Transport> accept(int fd) const;

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace outrider
