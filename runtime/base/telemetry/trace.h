// What a rank did and when, for --trace: spans of one thread in a ring of fixed size, taken with
// one line where something happens. A thread without a ring (the normal case) pays one look at a
// thread-local pointer. Each rank's thread keeps its own; runtime/ranks/job/trace_gather.h brings
// them together, trace_file.h writes them as one file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace outrider {

// Names and arguments of the kinds stand in trace.cpp.
enum class TraceKind : uint8_t {
  // Coordinator.
  kRound,         // round, sequences: all of the below but kIdle
  kIdle,          // nothing to do
  kWaitForDraft,  // the targets wait for draft tokens
  kPlan,
  kBroadcast,
  kApply,             // the decision is committed; tokens go to the streams
  kSendDraftRequest,  // a message to the draft
  kTakeDraftReply,    // a message from it: blocks, tokens
  kAgreement,         // waits for the other targets' digests
  // Of one sequence, over the targets' step: sampling round, draft tokens judged, accepted, rows of
  // the step, BlockSource of the draft tokens, whether a late bonus draft token was judged (0, 1).
  kVerification,
  kBlockArrived,  // of one sequence: round, base_len, guess, first, tokens
  kBlockStale,    // of one sequence: round, tokens: dropped, the text went on differently
  kRequest,       // of one sequence, from submission to the last token: prompt, output
  // Every target.
  kReceivePlan,  // ranks 1 and up: the wait for it
  kForward,      // rows, sequences
  kVerify,       // sequences
  kBonusDrafts,  // the hand-over of late bonus draft tokens
  // Draft.
  kDraftIdle,
  kDraftStep,    // rows, texts: sequences and branches of them
  kTakeRequest,  // commits, opens
  kSendReply,    // blocks, tokens
  kDrafted,      // of one sequence: as kBlockArrived
  // Arrows between ranks.
  kFlowOut,
  kFlowIn,
};
constexpr size_t kNumTraceKinds = static_cast<size_t>(TraceKind::kFlowIn) + 1;
constexpr size_t kMaxTraceArguments = 6;

struct TraceKindText {
  const char* name;
  std::array<const char*, kMaxTraceArguments> arguments;  // null from the first one unused
  char phase = 'X';  // in Chrome's format: a span of the rank; 'b' one in a request's lane,
                     // 'i' a moment, 's' and 'f' the ends of an arrow
};
const TraceKindText& text_of(TraceKind kind);

struct TraceEvent {
  int64_t begin_ns = 0;  // of the rank's own clock
  int64_t duration_ns = 0;
  uint64_t id = 0;  // of the sequence, or of the arrow; 0 = none
  std::array<int32_t, kMaxTraceArguments> arguments{};
  TraceKind kind = TraceKind::kRound;
};

// The clock of all spans, in nanoseconds. Hosts differ by an offset.
int64_t trace_now_ns();

// The newest events of one thread. Memory is reserved at once and touched as it fills.
class TraceRing {
 public:
  explicit TraceRing(size_t capacity);
  void add(const TraceEvent& event) {
    if (events_.size() < capacity_) {
      events_.push_back(event);
    } else {
      events_[static_cast<size_t>(num_added_ % capacity_)] = event;
    }
    ++num_added_;
  }
  std::vector<TraceEvent> events() const;  // as they were added, oldest first
  uint64_t num_lost() const { return num_added_ > capacity_ ? num_added_ - capacity_ : 0; }

 private:
  const uint64_t capacity_;
  std::vector<TraceEvent> events_;
  uint64_t num_added_ = 0;
};

// This thread's ring; null while nothing is recorded.
inline thread_local TraceRing* thread_trace = nullptr;

// Records what this thread does while it lives. ring may be null.
class ThreadTrace {
 public:
  explicit ThreadTrace(TraceRing* ring) : before_(thread_trace) { thread_trace = ring; }
  ~ThreadTrace() { thread_trace = before_; }
  ThreadTrace(const ThreadTrace&) = delete;
  ThreadTrace& operator=(const ThreadTrace&) = delete;

 private:
  TraceRing* before_;
};

// From here to the end of the scope.
class TraceSpan {
 public:
  explicit TraceSpan(TraceKind kind, std::initializer_list<int64_t> arguments = {})
      : ring_(thread_trace) {
    if (ring_ != nullptr) begin(kind, arguments);
  }
  ~TraceSpan() {
    if (ring_ != nullptr) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  // For what is known only at the end.
  void set(std::initializer_list<int64_t> arguments) {
    if (ring_ != nullptr) take(arguments);
  }

 private:
  void begin(TraceKind kind, std::initializer_list<int64_t> arguments);
  void take(std::initializer_list<int64_t> arguments);
  void end();

  TraceRing* ring_;
  TraceEvent event_;
};

// What body does is one span.
template <typename Body>
auto traced(TraceKind kind, Body body) {
  const TraceSpan span(kind);
  return body();
}

// Something of one sequence, from begin_ns (trace_now_ns) until then.
void trace_sequence(TraceKind kind,
                    uint64_t sequence_id,
                    std::pair<int64_t, int64_t> begin_and_end_ns,
                    std::initializer_list<int64_t> arguments);
// The same for a moment, now.
void trace_sequence(TraceKind kind, uint64_t sequence_id, std::initializer_list<int64_t> arguments);

// An arrow from a span on one rank to one on another: both ends name it alike, inside a span.
void trace_flow_out(uint64_t arrow);
void trace_flow_in(uint64_t arrow);
// Names of arrows. A request to the draft: by its serial number.
uint64_t request_arrow(uint64_t serial);
// Draft tokens: by what they are and where they begin in their block.
struct ArrowOfTokens {
  uint64_t sequence_id = 0;
  uint32_t round = 0;
  int32_t base_len = 0;
  int32_t guess = -1;
  int32_t first = 0;
};
uint64_t tokens_arrow(const ArrowOfTokens& tokens);

}  // namespace outrider
