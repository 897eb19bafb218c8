// See transport.h. The only file that knows OpenSSL.
#include "http/wire/transport.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>

#include "runtime/base/error.h"
#include "runtime/base/files/files.h"

namespace outrider {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;

bool is_reason(unsigned long error, int library, int reason) {
  return ERR_GET_LIB(error) == library && ERR_GET_REASON(error) == reason;
}

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  Outcome begin() override { return Outcome::kDone; }
  Result read(char* to, size_t most) override {
    return result_of(::recv(fd_, to, most, MSG_DONTWAIT), Outcome::kNeedsReadable);
  }
  Result write(std::string_view bytes) override {
    return result_of(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT),
                     Outcome::kNeedsWritable);
  }
  bool has_unread() const override { return false; }
  void end_output() override { ::shutdown(fd_, SHUT_WR); }

 private:
  static Result result_of(ssize_t num_bytes, Outcome when_blocked) {
    if (num_bytes > 0) return {Outcome::kDone, static_cast<size_t>(num_bytes)};
    const bool is_blocked =
        num_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return {is_blocked ? when_blocked : Outcome::kEnded, 0};
  }

  int fd_;
};

// OpenSSL keeps a thread's errors in a queue; before each call it must be empty.
class TlsTransport : public Transport {
 public:
  TlsTransport(int fd, SSL_CTX* context) : fd_(fd), ssl_(SSL_new(context)) {
    if (ssl_ == nullptr || SSL_set_fd(ssl_, fd) != 1) throw Error("no memory for a TLS connection");
    SSL_set_accept_state(ssl_);
  }
  ~TlsTransport() override {
    say_end();
    SSL_free(ssl_);
  }
  TlsTransport(const TlsTransport&) = delete;
  TlsTransport& operator=(const TlsTransport&) = delete;

  Outcome begin() override {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl_);
    if (done == 1) return Outcome::kDone;
    const bool is_http = is_reason(ERR_peek_error(), ERR_LIB_SSL, SSL_R_HTTP_REQUEST);
    const Outcome outcome = failure(done).outcome;
    return is_http ? Outcome::kNotTls : outcome;
  }
  Result read(char* to, size_t most) override {
    ERR_clear_error();
    size_t num_bytes = 0;
    const int done = SSL_read_ex(ssl_, to, most, &num_bytes);
    return done == 1 ? Result{Outcome::kDone, num_bytes} : failure(done);
  }
  Result write(std::string_view bytes) override {
    ERR_clear_error();
    size_t num_bytes = 0;
    const int done = SSL_write_ex(ssl_, bytes.data(), bytes.size(), &num_bytes);
    return done == 1 ? Result{Outcome::kDone, num_bytes} : failure(done);
  }
  bool has_unread() const override { return SSL_pending(ssl_) > 0; }
  void end_output() override {
    say_end();
    ::shutdown(fd_, SHUT_WR);
  }

 private:
  Result failure(int done) {
    switch (SSL_get_error(ssl_, done)) {
      case SSL_ERROR_WANT_READ:
        return {Outcome::kNeedsReadable, 0};
      case SSL_ERROR_WANT_WRITE:
        return {Outcome::kNeedsWritable, 0};
      case SSL_ERROR_ZERO_RETURN:  // the peer's side alone
        return {Outcome::kEnded, 0};
      default:
        is_broken_ = true;
        return {Outcome::kEnded, 0};
    }
  }
  // Without it a peer must take the end of a stream for a cut.
  void say_end() {
    if (is_broken_ || SSL_in_init(ssl_)) return;
    ERR_clear_error();
    SSL_shutdown(ssl_);
  }

  int fd_;
  SSL* ssl_;
  bool is_broken_ = false;
};

std::string last_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  return reason == nullptr ? "unknown error" : reason;
}

// Instead of OpenSSL's own, which would ask the terminal.
int refuse_password(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

void load_certificate(SSL_CTX* context, const std::string& certfile) {
  read_text_file(certfile, kMaxPemBytes);  // says why it cannot be read
  if (SSL_CTX_use_certificate_chain_file(context, certfile.c_str()) != 1)
    throw Error(fmt::format(
        "ssl_certfile {}: holds no usable certificate in PEM format: {}", certfile, last_reason()));
}

void load_key(SSL_CTX* context, const std::string& keyfile, const std::string& certfile) {
  read_text_file(keyfile, kMaxPemBytes);
  bool is_encrypted = false;
  SSL_CTX_set_default_passwd_cb(context, refuse_password);
  SSL_CTX_set_default_passwd_cb_userdata(context, &is_encrypted);
  const bool is_loaded =
      SSL_CTX_use_PrivateKey_file(context, keyfile.c_str(), SSL_FILETYPE_PEM) == 1;
  SSL_CTX_set_default_passwd_cb_userdata(context, nullptr);
  if (is_encrypted)
    throw Error(
        fmt::format("ssl_keyfile {}: has a password; openssl pkey writes a key without", keyfile));
  const unsigned long error = ERR_peek_last_error();
  const bool is_other = is_reason(error, ERR_LIB_X509, X509_R_KEY_VALUES_MISMATCH) ||
                        is_reason(error, ERR_LIB_X509, X509_R_KEY_TYPE_MISMATCH);
  if (!is_loaded && !is_other)
    throw Error(fmt::format(
        "ssl_keyfile {}: holds no private key in PEM format: {}", keyfile, last_reason()));
  if (!is_loaded || SSL_CTX_check_private_key(context) != 1)
    throw Error(
        fmt::format("ssl_keyfile {}: is not the key of the certificate {}", keyfile, certfile));
}

}  // namespace

std::unique_ptr<Transport> plain_transport(int fd) { return std::make_unique<PlainTransport>(fd); }

TlsContext::TlsContext(const std::string& certfile, const std::string& keyfile)
    : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
  if (certfile.empty()) throw Error("ssl_keyfile: needs ssl_certfile too");
  ERR_clear_error();
  SSL_CTX* context = context_.get();
  if (context == nullptr) throw Error("TLS cannot be had: " + last_reason());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Idle connections hold no buffers.
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                       SSL_MODE_RELEASE_BUFFERS);
  load_certificate(context, certfile);
  load_key(context, keyfile.empty() ? certfile : keyfile, certfile);
}

std::unique_ptr<Transport> TlsContext::accept(int fd) const {
  return std::make_unique<TlsTransport>(fd, context_.get());
}

}  // namespace outrider
