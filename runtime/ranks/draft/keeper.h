// The parent of the draft's engines: a small process, forked from the draft rank before MPI_Init,
// that forks an engine for each life of the draft and hands its socket over. A rank that has begun
// MPI, with its threads and shared memory, must not fork a process that goes on to compute; this
// one has neither MPI nor GPU nor threads. Used by the draft rank's thread (engine.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace outrider {

class DraftKeeper {
 public:
  // In the engine's process, which ends with it: an exception is logged and ends it with code 1.
  // descriptor: its end of the socket.
  using Body = std::function<void(int descriptor, uint32_t epoch)>;

  // Forks. Call before MPI_Init and before any thread is started.
  explicit DraftKeeper(const Body& body);
  ~DraftKeeper();  // ends the engine, too
  DraftKeeper(const DraftKeeper&) = delete;
  DraftKeeper& operator=(const DraftKeeper&) = delete;

  // Orders, carried out in turn; none waits. One engine lives at a time: end() comes before the
  // next start(). It kills the engine, at once or when it has not ended by itself in a moment.
  void start(uint32_t epoch);
  void end(bool at_once);

  // Of start(): a descriptor, or -1 where no process could be made; of end(): how it ended.
  struct News {
    pid_t pid = -1;
    int descriptor = -1;
    std::string end;
  };
  std::optional<News> poll();
  std::optional<News> wait(double timeout_s);
  bool is_gone() const { return is_gone_; }
  int descriptor() const { return control_; }  // readable when there are news

 private:
  pid_t pid_ = -1;
  int control_ = -1;
  bool is_gone_ = false;
};

}  // namespace outrider
