// See keeper.h.
#include "runtime/ranks/draft/keeper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"

namespace outrider {
namespace {

constexpr double kReapS = 0.5;
constexpr double kEndS = 2.0;

struct Order {
  enum What : uint32_t { kStart, kEnd, kKill } what;
  uint32_t epoch;
};

// With the descriptor of an engine that was started beside it.
struct Answer {
  pid_t pid;
  int status;  // waitpid's, of an engine that ended
};

void post_answer(int control, const Answer& answer, int descriptor) {
  Answer bytes = answer;
  iovec piece{&bytes, sizeof(bytes)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
  }
  sendmsg(control, &message, MSG_NOSIGNAL);
}

std::string end_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with code {}", WEXITSTATUS(status));
}

// A child dies with its parent, also when that is gone before this is set.
void die_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

// The keeper's own process.
class Keeper {
 public:
  Keeper(int control, const DraftKeeper::Body& body) : control_(control), body_(body) {}

  [[noreturn]] void run() {
    Order order{};
    while (true) {
      const ssize_t size = recv(control_, &order, sizeof(order), 0);
      if (size < 0 && errno == EINTR) continue;
      if (size != sizeof(order)) break;
      if (order.what == Order::kStart) {
        start(order.epoch);
      } else {
        post_answer(control_, {engine_, end(order.what == Order::kKill)}, -1);
      }
    }
    end(true);
    _exit(0);
  }

 private:
  void start(uint32_t epoch) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return post_answer(control_, {-1, 0}, -1);
    const pid_t keeper = getpid();
    engine_ = fork();
    if (engine_ == 0) {
      close(control_);
      close(ends[0]);
      die_with(keeper);
      live(ends[1], epoch);
    }
    close(ends[1]);
    post_answer(control_, {engine_, 0}, engine_ > 0 ? ends[0] : -1);
    close(ends[0]);
  }

  [[noreturn]] void live(int descriptor, uint32_t epoch) {
    try {
      body_(descriptor, epoch);
    } catch (const std::exception& error) {
      log_error("the draft engine stopped: {}", error.what());
      _exit(1);
    }
    _exit(0);
  }

  // An engine's socket closes a moment before it can be waited for.
  int end(bool at_once) {
    int status = 0;
    if (engine_ <= 0) return status;
    if (at_once) kill(engine_, SIGKILL);
    Backoff backoff;
    while (waitpid(engine_, &status, at_once ? 0 : WNOHANG) == 0) {
      at_once = backoff.waited_s() > kReapS;
      if (at_once) kill(engine_, SIGKILL);
      if (!at_once) backoff.pause();
    }
    engine_ = -1;
    return status;
  }

  const int control_;
  const DraftKeeper::Body& body_;
  pid_t engine_ = -1;
};

}  // namespace

DraftKeeper::DraftKeeper(const Body& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error("no socket pair for the draft engine's keeper");
  const pid_t rank = getpid();
  pid_ = fork();
  if (pid_ < 0) throw Error("no process for the draft engine's keeper");
  if (pid_ == 0) {
    close(ends[0]);
    die_with(rank);
    Keeper(ends[1], body).run();
  }
  close(ends[1]);
  control_ = ends[0];
}

DraftKeeper::~DraftKeeper() {
  close(control_);
  Backoff backoff;
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (backoff.waited_s() > kEndS) {  // stopped, maybe: its engine dies with it
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      return;
    }
    backoff.pause();
  }
}

void DraftKeeper::start(uint32_t epoch) {
  const Order order{Order::kStart, epoch};
  send(control_, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void DraftKeeper::end(bool at_once) {
  const Order order{at_once ? Order::kKill : Order::kEnd, 0};
  send(control_, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<DraftKeeper::News> DraftKeeper::poll() {
  Answer answer{};
  iovec piece{&answer, sizeof(answer)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  const ssize_t size = recvmsg(control_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (size != sizeof(answer)) {
    is_gone_ = true;
    return std::nullopt;
  }
  News news{.pid = answer.pid, .descriptor = -1, .end = end_of(answer.status)};
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_type == SCM_RIGHTS)
    std::memcpy(&news.descriptor, CMSG_DATA(head), sizeof(int));
  return news;
}

std::optional<DraftKeeper::News> DraftKeeper::wait(double timeout_s) {
  for (Backoff backoff; !is_gone_ && backoff.waited_s() < timeout_s; backoff.pause()) {
    if (auto news = poll()) return news;
  }
  return std::nullopt;
}

}  // namespace outrider
