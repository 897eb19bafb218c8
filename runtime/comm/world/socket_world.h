// The world of a draft that is no rank of MPI's: itself and, at the other end of a stream socket,
// who passes its messages on to the coordinator. Of the draft's engine (a socket pair) and of
// `outrider draft` (TCP); used by the one thread that serves.
#pragma once

#include <functional>
#include <string>

#include "runtime/comm/message_socket.h"
#include "runtime/comm/world/world.h"

namespace outrider {

class SocketWorld final : public World {
 public:
  struct Place {
    int draft_rank = 1;        // in the job: its last
    int num_targets_here = 0;  // that share this host
    std::string peer;          // for errors: "the draft rank"
    // Asked with every look for messages: true ends what runs with an Error. May be empty.
    std::function<bool()> is_over = {};
  };
  SocketWorld(int descriptor, Place place);  // takes the descriptor over

  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::string host() const override { return "this host"; }
  int num_ranks_here(int num_ranks) const override;
  void post(int to, Bytes message) override;
  std::optional<Bytes> poll(int from) override;
  void pause_watching(Backoff& backoff, int descriptor) override;
  size_t num_unsent_bytes(int) override { return socket_.num_unsent_bytes(); }
  [[noreturn]] void abort(const std::string& reason) override;
  void check_alive(int num_ranks) override;
  std::unique_ptr<TargetGroup> make_target_group(int) override { return make_solo_group(); }
  void end_unresponsive(int) override {}
  void finish(int exit_code) override;

 private:
  MessageSocket socket_;
  const Place place_;
};

}  // namespace outrider
