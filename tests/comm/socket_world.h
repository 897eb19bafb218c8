// The world as processes of this host that know each other by sockets and a piece of shared memory:
// for tests that want ranks to be processes, and must run where there is no MPI launcher. Who
// starts the processes: processes.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/message_socket.h"
#include "runtime/comm/world/world.h"

namespace outrider::test {

inline constexpr int kMostProcesses = 8;

// At the beginning of the memory that all ranks map; zeros at first.
struct ProcessBoard {
  std::atomic<int32_t> pids[kMostProcesses];
  std::atomic<uint32_t> count;  // of what a test wants to be known by all
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Of that memory: the board, and where the groups of 2 to num_ranks ranks meet.
size_t shared_bytes(int num_ranks);

class SocketWorld final : public World {
 public:
  // sockets: by rank, connected to it; the own one is not looked at. shared: mapped at a multiple
  // of 64, kept for ever.
  SocketWorld(int rank, const std::vector<int>& sockets, std::byte* shared);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string host() const override { return "this host"; }
  std::string library() const override { return "processes of one host"; }
  int num_ranks_here(int num_ranks) const override { return num_ranks; }

  void post(int to, Bytes message) override;
  std::optional<Bytes> poll(int from) override;
  void pause_watching(Backoff& backoff, int descriptor) override;
  size_t num_unsent_bytes(int to) override;

  // Exit code 70.
  [[noreturn]] void abort(const std::string& reason) override;
  // A rank whose socket is closed, and that had not said goodbye, is dead.
  void check_alive(int num_ranks) override;
  std::unique_ptr<TargetGroup> make_target_group(int num_ranks) override;
  void end_unresponsive(int rank) override;
  void finish(int exit_code) override;

  ProcessBoard& board() { return *reinterpret_cast<ProcessBoard*>(shared_); }

 private:
  enum class Kind : uint8_t { kMessage, kAbort, kGoodbye };
  struct Peer {
    std::unique_ptr<MessageSocket> socket;  // null: this rank
    std::deque<Bytes> messages;
    bool has_said_goodbye = false;
  };
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void send(int to, Kind kind, const Bytes& bytes);
  void take_in(Peer& from);
  bool is_settled(Peer& of);

  const int rank_;
  std::byte* const shared_;
  std::vector<Peer> peers_;
  std::string abort_reason_;  // another rank's
};

}  // namespace outrider::test
