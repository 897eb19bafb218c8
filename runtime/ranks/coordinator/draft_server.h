// Where drafts outside the job attach: a listening socket on a thread of its own, which reads each
// one's hello, refuses or welcomes it, and hands the connection to the round's thread. Whoever is
// silent, sends garbage or comes in crowds costs this thread's time only.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/message_socket.h"
#include "runtime/comm/tcp.h"
#include "runtime/ranks/coordinator/draft_link.h"
#include "runtime/ranks/messages/draft_hello.h"

namespace outrider {

// What a draft must bring.
struct DraftDemands {
  std::string key;         // empty: none is asked for
  std::string vocabulary;  // vocabulary_digest() of the target
  int32_t num_tokens = 0;  // that its model must have rows for
};

// A connection as a link. A peer that is gone is noticed by TCP (tune_tcp) and closes it.
class TcpDraftLink final : public DraftLink {
 public:
  explicit TcpDraftLink(std::unique_ptr<MessageSocket> socket) : socket_(std::move(socket)) {}
  void post(Bytes frame) override { socket_->post(frame); }
  std::optional<Bytes> poll() override { return socket_->poll(); }
  size_t num_unsent_bytes() override { return socket_->num_unsent_bytes(); }
  bool is_closed() const override { return socket_->closed(); }
  int descriptor() const override { return socket_->descriptor(); }

 private:
  std::unique_ptr<MessageSocket> socket_;
};

class DraftServer {
 public:
  // A draft that was welcomed. It loads its model, then says hello in a frame of this epoch.
  struct Arrival {
    std::unique_ptr<DraftLink> link;
    std::string name;
    uint32_t epoch = 0;
  };

  // listener outlives this.
  DraftServer(const TcpListener& listener, DraftDemands demands, const DraftTerms& terms);
  DraftServer(const DraftServer&) = delete;
  DraftServer& operator=(const DraftServer&) = delete;

  // Who has come since the last call. Cheap when nobody has. The round's thread.
  std::vector<Arrival> take_arrivals();

 private:
  using Clock = std::chrono::steady_clock;
  struct Visitor {
    std::unique_ptr<MessageSocket> socket;
    std::string peer;
    Clock::time_point until;  // then it has said its hello, or read its refusal
    bool is_refused = false;
  };

  void run(const std::stop_token& stop);
  void wait_for_any(const std::vector<Visitor>& visitors) const;
  void let_in(std::vector<Visitor>* visitors) const;
  bool attend(Visitor& visitor);  // false: nothing more to do for it
  std::string refusal_of(const DraftHello& hello) const;
  void welcome(Visitor& visitor, const DraftHello& hello);

  const TcpListener& listener_;
  const DraftDemands demands_;
  const DraftTerms terms_;
  uint32_t last_epoch_ = 0;
  Clock::time_point last_warning_{};
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::atomic<bool> has_arrivals_{false};
  std::jthread thread_;  // last: it uses the others
};

}  // namespace outrider
