// See trace_gather.h.
#include "runtime/ranks/job/trace_gather.h"

#include <fmt/format.h>

#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"

namespace outrider {

void fields_of(auto& wire, Is<TraceEvent> auto& event) {
  wire.fields(event.kind, event.begin_ns, event.duration_ns, event.id);
  for (auto& argument : event.arguments) wire.fields(argument);
}

namespace {

constexpr size_t kRingEvents = 1u << 18;  // 18 MiB a rank when full
constexpr uint32_t kMagic = 0x4352544f;   // "OTRC"
constexpr int kNumPings = 12;
constexpr double kPingS = 10;     // all pings of a rank
constexpr double kClocksS = 600;  // of all ranks, as the ready barrier before has
constexpr double kHandOverS = 3;
constexpr size_t kEventsPerMessage = 1u << 14;  // under 1 MiB

enum class Word : uint8_t { kPing, kTime, kEvents, kEnd };

// A message of ours, read up to its word; nothing for any other.
struct Message {
  explicit Message(Bytes received) : bytes(std::move(received)), in(bytes) {}
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  bool is_ours() {
    if (bytes.size() < sizeof(uint32_t) + sizeof(Word) || in.get<uint32_t>() != kMagic)
      return false;
    word = in.get<Word>();
    return true;
  }
  const Bytes bytes;
  WireReader in;
  Word word = Word::kEnd;
};

// The next message of ours from that rank, others dropped; null when none came in time. What still
// lies in the mailbox at the end of a job is of nobody's interest.
std::unique_ptr<Message> next_message(World& world,
                                      int from,
                                      const Backoff& since,
                                      double limit_s) {
  Backoff backoff;
  while (since.waited_s() < limit_s) {
    if (auto bytes = world.poll(from)) {
      auto message = std::make_unique<Message>(std::move(*bytes));
      if (message->is_ours()) return message;
      continue;
    }
    if (backoff.should_check()) world.check_alive(1);
    world.pause(backoff);
  }
  return nullptr;
}

// What a rank handed over; nothing when it did not, not in time, or damaged.
std::optional<RankTrace> receive_trace(World& world, int rank) try {
  RankTrace trace;
  const Backoff begin;
  while (true) {
    const std::unique_ptr<Message> message = next_message(world, rank, begin, kHandOverS);
    if (message == nullptr) return std::nullopt;
    if (message->word == Word::kEvents) {
      const auto count = message->in.get<uint32_t>();
      for (uint32_t i = 0; i < count; ++i) {
        trace.events.push_back(message->in.get<TraceEvent>());
        if (static_cast<size_t>(trace.events.back().kind) >= kNumTraceKinds)
          throw Error("an unknown kind of span");
      }
    } else if (message->word == Word::kEnd) {
      trace.num_lost = message->in.get<uint64_t>();
      return trace;
    }
  }
} catch (const Error& error) {
  log_warning("trace: from rank {}: {}", rank, error.what());
  return std::nullopt;
}

// What that rank's clock shows more than this one's, from the exchange that took least time, when
// the answer was under way for about as long as the question. Nothing when it leaves a question
// open.
std::optional<int64_t> clock_offset(World& world, int rank) {
  std::optional<int64_t> offset_ns;
  int64_t least_ns = INT64_MAX;
  const Backoff begin;
  for (int i = 0; i < kNumPings; ++i) {
    const int64_t asked_ns = trace_now_ns();
    world.post(rank, wire_bytes(kMagic, Word::kPing));
    const std::unique_ptr<Message> answer = next_message(world, rank, begin, kPingS);
    if (answer == nullptr) return std::nullopt;
    const int64_t heard_ns = trace_now_ns();
    if (answer->word != Word::kTime || heard_ns - asked_ns >= least_ns) continue;
    least_ns = heard_ns - asked_ns;
    offset_ns = answer->in.get<int64_t>() - (asked_ns + heard_ns) / 2;
  }
  return offset_ns;
}

}  // namespace

JobTrace::JobTrace(const std::string& path)
    : path_(path), ring_(path.empty() ? nullptr : std::make_unique<TraceRing>(kRingEvents)) {}

void JobTrace::open_file() {
  if (on()) file_.emplace(path_);
}

void JobTrace::compare_clocks(World& world, const RankLayout& layout) {
  if (!on()) return;
  if (world.rank() == 0) {
    for (int rank = 1; rank < layout.num_ranks(); ++rank) {
      const std::optional<int64_t> offset_ns = clock_offset(world, rank);
      // An answer that comes later would be taken for a round's.
      if (!offset_ns && rank < layout.num_targets)
        throw Error(fmt::format("trace: rank {} did not tell its time in {:g} s", rank, kPingS));
      if (!offset_ns) log_warning("trace: rank {} did not tell its time", rank);
      clock_offsets_ns_[rank] = offset_ns.value_or(0);
      world.post(rank, wire_bytes(kMagic, Word::kEnd));
    }
    return;
  }
  // Rank 0 asks the ranks one after the other; what comes behind its last word is a round's.
  const Backoff begin;
  while (true) {
    const std::unique_ptr<Message> asked = next_message(world, 0, begin, kClocksS);
    if (asked == nullptr) throw Error("trace: rank 0 did not compare the clocks");
    if (asked->word == Word::kEnd) return;
    world.post(0, wire_bytes(kMagic, Word::kTime, trace_now_ns()));
  }
}

void JobTrace::hand_over(World& world) const {
  if (!on()) return;
  const std::vector<TraceEvent> events = ring_->events();
  for (size_t first = 0; first < events.size(); first += kEventsPerMessage) {
    const size_t end = std::min(events.size(), first + kEventsPerMessage);
    WireWriter out;
    out.fields(kMagic, Word::kEvents, static_cast<uint32_t>(end - first));
    for (size_t i = first; i < end; ++i) out.put(events[i]);
    world.post(0, out.take());
  }
  world.post(0, wire_bytes(kMagic, Word::kEnd, ring_->num_lost()));
  Backoff backoff;
  while (world.num_unsent_bytes(0) > 0 && backoff.waited_s() < kHandOverS) {
    world.poll(0);  // moves what is under way
    world.pause(backoff);
  }
}

void JobTrace::gather(World& world, const RankLayout& layout, const Topology& topology) {
  if (!on()) return;
  std::vector<RankTrace> ranks;
  size_t num_events = 0;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    std::optional<RankTrace> trace;
    if (rank == 0) {
      trace.emplace();
      trace->events = ring_->events();
      trace->num_lost = ring_->num_lost();
    } else {
      trace = receive_trace(world, rank);
    }
    if (!trace) {
      log_warning("trace: rank {} ({}) handed nothing over", rank, layout.name(rank));
      continue;
    }
    trace->rank = rank;
    trace->name = layout.name(rank);
    trace->clock_offset_ns = clock_offsets_ns_[rank];
    for (const RankPlace& place : topology.ranks) {
      if (place.rank == rank) trace->host = place.host;
    }
    num_events += trace->events.size();
    ranks.push_back(std::move(*trace));
  }
  try {
    file_.value().append(chrome_trace_text(ranks));
    file_->finish();
    log_info("trace: {} events of {} ranks in {}", num_events, ranks.size(), path_);
  } catch (const std::exception& error) {
    log_error("trace: {}", error.what());
  }
}

}  // namespace outrider
