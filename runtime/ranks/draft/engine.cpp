// See engine.h.
#include "runtime/ranks/draft/engine.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"
#include "runtime/comm/world/wake_up.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr double kGoodbyeS = 1.0;
constexpr double kReapS = 0.5;
constexpr double kRestS = 3.0;
constexpr size_t kMaxUnsentBytes = 16 << 20;

// The engine's view of the world: itself and the coordinator, at the other end of the socket.
class EngineWorld final : public World {
 public:
  EngineWorld(int descriptor, int draft_rank) : socket_(descriptor), draft_rank_(draft_rank) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::string host() const override { return "this host"; }
  // Before MPI_Init only the launcher's word is known: how many ranks share this host, the draft's
  // included.
  int num_ranks_here(int num_ranks) const override {
    const char* local_size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (local_size == nullptr) return num_ranks;
    return std::min(num_ranks, std::atoi(local_size) - 1) + (num_ranks > draft_rank_ ? 1 : 0);
  }
  void post(int, Bytes message) override { socket_.post(message); }
  std::optional<Bytes> poll(int) override { return socket_.poll(); }
  void pause_watching(Backoff& backoff, int) override {
    backoff.pause([&](std::chrono::microseconds time, std::chrono::microseconds most) {
      const bool is_sending = socket_.num_unsent_bytes() > 0;
      wait_readable(socket_.descriptor(), is_sending ? time : most);
    });
  }
  size_t num_unsent_bytes(int) override { return socket_.num_unsent_bytes(); }
  [[noreturn]] void abort(const std::string& reason) override { throw Error(reason); }
  void check_alive(int) override {
    if (socket_.closed()) throw Error("the draft rank is gone");
  }
  std::unique_ptr<TargetGroup> make_target_group(int) override { return make_solo_group(); }
  void end_unresponsive(int) override {}
  void finish(int) override {
    Backoff backoff;
    while (socket_.num_unsent_bytes() > 0 && !socket_.closed() && backoff.waited_s() < kGoodbyeS) {
      socket_.poll();
      backoff.pause();
    }
  }

 private:
  MessageSocket socket_;
  int draft_rank_;  // the job's last
};

std::string end_of_process(pid_t pid) {
  int status = 0;
  // Its socket closes a moment before it can be waited for.
  Backoff backoff;
  while (waitpid(pid, &status, WNOHANG) != pid) {
    if (backoff.waited_s() > kReapS) return "closed its connection";
    backoff.pause();
  }
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with code {}", WEXITSTATUS(status));
}

// Of the frames that end something, which are short; a long one is passed on without a look.
FrameKind kind_of(const Bytes& bytes, uint32_t epoch) {
  constexpr size_t kMostBytes = 64;
  Frame frame;
  if (bytes.size() > kMostBytes) return FrameKind::kAlive;
  return decode_frame(bytes, epoch, &frame) ? frame.kind : FrameKind::kAlive;
}

}  // namespace

std::unique_ptr<DraftEngine> DraftEngine::start(int draft_rank, const Body& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
    throw Error("no socket pair for the draft engine");
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw Error("no process for the draft engine");
  if (pid > 0) {
    close(ends[1]);
    return std::unique_ptr<DraftEngine>(new DraftEngine(pid, ends[0]));
  }
  close(ends[0]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the chain above
  int code = 0;
  try {
    EngineWorld world(ends[1], draft_rank);
    body(world);
    world.finish(0);
  } catch (const std::exception& error) {
    log_error("the draft engine stopped: {}", error.what());
    code = 1;
  }
  _exit(code);
}

DraftEngine::DraftEngine(pid_t pid, int descriptor) : pid_(pid), socket_(descriptor) {}

DraftEngine::~DraftEngine() {
  if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::optional<Bytes> DraftEngine::wait_message() {
  Backoff backoff;
  while (true) {
    if (auto message = socket_.poll()) return message;
    if (socket_.closed()) return std::nullopt;
    backoff.pause();
  }
}

Readiness DraftEngine::wait_report() {
  const auto message = wait_message();
  if (!message) return {.problem = why_not_started()};
  WireReader in(*message);
  Readiness readiness{.problem = in.get_string()};
  readiness.translates = in.get_bool();
  return readiness;
}

std::string DraftEngine::why_not_started() const {
  return "the draft engine " + end_of_process(pid_) + " while it started";
}

void DraftEngine::relay(World& world, uint32_t epoch) {
  // Bell and socket wake it, so it never polls: it shares its core with those that compute.
  constexpr std::chrono::microseconds kNotHot{0};
  Backoff idle(kNotHot);
  Backoff since_stop;
  while (true) {
    const bool was_stopping = stopping_;
    if (pass_on(world, epoch)) idle = Backoff(kNotHot);
    if (stopping_ && !was_stopping) since_stop = Backoff();
    if (engine_said_goodbye_) return;
    if (stopping_ && (gone_ || since_stop.waited_s() > kGoodbyeS)) return say_goodbye(world, epoch);
    if (idle.should_check()) world.check_alive(1);
    if (socket_.num_unsent_bytes() > 0) {
      idle.pause();  // no bell rings when the engine has made room
    } else {
      world.pause_watching(idle, gone_ ? -1 : socket_.descriptor());
    }
  }
}

void DraftEngine::relay_rest(World& world, uint32_t epoch) {
  for (Backoff backoff; !socket_.closed() && backoff.waited_s() < kRestS; backoff.pause()) {
    pass_on(world, epoch);
  }
}

// One look in both directions; true when anything moved.
bool DraftEngine::pass_on(World& world, uint32_t epoch) {
  bool moved = false;
  while (auto bytes = world.poll(0)) {
    moved = true;
    stopping_ = stopping_ || kind_of(*bytes, epoch) == FrameKind::kShutdown;
    if (socket_.num_unsent_bytes() < kMaxUnsentBytes) socket_.post(*bytes);
  }
  while (auto bytes = socket_.poll()) {
    moved = true;
    engine_said_goodbye_ = engine_said_goodbye_ || kind_of(*bytes, epoch) == FrameKind::kShutdown;
    world.post(0, std::move(*bytes));
  }
  if (socket_.closed() && !gone_ && !engine_said_goodbye_) {
    gone_ = true;
    world.post(0, encode_frame({.kind = FrameKind::kGone, .epoch = epoch, .payload = {}}));
    log_warning("the draft engine (process {}) {}", pid_, end_of_process(pid_));
  }
  return moved;
}

// For an engine that cannot any more.
void DraftEngine::say_goodbye(World& world, uint32_t epoch) {
  world.post(0, encode_frame({.kind = FrameKind::kShutdown, .epoch = epoch, .payload = {}}));
}

void report_ready(World& rank, const Readiness& readiness) {
  WireWriter out;
  out.put_string(readiness.problem);
  out.put_bool(readiness.translates);
  rank.post(0, out.take());
}

}  // namespace outrider
