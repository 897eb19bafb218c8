// One streamed completion of `bench serve`, from bytes to a record. Pure: the caller says what time
// it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http/wire/event_reader.h"

namespace outrider {

// A piece of the answer that brought tokens: as many as running usage says, else one.
struct StreamChunk {
  double time_s = 0;  // when its bytes were read from the socket
  int32_t num_tokens = 0;
};

// What is known of one request, as the client saw it. Times are seconds of a steady clock since the
// run's start.
struct RequestRecord {
  int32_t input_len = 0;   // tokens asked for; the server's count is prompt_tokens
  int32_t output_len = 0;  // most tokens asked for

  double scheduled_s = 0;
  double sent_s = 0;
  double end_s = 0;

  std::vector<StreamChunk> chunks;
  double last_choice_s = -1;   // of the last event that had a choice: tokens or the reason to stop
  int64_t prompt_tokens = -1;  // from usage; -1 = not told
  int64_t usage_tokens = -1;   // completion_tokens of usage
  std::string finish_reason;

  // Empty = none, "connect", "timeout", "http 429", "error event" (inside the stream), "broken
  // stream" (ended before the last token), "not a stream" (200, but no events that can be read).
  std::string failure;
  int32_t http_status = 0;
  std::string error;  // one sentence, cut
};

class CompletionStream {
 public:
  // The record must outlive the stream.
  explicit CompletionStream(RequestRecord* record) : record_(record) {}

  // The status line has come. What follows is the stream for 200, else the error's text.
  void begin(int status) { record_->http_status = status; }
  // False: nothing more is wanted, the connection should be closed.
  bool receive(double time_s, std::string_view bytes);
  // The answer ended (or was broken off): settles what the request came to, unless a failure is
  // already known.
  void finish(double time_s);
  // The first one counts.
  void fail(const std::string& failure, const std::string& error);

 private:
  void take_event(double time_s, std::string_view data);

  RequestRecord* record_;
  EventReader events_;
  std::string error_body_;          // of an answer other than 200
  bool has_running_usage_ = false;  // usage comes with every chunk
  int64_t running_tokens_ = 0;      // the last of it
  bool done_ = false;               // [DONE] was seen
};

}  // namespace outrider
