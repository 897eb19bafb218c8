// See socket_world.h.
#include "runtime/comm/world/socket_world.h"

#include <algorithm>
#include <utility>

#include "runtime/comm/world/wake_up.h"

namespace outrider {
namespace {

constexpr double kGoodbyeS = 1.0;

}  // namespace

SocketWorld::SocketWorld(int descriptor, Place place)
    : socket_(descriptor), place_(std::move(place)) {}

int SocketWorld::num_ranks_here(int num_ranks) const {
  return std::min(num_ranks, place_.num_targets_here) + (num_ranks > place_.draft_rank ? 1 : 0);
}

void SocketWorld::post(int, Bytes message) { socket_.post(message); }

std::optional<Bytes> SocketWorld::poll(int) {
  if (place_.is_over && place_.is_over()) throw Error("it was asked to stop");
  return socket_.poll();
}

void SocketWorld::pause_watching(Backoff& backoff, int) {
  backoff.pause([&](std::chrono::microseconds time, std::chrono::microseconds most) {
    const bool is_sending = socket_.num_unsent_bytes() > 0;
    wait_readable(socket_.descriptor(), is_sending ? time : most);
  });
}

void SocketWorld::abort(const std::string& reason) { throw Error(reason); }

void SocketWorld::check_alive(int) {
  if (socket_.closed()) throw Error(place_.peer + " is gone");
}

void SocketWorld::finish(int) {
  Backoff backoff;
  while (socket_.num_unsent_bytes() > 0 && !socket_.closed() && backoff.waited_s() < kGoodbyeS) {
    socket_.poll();
    backoff.pause();
  }
}

}  // namespace outrider
