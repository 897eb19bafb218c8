// The draft rank under MPI is two processes: a thin rank that only passes messages on, and the
// engine, a child with the model. A process that dies inside MPI's shared memory can take messages
// of the others with it, so the one that may crash, hang or be killed for its memory must not be
// the one that speaks MPI.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/message_socket.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {

// The draft rank's side.
class DraftEngine {
 public:
  // Forks; call before MPI_Init and before any thread is started. The child runs body, which is to
  // report readiness, serve and return; it never comes back from here. draft_rank: this process's
  // in the job, the last one.
  using Body = std::function<void(World& rank)>;
  static std::unique_ptr<DraftEngine> start(int draft_rank, const Body& body);
  ~DraftEngine();  // kills the child if it still lives
  DraftEngine(const DraftEngine&) = delete;
  DraftEngine& operator=(const DraftEngine&) = delete;

  // The engine's next message before it serves; nothing when it has ended. Waits for it.
  std::optional<Bytes> wait_message();
  void send(const Bytes& message) { socket_.post(message); }
  // The engine's last word before it serves: report_ready()'s.
  Readiness wait_report();
  // Of an engine that ended before it served.
  std::string why_not_started() const;
  // Passes messages between the coordinator and the engine until the job is over. Tells the
  // coordinator when the engine is gone.
  void relay(World& world, uint32_t epoch);
  // After that: what the engine still says until it ends, for a few seconds at most.
  void relay_rest(World& world, uint32_t epoch);

 private:
  DraftEngine(pid_t pid, int descriptor);
  bool pass_on(World& world, uint32_t epoch);
  void say_goodbye(World& world, uint32_t epoch);

  const pid_t pid_;
  MessageSocket socket_;
  bool gone_ = false;
  bool engine_said_goodbye_ = false;
  bool stopping_ = false;
};

// What the engine says when it is ready, or why it is not. Its threads are for its rank to say.
void report_ready(World& rank, const Readiness& readiness);

}  // namespace outrider
