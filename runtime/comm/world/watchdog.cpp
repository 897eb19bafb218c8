// See watchdog.h.
#include "runtime/comm/world/watchdog.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>

#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr int kIntervalsPerTimeout = 10;
// A rank that falls silent right after a datagram is given up within the timeout, a late look
// included.
constexpr int kIntervalsOfSilence = 8;
constexpr int kTimesLonger = 12;
// Without an answer for so long, all of a rank's addresses are tried again.
constexpr int kIntervalsOfTrust = 3;
// A stranger's flood of datagrams keeps no rank from its own.
constexpr int kMostDatagramsPerLook = 1024;

sockaddr_in address_of(uint32_t host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = host;
  address.sin_port = htons(port);
  return address;
}

// "10.0.0.0/8" holds the address.
bool is_in_network(std::string_view network, uint32_t address) {
  const size_t slash = network.find('/');
  if (slash == std::string_view::npos) return false;
  in_addr base{};
  if (inet_pton(AF_INET, std::string(network.substr(0, slash)).c_str(), &base) != 1) return false;
  const int num_bits = std::clamp(std::atoi(std::string(network.substr(slash + 1)).c_str()), 0, 32);
  const uint32_t mask = num_bits == 0 ? 0 : ~uint32_t{0} << (32 - num_bits);
  return ((ntohl(base.s_addr) ^ ntohl(address)) & mask) == 0;
}

bool is_included(std::string_view list, std::string_view name, uint32_t address) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view entry = list.substr(0, comma);
    if (entry == name || is_in_network(entry, address)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

}  // namespace

std::vector<uint32_t> host_addresses(const std::string& included) {
  std::vector<uint32_t> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    const uint32_t address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
    if (!included.empty() && !is_included(included, one->ifa_name, address)) continue;
    if (addresses.size() < WatchdogContact{}.addresses.size()) addresses.push_back(address);
  }
  freeifaddrs(all);
  return addresses;
}

Silence::Silence(size_t num_ranks, Duration interval, Time now)
    : interval_(interval), last_look_(now), ranks_(num_ranks) {}

void Silence::look(Time now) {
  const Duration passed = std::clamp<Duration>(now - last_look_, Duration{0}, 2 * interval_);
  last_look_ = now;
  for (Rank& rank : ranks_) rank.silent += passed;
}

void Silence::heard(size_t rank) { ranks_[rank] = {.silent = Duration{0}, .was_heard = true}; }

// As all ranks of a job are of one program, in its own byte order; no gaps.
struct Watchdog::Datagram {
  std::array<uint64_t, 2> job{};
  uint64_t round = 0;
  int32_t rank = -1;
  int32_t is_leaving = 0;
  LostRank lost;
};

Watchdog::Watchdog(std::chrono::milliseconds timeout, int port, bool only_here)
    : interval_(std::max(timeout / kIntervalsPerTimeout, std::chrono::milliseconds(1))),
      only_here_(only_here) {
  std::random_device random;
  for (uint64_t& word : contact_.job) word = uint64_t{random()} << 32 | random();
  socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const uint32_t host = htonl(only_here ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in address = address_of(host, static_cast<uint16_t>(port));
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (socket_ < 0 || wake_ < 0 || bind(socket_, any, size) != 0 ||
      getsockname(socket_, any, &size) != 0) {
    problem_ = fmt::format("UDP port {}: {}", port, std::strerror(errno));
    return;
  }
  contact_.port = ntohs(address.sin_port);
  if (only_here) return;
  const char* included = std::getenv("OMPI_MCA_btl_tcp_if_include");
  for (const uint32_t one : host_addresses(included != nullptr ? included : ""))
    contact_.addresses[contact_.num_addresses++] = one;
}

Watchdog::~Watchdog() {
  if (thread_.joinable()) {
    thread_.request_stop();
    const uint64_t one = 1;
    static_cast<void>(!write(wake_, &one, sizeof(one)));
    thread_.join();
  }
  if (socket_ >= 0) close(socket_);
  if (wake_ >= 0) close(wake_);
}

void Watchdog::start(int rank, std::vector<Member> members, Events events) {
  if (contact_.port == 0) return;
  rank_ = rank;
  events_ = std::move(events);
  job_ = members.at(0).contact.job;
  for (Member& member : members) {
    const WatchdogContact& contact = member.contact;
    Peer peer;
    if (member.is_here) peer.addresses.push_back(address_of(htonl(INADDR_LOOPBACK), contact.port));
    const size_t num = std::min<size_t>(contact.num_addresses, contact.addresses.size());
    for (size_t i = 0; i < num && !only_here_; ++i)
      peer.addresses.push_back(address_of(contact.addresses[i], contact.port));
    peer.member = std::move(member);
    peers_.push_back(std::move(peer));
  }
  rounds_.resize(peers_.size());
  silence_.emplace(peers_.size(), interval_, std::chrono::steady_clock::now());
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

uint64_t Watchdog::last_round_of(int rank) const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(rank) < rounds_.size() ? rounds_[static_cast<size_t>(rank)] : 0;
}

std::optional<Watchdog::Finding> Watchdog::finding() const {
  if (!has_found_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(mutex_);
  return finding_;
}

void Watchdog::run(const std::stop_token& stop) {
  set_thread_log_name("watchdog");
  auto next = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    const auto left = std::max(next - std::chrono::steady_clock::now(), Silence::Duration{0});
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    const timespec timeout{ns / 1000000000, ns % 1000000000};
    pollfd descriptors[2] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
    ppoll(descriptors, 2, &timeout, nullptr);
    take_datagrams();
    const auto now = std::chrono::steady_clock::now();
    if (now < next) continue;
    next = now + interval_;
    look(now);
  }
}

void Watchdog::look(Silence::Time now) {
  silence_->look(now);
  if (!leaving_) judge();
  send_to_all();
  if (++num_looks_ == 2 * kIntervalsPerTimeout) warn_of_unheard();
  if (has_found_ && now - found_at_ > events_.overdue_after && events_.overdue) events_.overdue();
}

void Watchdog::take_datagrams() {
  for (int i = 0; i < kMostDatagramsPerLook; ++i) {
    // One byte more than a datagram has: longer ones are not ours.
    std::array<std::byte, sizeof(Datagram) + 1> bytes;
    sockaddr_in from{};
    socklen_t size = sizeof(from);
    const ssize_t num_bytes =
        recvfrom(socket_, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
    if (num_bytes < 0) return;
    if (num_bytes != sizeof(Datagram)) continue;
    Datagram datagram;
    std::memcpy(&datagram, bytes.data(), sizeof(datagram));
    if (datagram.job == job_) take(datagram, from);
  }
}

void Watchdog::take(const Datagram& datagram, const sockaddr_in& from) {
  const auto num_ranks = static_cast<int32_t>(peers_.size());
  const auto is_rank = [&](int32_t rank) { return rank >= 0 && rank < num_ranks; };
  if (!is_rank(datagram.rank) || datagram.rank == rank_) return;
  const auto sender = static_cast<size_t>(datagram.rank);
  silence_->heard(sender);
  peers_[sender].answers_from = from;
  peers_[sender].is_leaving = datagram.is_leaving != 0;
  {
    std::lock_guard lock(mutex_);
    rounds_[sender] = datagram.round;
  }
  const LostRank& lost = datagram.lost;
  if (peers_[sender].member.counts && is_rank(lost.rank) && is_rank(lost.finder)) find(lost);
}

void Watchdog::judge() {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.member.watch == Watch::kNot || peer.is_leaving || !silence_->was_heard(rank)) continue;
    const int times = peer.member.watch == Watch::kLong ? kTimesLonger : 1;
    const auto silent = silence_->of(rank);
    if (silent < times * kIntervalsOfSilence * interval_) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
    find({.rank = static_cast<int32_t>(rank),
          .finder = rank_,
          .silent_ms = static_cast<uint64_t>(ms),
          .round = last_round_of(static_cast<int>(rank)),
          .finder_round = round_.load(std::memory_order_relaxed)});
  }
}

void Watchdog::find(const LostRank& lost) {
  if (has_found_) return;
  lost_ = lost;
  found_at_ = std::chrono::steady_clock::now();
  send_to_all();
  const std::string reason = sentence_of(lost);
  {
    std::lock_guard lock(mutex_);
    finding_ = {lost.rank, reason};
  }
  has_found_.store(true, std::memory_order_release);
  if (events_.lost) events_.lost(reason);
}

std::string Watchdog::sentence_of(const LostRank& lost) const {
  const std::string& name = peers_[static_cast<size_t>(lost.rank)].member.name;
  const auto round_text = [](uint64_t round) {
    return round == 0 ? "no round yet" : fmt::format("round {}", round);
  };
  return fmt::format(
      "rank {} ({}) is lost: rank {}, in {}, has not heard of it for {:.1f} s; it was in {} then",
      lost.rank,
      name,
      lost.finder,
      round_text(lost.finder_round),
      static_cast<double>(lost.silent_ms) / 1e3,
      round_text(lost.round));
}

void Watchdog::warn_of_unheard() const {
  std::string names;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.member.watch == Watch::kNot || silence_->was_heard(rank)) continue;
    names += fmt::format("{}rank {} ({})", names.empty() ? "" : ", ", rank, peer.member.name);
  }
  if (names.empty()) return;
  log_warning(
      "the watchdog has never heard of {}, and does not watch it: a firewall may keep its UDP "
      "datagrams back (--watchdog-port, docs/cluster.md)",
      names);
}

void Watchdog::send_to_all() const {
  Datagram datagram{.job = job_,
                    .round = round_.load(std::memory_order_relaxed),
                    .rank = rank_,
                    .is_leaving = leaving_ ? 1 : 0,
                    .lost = lost_};
  const auto send_to = [&](const sockaddr_in& address) {
    // What cannot be sent now is as good as lost on its way.
    sendto(socket_,
           &datagram,
           sizeof(datagram),
           MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&address),
           sizeof(address));
  };
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (static_cast<int>(rank) == rank_ || peer.member.contact.port == 0) continue;
    const bool answers =
        silence_->was_heard(rank) && silence_->of(rank) < kIntervalsOfTrust * interval_;
    if (answers && lost_.rank < 0) {
      send_to(peer.answers_from);
    } else {
      for (const sockaddr_in& address : peer.addresses) send_to(address);
    }
  }
}

}  // namespace outrider
