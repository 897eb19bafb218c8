// The draft rank under MPI is a thin rank that only passes messages on, and its engine, another
// process with the model. A process that dies inside MPI's shared memory can take messages of the
// others with it, so the one that may crash, hang or be killed for its memory must not be the one
// that speaks MPI. An engine that has ended, or that is silent for too long, is started again: a
// new life with a new epoch, which the coordinator learns of by a hello. Used by the draft rank's
// thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/comm/message_socket.h"
#include "runtime/comm/world/world.h"
#include "runtime/ranks/draft/keeper.h"
#include "runtime/ranks/draft/restarts.h"
#include "runtime/ranks/startup/ready_barrier.h"

namespace outrider {

// Of the draft rank's first life, which the ready barrier announces.
inline constexpr uint32_t kFirstDraftEpoch = 1;

class DraftEngine {
 public:
  // Call before MPI_Init and before any thread is started. The engine runs body, which is to say
  // what GPU it has, then whether it is ready, serve and return. draft_rank: this process's in the
  // job, the last one.
  using Body = std::function<void(World& rank, uint32_t epoch)>;
  static std::unique_ptr<DraftEngine> start(int draft_rank, const Body& body);
  DraftEngine(const DraftEngine&) = delete;
  DraftEngine& operator=(const DraftEngine&) = delete;

  // Of the first life, before it serves: its next message; nothing when it has ended. Waits for it.
  std::optional<Bytes> wait_message();
  void send(const Bytes& message);
  // The engine's last word before it serves: report_ready()'s.
  Readiness wait_report();
  // Of an engine that ended before it served.
  std::string why_not_started();

  // Passes messages between the coordinator and the engine until the job is over, and starts the
  // engine again whenever it is gone. device_answer: what the engine was told of its GPU; later
  // lives are told the same.
  void relay(World& world, const Bytes& device_answer);
  // After that: what the engine still says until it ends, for a few seconds at most.
  void relay_rest(World& world);

 private:
  // | state     | means                                        | left by                          |
  // | kStarting | the keeper was asked for an engine           | the keeper's answer              |
  // | kMeeting  | the engine loads its model                   | its report; its end              |
  // | kServing  | messages are passed on                       | its end, or too long a silence   |
  // | kEnding   | the keeper was asked how it ended            | the keeper's answer              |
  // | kResting  | before the next life                         | the time                         |
  // | kLost     | the keeper is gone: no life any more         |                                  |
  enum class State : uint8_t { kStarting, kMeeting, kServing, kEnding, kResting, kLost };
  using Clock = JobClock;

  explicit DraftEngine(const DraftKeeper::Body& body);
  bool hear_coordinator(World& world);
  bool hear_engine(World& world, const Bytes& device_answer);
  void meet(World& world, const Bytes& message, const Bytes& device_answer);
  void follow_keeper();
  void watch(World& world);
  void begin_life(const DraftKeeper::News& news);
  void end_life(World& world, const std::string& why);
  int descriptor() const;

  DraftKeeper keeper_;
  std::optional<MessageSocket> socket_;  // of the engine, while it has one
  pid_t pid_ = -1;
  State state_ = State::kStarting;
  uint32_t epoch_ = kFirstDraftEpoch;
  RestartTimes restarts_;
  double rest_s_ = 0;  // before the next life
  HangWatch hang_watch_;
  Clock::time_point since_ = Clock::now();  // of the state
  int num_met_ = 0;                         // messages before it serves
  bool stopping_ = false;
  uint32_t stop_epoch_ = 0;  // that the coordinator said it with
  bool engine_said_goodbye_ = false;
};

// What the engine says when it is ready, or why it is not. Its threads are for its rank to say.
void report_ready(World& rank, const Readiness& readiness);

}  // namespace outrider
