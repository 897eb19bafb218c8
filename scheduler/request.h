// What a front end asks for (Request) and how the answer comes back (ResultStream). A request is
// one sequence: a call with n choices becomes n requests. Plain values; the stream is the one place
// where the round's thread and a front end's thread meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/short_list.h"
#include "scheduler/sampling_params.h"
#include "scheduler/token_logprobs.h"

namespace outrider {

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAborted, kError };

// Where a token came from, in the words of a round.
enum class TokenOrigin : uint8_t {
  kPlain,      // the round had nothing proposed for this sequence
  kAccepted,   // a draft token that was accepted, or the bonus draft token behind them
  kCorrected,  // drawn by the target where one of these was rejected
  kBonus,      // drawn by the target after all that was proposed were accepted
};

// Counters of one request's speculation. A bonus draft token is no draft token here:
// it costs no row, and the token at its place comes out in any case, so counting it would break
// "tokens per round = 1 + accepted / rounds" (vLLM's mean acceptance length). It has counters of
// its own; the share that were accepted is an acceptance rate like the others'.
struct SpeculationStats {
  int32_t num_rounds = 0;       // rounds that produced tokens
  int32_t num_spec_rounds = 0;  // of these, with draft tokens
  int32_t num_draft_tokens = 0;
  int32_t num_accepted_tokens = 0;
  // Every event carries a copy: no heap memory for usual lengths.
  ShortList<int32_t, 16> accepted_per_position;  // [i] = rounds in which draft token i was accepted
  ShortList<int32_t, 16> drafted_per_position;   // [i] = rounds that had a draft token i
  int32_t num_bonus_drafts = 0;           // judged: all draft tokens of their rounds were accepted
  int32_t num_accepted_bonus_drafts = 0;  // of these
  int32_t num_ready_rounds = 0;   // of num_spec_rounds: prepared when the round before ended
  int32_t num_waited_rounds = 0;  // of num_spec_rounds: drafted after it
};

struct ResultEvent {
  ShortList<int32_t, 16> tokens;
  ShortList<TokenOrigin, 16> origins;   // one per token
  std::vector<TokenLogprobs> logprobs;  // one per token when asked for
  std::vector<TokenLogprobs>
      prompt_logprobs;  // once, before the first token, when asked for: prompt[1..]
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token;  // the stop token that ended the sequence; it is not in tokens
  TokenOrigin stop_token_origin = TokenOrigin::kPlain;
  std::optional<TokenLogprobs> stop_token_logprobs;  // with it, when asked for
  std::string error;                                 // with kError
  bool is_request_fault = false;  // kError: by the request's own parameters, no fault of ours
  SpeculationStats stats;         // so far; complete in the last event
  int32_t num_cached_tokens = 0;  // of the prompt: their KV was there already
  int32_t num_preemptions = 0;    // so far
  std::optional<JobClock::time_point> scheduled_at;   // first, if it was
  JobClock::time_point decided_at = JobClock::now();  // the end of this event's round
};

// One producer (the coordinator), one consumer (a front end). The last event has a finish reason.
class ResultStream {
 public:
  void push(ResultEvent event);
  // The next event, or nullopt when none came in time.
  std::optional<ResultEvent> wait_next(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  ClockCondition arrived_;
  std::vector<ResultEvent> events_;  // those in front of next_ were taken
  size_t next_ = 0;
};

// An event that its stream has not been given yet.
struct PendingResult {
  std::shared_ptr<ResultStream> stream;  // may be null
  ResultEvent event;
  void deliver() && {
    if (stream) stream->push(std::move(event));
  }
};

struct Request {
  uint64_t id = 0;              // unique in this process, never 0
  std::vector<int32_t> prompt;  // at least one token
  // Generated already, by another job or an earlier life of this one: the answer goes on behind
  // them, and they count as its own. Fewer than max_tokens.
  std::vector<int32_t> resumed;
  SamplingParams params;
  int32_t priority = 0;     // lower runs first, then arrival order
  bool is_further = false;  // its call has another one already
  std::string cache_salt;   // KV is reused only among requests of the same one
  std::shared_ptr<ResultStream> stream;
  JobClock::time_point arrival = JobClock::now();
};

}  // namespace outrider
