// What a front end asks for (Request) and how the answer comes back (ResultStream). A request is
// one sequence: a call with n choices becomes n requests. Plain values; the stream is the one place
// where the round's thread and a front end's thread meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/short_list.h"

namespace outrider {

// How draft tokens are judged (docs/architecture.md, section 4). kAuto: coupled for a request with
// a seed, else block. At temperature 0 all are the same.
enum class VerifyMode : uint8_t { kAuto, kStandard, kCoupled, kBlock };
// "auto", "standard", "block", "coupled"; nothing for another name.
std::optional<VerifyMode> verify_mode_from_name(std::string_view name);
const char* verify_mode_name(VerifyMode mode);

// What the draft does while the target verifies (docs/round.md, Asynchronous drafting): nothing; go
// on behind the block in flight; prepare blocks for the likely outcomes. kAuto = the server's.
enum class AsyncDrafting : uint8_t { kAuto, kOff, kChain, kCache };
// "auto", "off", "chain", "cache"; nothing for another name.
std::optional<AsyncDrafting> async_drafting_from_name(std::string_view name);
const char* async_drafting_name(AsyncDrafting mode);

struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0 = off
  float min_p = 0.0f;               // [0, 1]
  float typical_p = 1.0f;           // (0, 1]; after the other filters
  float repetition_penalty = 1.0f;  // > 0; over prompt and output (Hugging Face's rule)
  float presence_penalty = 0.0f;    // over the output (OpenAI's rule)
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // by token id, ascending, no duplicates
  std::vector<int32_t> allowed_token_ids;       // nothing else may come out; ascending, empty = off
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that may not be completed
  std::optional<uint64_t> seed;  // given by the user; noise_seed is what the draws use
  uint64_t noise_seed = 0;       // = seed (mixed with the choice index), or drawn by the front end
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // stop_token_ids are masked until so many tokens are out
  std::vector<int32_t>
      stop_token_ids;            // ascending; includes the model's end tokens unless ignore_eos
  int32_t num_logprobs = -1;     // -1 none; n = the chosen token's and the n best
  bool prompt_logprobs = false;  // also for each prompt token (echo)
  VerifyMode verify_mode = VerifyMode::kAuto;
  int32_t max_draft_len = -1;  // -1 = the server's; 0 = no speculation for this request
  // Drafts are as long as max_draft_len and the server allow, whatever the planner would choose.
  bool fixed_draft_len = false;
  AsyncDrafting async_drafting = AsyncDrafting::kAuto;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAborted, kError };

// Where a token came from, in the words of a round.
enum class TokenOrigin : uint8_t {
  kPlain,      // the round had nothing proposed for this sequence
  kAccepted,   // a draft token that was accepted, or the bonus draft token behind them
  kCorrected,  // drawn by the target where one of these was rejected
  kBonus,      // drawn by the target after all that was proposed were accepted
};

// Log-probabilities under the target's real distribution: log softmax of its raw logits, before
// temperature, penalties and filters.
struct TokenLogprobs {
  float logprob = 0.0f;
  int32_t rank = 0;  // 1 = the most likely token
  std::vector<std::pair<int32_t, float>>
      top;  // (id, logprob), most likely first, lowest id first in ties
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
  std::vector<int32_t> tokens;
  std::vector<TokenOrigin> origins;     // one per token
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
  std::deque<ResultEvent> events_;
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
  SamplingParams params;
  int32_t priority = 0;     // lower runs first, then arrival order
  bool is_further = false;  // its call has another one already
  std::shared_ptr<ResultStream> stream;
  JobClock::time_point arrival = JobClock::now();
};

}  // namespace outrider
