// See draft_server.h.
#include "runtime/ranks/coordinator/draft_server.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/ops/thread_plan.h"
#include "runtime/ranks/loading/engine_sizes.h"
#include "runtime/ranks/messages/round_wire.h"

namespace outrider {
namespace {

constexpr size_t kMostVisitors = 16;
constexpr size_t kMostArrivals = 16;  // that nobody has taken yet
constexpr std::chrono::seconds kHelloTime{5};
constexpr std::chrono::seconds kRefusalTime{1};
constexpr std::chrono::seconds kWarningInterval{1};
constexpr int kLookMs = 100;
constexpr std::chrono::milliseconds kPauseWhenFull{10};

// Takes the same time wherever the first difference is.
bool is_same_key(const std::string& given, const std::string& wanted) {
  size_t difference = given.size() ^ wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto one = static_cast<unsigned char>(given.empty() ? 0 : given[i % given.size()]);
    difference |= static_cast<size_t>(one ^ static_cast<unsigned char>(wanted[i]));
  }
  return difference == 0;
}

// Of the longest honest reply, with all sequences and branches in it, and some room.
size_t longest_message(const DraftTerms& terms) {
  const auto of = [](int32_t number) { return static_cast<size_t>(number); };
  const size_t token_bytes = 16 + 8 * of(terms.num_candidates);
  const size_t block_bytes = 64 + (of(terms.longest_draft_len) + 1) * token_bytes;
  return (size_t{1} << 20) + (of(terms.max_num_seqs) + kMaxDraftBranches) * block_bytes;
}

}  // namespace

DraftServer::DraftServer(const TcpListener& listener, DraftDemands demands, const DraftTerms& terms)
    : listener_(listener),
      demands_(std::move(demands)),
      terms_(terms),
      thread_([this](const std::stop_token& stop) { run(stop); }) {
  log_info("drafts may attach at {}: outrider draft --connect HOST:{} --model DRAFT",
           text_of(listener.address()),
           listener.address().port);
}

std::vector<DraftServer::Arrival> DraftServer::take_arrivals() {
  if (!has_arrivals_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(mutex_);
  has_arrivals_ = false;
  return std::exchange(arrivals_, {});
}

void DraftServer::run(const std::stop_token& stop) {
  set_thread_log_name("draft server");
  ops::leave_pinning();
  std::vector<Visitor> visitors;
  while (!stop.stop_requested()) {
    wait_for_any(visitors);
    std::erase_if(visitors, [&](Visitor& visitor) { return !attend(visitor); });
    let_in(&visitors);
  }
}

void DraftServer::wait_for_any(const std::vector<Visitor>& visitors) const {
  std::vector<pollfd> all;
  // Who comes while the house is full waits outside.
  if (visitors.size() < kMostVisitors) all.push_back({listener_.descriptor(), POLLIN, 0});
  for (const Visitor& visitor : visitors) all.push_back({visitor.socket->descriptor(), POLLIN, 0});
  ::poll(all.data(), all.size(), kLookMs);
}

void DraftServer::let_in(std::vector<Visitor>* visitors) const {
  while (visitors->size() < kMostVisitors) {
    const int descriptor = listener_.accept();
    if (descriptor < 0) {
      // Out of descriptors or memory: who waits outside would be seen again at once.
      if (errno != EAGAIN && errno != ECONNABORTED) JobClock::sleep_for(kPauseWhenFull);
      return;
    }
    visitors->push_back({.socket = std::make_unique<MessageSocket>(descriptor, kMaxDraftHelloBytes),
                         .peer = peer_of(descriptor),
                         .until = Clock::now() + kHelloTime});
  }
}

bool DraftServer::attend(Visitor& visitor) {
  const auto now = Clock::now();
  const auto message = visitor.socket->poll();
  if (visitor.socket->closed() && !message) return false;
  // One that has read its refusal leaves by itself.
  if (visitor.is_refused || !message) return now < visitor.until;
  const auto hello = decode_draft_hello(*message);
  if (!hello) {
    log_debug("{} is no draft: it sent something else than a hello", visitor.peer);
    return false;
  }
  const std::string refusal = refusal_of(*hello);
  if (refusal.empty()) {
    welcome(visitor, *hello);
    return false;
  }
  visitor.socket->post(encode(DraftWelcome{.refusal = refusal}));
  visitor.is_refused = true;
  visitor.until = now + kRefusalTime;
  if (now - last_warning_ >= kWarningInterval) {
    last_warning_ = now;
    log_warning("a draft at {} was refused: {}", visitor.peer, refusal);
  }
  return true;
}

std::string DraftServer::refusal_of(const DraftHello& hello) const {
  if (hello.version != kDraftLinkVersion) {
    return fmt::format(
        "it speaks version {} of the draft's protocol, the job version {}: both must be the same "
        "version of outrider",
        hello.version,
        kDraftLinkVersion);
  }
  if (!demands_.key.empty() && !is_same_key(hello.key, demands_.key)) {
    return hello.key.empty() ? "the job asks for a key: give --draft-key, or OUTRIDER_DRAFT_KEY"
                             : "its key is not the job's draft_key";
  }
  if (hello.vocabulary != demands_.vocabulary) {
    return "its tokens are not the target's (outrider check-pair TARGET DRAFT names the first that "
           "differs), and a draft over TCP is not translated";
  }
  if (hello.num_rows < demands_.num_tokens) {
    return fmt::format("its model has rows for {} tokens where the target has {}",
                       hello.num_rows,
                       demands_.num_tokens);
  }
  return "";
}

void DraftServer::welcome(Visitor& visitor, const DraftHello& hello) {
  std::lock_guard lock(mutex_);
  if (arrivals_.size() >= kMostArrivals) return;  // it will come again
  const uint32_t epoch = ++last_epoch_;
  visitor.socket->set_max_message_bytes(longest_message(terms_));
  visitor.socket->post(encode(DraftWelcome{.refusal = "", .epoch = epoch, .terms = terms_}));
  const std::string name = fmt::format("{} at {}", hello.name, visitor.peer);
  log_info("a draft has attached: {}", name);
  arrivals_.push_back({std::make_unique<TcpDraftLink>(std::move(visitor.socket)), name, epoch});
  has_arrivals_.store(true, std::memory_order_release);
}

}  // namespace outrider
