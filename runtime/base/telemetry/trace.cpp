// See trace.h.
#include "runtime/base/telemetry/trace.h"

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers/mix.h"

namespace outrider {
namespace {

constexpr TraceKindText kTexts[] = {
    {"round", {"round", "sequences"}},
    {"idle", {}},
    {"wait for draft", {}},
    {"plan", {}},
    {"broadcast", {}},
    {"apply", {}},
    {"send draft request", {}},
    {"take draft reply", {"blocks", "tokens"}},
    {"agreement", {}},
    {"verification", {"round", "drafted", "accepted", "rows", "source", "bonus_draft"}, 'b'},
    {"block arrived", {"round", "base_len", "guess", "first", "tokens"}, 'i'},
    {"block stale", {"round", "tokens"}, 'i'},
    {"request", {"prompt", "output"}, 'b'},
    {"receive plan", {}},
    {"forward", {"rows", "sequences"}},
    {"verify", {"sequences"}},
    {"bonus drafts", {}},
    {"draft idle", {}},
    {"draft step", {"rows", "texts"}},
    {"take request", {"commits", "opens"}},
    {"send reply", {"blocks", "tokens"}},
    {"drafted", {"round", "base_len", "guess", "first", "tokens"}, 'i'},
    {"flow out", {}, 's'},
    {"flow in", {}, 'f'},
};
static_assert(std::size(kTexts) == kNumTraceKinds);

void put(std::initializer_list<int64_t> arguments, TraceEvent* event) {
  OUTRIDER_CHECK(arguments.size() <= kMaxTraceArguments);
  std::transform(
      arguments.begin(), arguments.end(), event->arguments.begin(), [](int64_t argument) {
        return static_cast<int32_t>(std::clamp<int64_t>(argument, INT32_MIN, INT32_MAX));
      });
}

}  // namespace

const TraceKindText& text_of(TraceKind kind) { return kTexts[static_cast<size_t>(kind)]; }

int64_t trace_now_ns() { return JobClock::now_ns(); }

TraceRing::TraceRing(size_t capacity) : capacity_(capacity) {
  OUTRIDER_CHECK(capacity > 0);
  events_.reserve(capacity);
}

std::vector<TraceEvent> TraceRing::events() const {
  std::vector<TraceEvent> list;
  list.reserve(static_cast<size_t>(num_added_ - num_lost()));
  for (uint64_t i = num_lost(); i < num_added_; ++i) {
    list.push_back(events_[static_cast<size_t>(i % capacity_)]);
  }
  return list;
}

void TraceSpan::begin(TraceKind kind, std::initializer_list<int64_t> arguments) {
  event_.kind = kind;
  put(arguments, &event_);
  event_.begin_ns = trace_now_ns();
}

void TraceSpan::take(std::initializer_list<int64_t> arguments) { put(arguments, &event_); }

void TraceSpan::end() {
  event_.duration_ns = trace_now_ns() - event_.begin_ns;
  ring_->add(event_);
}

void trace_sequence(TraceKind kind,
                    uint64_t sequence_id,
                    std::pair<int64_t, int64_t> begin_and_end_ns,
                    std::initializer_list<int64_t> arguments) {
  if (thread_trace == nullptr) return;
  TraceEvent event;
  event.kind = kind;
  event.id = sequence_id;
  event.begin_ns = begin_and_end_ns.first;
  event.duration_ns = begin_and_end_ns.second - begin_and_end_ns.first;
  put(arguments, &event);
  thread_trace->add(event);
}

void trace_sequence(TraceKind kind,
                    uint64_t sequence_id,
                    std::initializer_list<int64_t> arguments) {
  if (thread_trace == nullptr) return;
  const int64_t now_ns = trace_now_ns();
  trace_sequence(kind, sequence_id, {now_ns, now_ns}, arguments);
}

void trace_flow_out(uint64_t arrow) { trace_sequence(TraceKind::kFlowOut, arrow, {}); }

void trace_flow_in(uint64_t arrow) { trace_sequence(TraceKind::kFlowIn, arrow, {}); }

uint64_t request_arrow(uint64_t serial) { return mix64(2 * serial + 1); }

uint64_t tokens_arrow(const ArrowOfTokens& tokens) {
  uint64_t name = mix64(tokens.sequence_id + 0x9e3779b97f4a7c15ull);
  name = mix64(name + tokens.round);
  name = mix64(name + static_cast<uint32_t>(tokens.base_len));
  name = mix64(name + static_cast<uint32_t>(tokens.guess));
  return mix64(name + static_cast<uint32_t>(tokens.first)) & ~uint64_t{1};
}

}  // namespace outrider
