// Reads the answer of one streamed completion: server-sent events over any cuts between packets,
// their JSON, and what arrived when. Pure: the caller says what time it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/commands/bench/serve/serve_record.h"

namespace outrider {

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
