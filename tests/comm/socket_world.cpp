// See socket_world.h.
#include "tests/comm/socket_world.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/group/arena_group.h"

namespace outrider::test {
namespace {

constexpr int kExitAborted = 70;
constexpr size_t kBoardBytes = 4096;
constexpr double kGoodbyeS = 2.0;
constexpr double kLastWordsS = 0.2;

size_t arena_offset(int num_ranks) {
  size_t offset = kBoardBytes;
  for (int n = 2; n < num_ranks; ++n) offset += (arena_bytes(n) + 63) / 64 * 64;
  return offset;
}

}  // namespace

size_t shared_bytes(int num_ranks) { return arena_offset(num_ranks + 1); }

SocketWorld::SocketWorld(int rank, const std::vector<int>& sockets, std::byte* shared)
    : rank_(rank), shared_(shared), peers_(sockets.size()) {
  static_assert(sizeof(ProcessBoard) <= kBoardBytes);
  OUTRIDER_CHECK(size() <= kMostProcesses);
  for (int r = 0; r < size(); ++r) {
    if (r != rank)
      peer(r).socket = std::make_unique<MessageSocket>(sockets[static_cast<size_t>(r)]);
  }
  board().pids[rank].store(getpid());
}

void SocketWorld::send(int to, Kind kind, const Bytes& bytes) {
  Bytes whole(1 + bytes.size(), static_cast<std::byte>(kind));
  std::copy(bytes.begin(), bytes.end(), whole.begin() + 1);
  peer(to).socket->post(whole);
}

void SocketWorld::take_in(Peer& from) {
  if (from.socket == nullptr) return;
  while (auto whole = from.socket->poll()) {
    const auto kind = static_cast<Kind>(whole->front());
    whole->erase(whole->begin());
    if (kind == Kind::kMessage) from.messages.push_back(std::move(*whole));
    if (kind == Kind::kGoodbye) from.has_said_goodbye = true;
    if (kind == Kind::kAbort) {
      abort_reason_.assign(reinterpret_cast<const char*>(whole->data()), whole->size());
    }
  }
}

void SocketWorld::post(int to, Bytes message) {
  if (to == rank_) {
    peer(to).messages.push_back(std::move(message));
  } else {
    send(to, Kind::kMessage, message);
  }
}

std::optional<Bytes> SocketWorld::poll(int from) {
  Peer& sender = peer(from);
  take_in(sender);
  if (sender.messages.empty()) return std::nullopt;
  Bytes message = std::move(sender.messages.front());
  sender.messages.pop_front();
  return message;
}

void SocketWorld::pause_watching(Backoff& backoff, int descriptor) {
  backoff.pause([&](std::chrono::microseconds time, std::chrono::microseconds most) {
    std::vector<pollfd> watched;
    if (descriptor >= 0) watched.push_back({descriptor, POLLIN, 0});
    bool is_sending = false;
    for (const Peer& other : peers_) {
      if (other.socket == nullptr || other.socket->closed()) continue;
      is_sending = is_sending || other.socket->num_unsent_bytes() > 0;
      watched.push_back({other.socket->descriptor(), POLLIN, 0});
    }
    const auto wait = std::chrono::nanoseconds(is_sending ? time : most);
    const timespec limit = {.tv_sec = 0, .tv_nsec = wait.count()};
    ppoll(watched.data(), watched.size(), &limit, nullptr);
  });
}

size_t SocketWorld::num_unsent_bytes(int to) {
  take_in(peer(to));
  return to == rank_ ? 0 : peer(to).socket->num_unsent_bytes();
}

// Nothing is left to be sent, or nobody is there to take it.
bool SocketWorld::is_settled(Peer& of) {
  take_in(of);
  return of.socket == nullptr || of.socket->closed() || of.socket->num_unsent_bytes() == 0;
}

void SocketWorld::abort(const std::string& reason) {
  log_error("{}", reason);
  if (abort_reason_.empty()) {
    const std::string text = fmt::format("rank {} ended the job: {}", rank_, reason);
    const auto* const from = reinterpret_cast<const std::byte*>(text.data());
    for (int to = 0; to < size(); ++to) {
      if (to != rank_) send(to, Kind::kAbort, Bytes(from, from + text.size()));
    }
    for (Backoff backoff; backoff.waited_s() < kLastWordsS; backoff.pause()) {
      if (std::ranges::all_of(peers_, [this](Peer& other) { return is_settled(other); })) break;
    }
  }
  _exit(kExitAborted);
}

void SocketWorld::check_alive(int num_ranks) {
  for (Peer& other : peers_) take_in(other);
  if (!abort_reason_.empty()) throw Error(abort_reason_);
  for (int r = 0; r < num_ranks; ++r) {
    const Peer& other = peer(r);
    if (other.socket == nullptr || !other.socket->closed() || other.has_said_goodbye) continue;
    throw Error(fmt::format("rank {} (process {}) is gone", r, board().pids[r].load()));
  }
}

std::unique_ptr<TargetGroup> SocketWorld::make_target_group(int num_ranks) {
  OUTRIDER_CHECK(rank_ < num_ranks && num_ranks <= size());
  if (num_ranks == 1) return make_solo_group();
  const int num_cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return make_arena_group({.rank = rank_,
                           .size = num_ranks,
                           .memory = shared_ + arena_offset(num_ranks),
                           .hot_time = hot_time_for(num_ranks, num_cores),
                           .check_alive = [this, num_ranks] { check_alive(num_ranks); }});
}

void SocketWorld::end_unresponsive(int rank) {
  if (const int32_t pid = board().pids[rank].load(); pid > 0) kill(pid, SIGKILL);
}

// Who closes its sockets before the others know that it may would be taken for dead.
void SocketWorld::finish(int) {
  for (int to = 0; to < size(); ++to) {
    if (to != rank_) send(to, Kind::kGoodbye, {});
  }
  const auto is_over = [this](Peer& other) {
    return is_settled(other) &&
           (other.socket == nullptr || other.has_said_goodbye || other.socket->closed());
  };
  for (Backoff backoff; backoff.waited_s() < kGoodbyeS; pause(backoff)) {
    if (std::ranges::all_of(peers_, is_over)) return;
  }
}

}  // namespace outrider::test
