// Other APIs spoken over chat completions: their bodies become chat bodies, and chat answers, whole
// or streamed, are written in their words. Nothing here knows the engine; what chat completions can
// do, its dialects can.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "http/api/json_fields.h"
#include "http/api/openai_response.h"
#include "http/api/request_fields.h"
#include "http/wire/api_error.h"
#include "http/wire/response.h"

namespace outrider {

enum class AnswerPartKind : uint8_t { kReasoning, kText, kToolCall };

// One of the parts that an answer has in order.
struct AnswerPart {
  AnswerPartKind kind = AnswerPartKind::kText;
  std::string call_id;  // of a tool call, as is the name
  std::string name;
};

struct AnswerEnd {
  std::string finish_reason;  // of chat completions: stop, length or tool_calls
  std::string stop_text;      // the stop string that was found; empty: none
  Usage usage;
};

// Writes one answer, of which a part at most is open at a time. After begin_stream() each step adds
// the events that a stream has for it; whole() is what they add up to.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // head.id is the request's; usage has the prompt's tokens.
  virtual void start(const ResponseHead& head, const Usage& usage) = 0;
  virtual void open(const AnswerPart& part) = 0;
  // logprobs: a JSON list of chat completions' entries, or empty.
  virtual void extend(const std::string& text, const std::string& logprobs) = 0;
  // cut: the answer ended within this part for lack of tokens.
  virtual void close(bool cut) = 0;
  virtual void end(const AnswerEnd& end) = 0;
  // error: OpenAI's body of an error.
  virtual void fail(const std::string& error) = 0;
  virtual std::string whole() const = 0;

  void begin_stream() { is_streamed_ = true; }
  // The events since the last time, as they go over the wire.
  std::string take_events() { return std::exchange(events_, {}); }

 protected:
  bool is_streamed() const { return is_streamed_; }
  void add_event(std::string_view type, std::string_view data);

 private:
  bool is_streamed_ = false;
  std::string events_;
};

// (chat completions' name of a field, the dialect's)
using FieldNames = std::span<const std::pair<std::string_view, std::string_view>>;

struct DialectCall {
  std::string chat_body;
  std::unique_ptr<AnswerWriter> writer;
  FieldNames names;
  bool clamp_max_tokens = false;  // to what the context leaves; else more is refused
};

// A chat body (JSON) with the fields of a body that mean the same in chat completions.
std::string shared_with_chat(const JsonFields& body, Endpoint endpoint);

// 400 for a field whose value is refused.
ApiError unsupported(const JsonFields& at, const std::string& name, const std::string& why);

// An error of the chat call in the words of the call that was made.
ApiError renamed(const ApiError& error, FieldNames names);

// The answer for a whole chat completion.
std::string dialect_answer(AnswerWriter& writer, std::string_view chat_completion);
// The stream for a stream of chat completion chunks, whose usage must be included continuously.
std::unique_ptr<ByteSource> dialect_stream(std::unique_ptr<AnswerWriter> writer,
                                           std::unique_ptr<ByteSource> chat_chunks);

}  // namespace outrider
