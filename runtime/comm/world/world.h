// The control plane: every rank of the job, as a mailbox. Messages between two ranks arrive whole
// and in order; nothing here ever waits for a peer, so a dead or stopped rank cannot hang its
// sender. Two forms: MPI processes, and threads of one process with the same interface.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/group/target_group.h"
#include "runtime/comm/waiting.h"
#include "runtime/comm/wire.h"

namespace outrider {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host() const = 0;
  // What carries the messages, with its version; for reports.
  virtual std::string library() const { return "threads of one process"; }
  // How many ranks share this host, of ranks [0, num_ranks).
  virtual int num_ranks_here(int num_ranks) const = 0;
  // How many of those were given the same CPUs as this one (mpirun --bind-to).
  virtual int num_ranks_on_these_cpus(int num_ranks) const { return num_ranks_here(num_ranks); }

  // Hands a message over; returns at once. A message to a rank that is gone is lost without an
  // error.
  virtual void post(int to, Bytes message) = 0;
  // The next message from that rank, if one has arrived.
  virtual std::optional<Bytes> poll(int from) = 0;
  // Part of a wait for messages, after poll() gave none: returns at once while backoff is hot,
  // later when one may have come, or when `descriptor` (-1: none) can be read, or after a while.
  virtual void pause_watching(Backoff& backoff, int descriptor) = 0;
  void pause(Backoff& backoff) { pause_watching(backoff, -1); }
  // Bytes posted to that rank that it has not taken yet; grows without end when it is gone.
  virtual size_t num_unsent_bytes(int to) = 0;

  // Ends every rank of the job as fast as can be, this one included. For errors on the round path.
  [[noreturn]] virtual void abort(const std::string& reason) = 0;
  // Throws Error when another rank has called abort or is known to be dead (ranks [0, num_ranks)
  // are looked at). Cheap; called from every wait.
  virtual void check_alive(int num_ranks) = 0;
  // The group of ranks [0, num_ranks), for those of them that call it.
  virtual std::unique_ptr<TargetGroup> make_target_group(int num_ranks) = 0;
  // What this rank is at, for those who lose it.
  virtual void note_round(uint64_t round) { static_cast<void>(round); }
  // Called, on another thread, as soon as a rank is known to be lost, before check_alive() throws;
  // empty = nothing. There is one.
  virtual void when_lost(std::function<void(const std::string& reason)> call) {
    static_cast<void>(call);
  }
  // Ends a rank that does not answer, when it is a process of this host; otherwise does nothing.
  // Without it a stopped process would keep the launcher waiting for ever.
  virtual void end_unresponsive(int rank) = 0;
  // The orderly end of this rank, which is about to return exit_code. Ranks that are gone are
  // waited for no longer than a few seconds.
  virtual void finish(int exit_code) = 0;
};

// Waits for a message: polls hot for a moment, then with short sleeps. Throws Error when the job is
// ending or timeout_s passes (0 = none).
Bytes receive(World& world, int from, int num_watched_ranks, double timeout_s = 0);
// The same where the message is microseconds away, as a rule: hot for that long.
Bytes receive_soon(World& world,
                   int from,
                   int num_watched_ranks,
                   std::chrono::microseconds hot_time = std::chrono::microseconds(200));

// True when this process was started by an MPI launcher.
bool launched_by_mpi();
// Throws Error when a launcher that is none of MPI's started several processes, each of which would
// be a job of its own: srun without PMIx, or another MPI's.
void refuse_foreign_launcher(int world_size);
// How the ranks of a job watch each other (world/watchdog.h).
struct WatchOptions {
  double timeout_s = 0;  // 0: they do not
  int port = 0;          // UDP, of rank 0; the other ranks' follow. 0: any free ones
  // Of a job of that size. All watch the targets; nobody watches the draft.
  struct Roles {
    int num_targets = 0;
    std::vector<std::string> names;  // "target[1/2]"
  };
  std::function<Roles(int world_size)> roles = [](int) { return Roles{}; };
};
// Calls MPI_Init; one per process.
std::unique_ptr<World> make_mpi_world(int* argc, char*** argv, const WatchOptions& watch = {});

// What the messages between threads of one process are made to take, to rehearse a network.
struct InProcessLink {
  std::chrono::microseconds latency{0};
  int only_rank = -1;  // -1: all messages; else those from and to this rank
};

// Runs body once per rank, each on its own thread with its own World; returns when all have
// returned. A rank that ends by an exception ends the others' waits; the first exception is
// rethrown. Under a virtual clock the ranks are its members.
void run_in_process(int num_ranks,
                    const std::function<void(World&)>& body,
                    const InProcessLink& link = {});

}  // namespace outrider
