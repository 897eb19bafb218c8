// One streamed completion of `bench serve`, from bytes to a record: server-sent events over any
// cuts between packets, their JSON, and what arrived when. Pure: the caller says what time it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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
  void add(const SpeculationCount& other);  // what of it is told
};

// What is known of one request, as the client saw it. Times are seconds of a steady clock since the
// run's start.
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

// after - before, where both are known.
SpeculationCount difference(const SpeculationCount& before, const SpeculationCount& after);

// "connect", "timeout", "http 429", ...: what failures are counted under.
std::string failure_name(const RequestRecord& record);

// Bytes to the data of events (WHATWG server-sent events: lines end in LF or CRLF, an empty line
// ends an event, several data lines are joined, comments and other fields are skipped).
class EventReader {
 public:
  // Appends the data of each event that these bytes complete. Throws Error when one is larger than
  // 16 MiB.
  void receive(std::string_view bytes, std::vector<std::string>* events);
  bool inside_event() const { return !line_.empty() || has_data_; }

 private:
  void take_line(std::vector<std::string>* events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

class CompletionStream {
 public:
  // The record must outlive the stream.
  explicit CompletionStream(RequestRecord* record) : record_(record) {}

  // The status line has come. What follows is the stream for 200, else the error's text.
  void begin(int status);
  // False: nothing more is wanted, the connection should be closed.
  bool receive(double time_s, std::string_view bytes);
  // The answer ended (or was broken off): settles what the request came to, unless a failure is
  // already known.
  void finish(double time_s);

 private:
  void take_event(double time_s, const std::string& data);
  void fail(ServeFailure failure, const std::string& error);

  RequestRecord* record_;
  EventReader events_;
  std::string error_body_;
  bool has_running_usage_ = false;  // usage comes with every chunk
  int64_t running_tokens_ = 0;      // the last of it
  bool done_ = false;               // [DONE] was seen
};

// The sums of vllm:spec_decode_num_* in a server's /metrics; not known when it has none.
SpeculationCount parse_speculation_metrics(std::string_view text);

}  // namespace outrider
