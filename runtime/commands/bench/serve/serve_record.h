// What is known of one request of `bench serve`, as the client saw it. Times are seconds of a
// steady clock since the run's start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

// A piece of the answer that brought tokens.
struct StreamChunk {
  double time_s = 0;  // when its bytes were read from the socket
  int32_t num_tokens = 0;
};

// How the tokens of a chunk were counted: best first.
enum class ChunkCount : uint8_t { kTokenIds, kRunningUsage, kOnePerChunk };

enum class ServeFailure : uint8_t {
  kNone,
  kConnect,       // no connection
  kTimeout,       // not done within the time a request has
  kHttpStatus,    // an answer other than 200
  kErrorEvent,    // an error inside the stream
  kBrokenStream,  // ended before the last token
  kNotAStream     // 200, but no events that can be read
};

// What speculation did in one request, or between two readings of a server's counters. -1 = not
// told.
struct SpeculationCount {
  int64_t num_drafts = -1;  // rounds that had a draft
  int64_t num_draft_tokens = -1;
  int64_t num_accepted_tokens = -1;
  bool known() const { return num_draft_tokens >= 0 && num_accepted_tokens >= 0; }
};

struct RequestRecord {
  int32_t input_len = 0;   // tokens asked for; the server's count is prompt_tokens
  int32_t output_len = 0;  // most tokens asked for

  double scheduled_s = 0;
  double slot_free_s = 0;  // when the place it took became free (max_concurrency); 0 = at once
  double sent_s = 0;
  double end_s = 0;

  std::vector<StreamChunk> chunks;
  double last_choice_s = -1;  // of the last event that had a choice: tokens or the reason to stop
  ChunkCount count_by = ChunkCount::kOnePerChunk;
  int64_t prompt_tokens = -1;  // from usage; -1 = not told
  int64_t usage_tokens = -1;   // completion_tokens of usage
  std::string finish_reason;

  ServeFailure failure = ServeFailure::kNone;
  int32_t http_status = 0;
  std::string error;  // one sentence, cut

  SpeculationCount speculation;
};

// "connect", "timeout", "http 429", ...: what failures are counted under.
std::string failure_name(const RequestRecord& record);

}  // namespace outrider
