// The server-sent events of one streamed call: chunks as tokens come, pings while nothing does, the
// usage chunk, [DONE], or an error event.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "http/api/generation.h"
#include "http/api/openai_response.h"
#include "http/wire/api_error.h"
#include "http/wire/response.h"

namespace outrider {

class CallEventStream : public ByteSource {
 public:
  struct Surroundings {
    ServingMetrics& metrics;
    const std::atomic<bool>& aborting;        // the server stops: end with an error event
    std::chrono::milliseconds ping_interval;  // 0 = no pings
    std::shared_ptr<void> running;            // given back when the stream is destroyed
  };

  CallEventStream(std::unique_ptr<Generation> generation,
                  ResponseHead head,
                  std::shared_ptr<const Tokenizer> tokenizer,
                  Surroundings surroundings);
  ~CallEventStream() override;

  bool next(std::string* out) override;

 private:
  void append_news(std::string* out);
  void append_error(std::string* out, const ApiError& error);
  void append_roles(std::string* out);
  void append_deltas(std::string* out);
  void append_end(std::string* out);

  std::unique_ptr<Generation> generation_;
  ResponseWriter writer_;
  Surroundings surroundings_;
  std::chrono::steady_clock::time_point last_sent_;
  bool roles_sent_ = false;
  bool ended_ = false;
  bool failed_ = false;
};

}  // namespace outrider
