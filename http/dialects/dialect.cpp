// See dialect.h.
#include "http/dialects/dialect.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace outrider {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// nullptr when absent, null or empty.
const Json* filled(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->empty() ? nullptr : &*it;
}

Usage usage_of(const Json& usage) {
  return {
      usage.value("prompt_tokens", int64_t{0}),
      usage.value("completion_tokens", int64_t{0}),
      usage.value(Json::json_pointer("/prompt_tokens_details/cached_tokens"), int64_t{0}),
      usage.value(Json::json_pointer("/completion_tokens_details/reasoning_tokens"), int64_t{0})};
}

// Follows a chat answer, whole or in chunks, and tells the writer its parts.
class ChatReader {
 public:
  explicit ChatReader(AnswerWriter& writer) : writer_(writer) {}

  // A completion or a chunk. The first must have its usage.
  void take(const Json& body) {
    const Json* usage = filled(body, "usage");
    if (usage) end_.usage = usage_of(*usage);
    if (!started_ && usage) start(body);
    if (!started_) return;  // the chunk that only names the role
    for (const Json& choice : body.at("choices")) take_choice(choice);
  }

  void finish() {
    close();
    writer_.end(end_);
  }

 private:
  void start(const Json& body) {
    started_ = true;
    const std::string id = body.at("id").get<std::string>();
    const ResponseHead head{id.substr(id.find('-') + 1),
                            body.at("created").get<int64_t>(),
                            body.at("model").get<std::string>()};
    writer_.start(head, end_.usage);
  }

  void take_choice(const Json& choice) {
    const Json& delta = choice.contains("delta") ? choice.at("delta") : choice.at("message");
    extend(AnswerPartKind::kReasoning, text_of(delta, "reasoning_content"), {});
    const Json* logprobs = filled(choice, "logprobs");
    extend(AnswerPartKind::kText,
           text_of(delta, "content"),
           logprobs ? logprobs->at("content").dump() : std::string());
    if (const Json* calls = filled(delta, "tool_calls")) {
      for (const Json& call : *calls) take_call(call);
    }
    end_.finish_reason = text_of(choice, "finish_reason");
    end_.stop_text = text_of(choice, "stop_reason");
  }

  void extend(AnswerPartKind kind, const std::string& text, const std::string& logprobs) {
    if (text.empty() && (logprobs.empty() || open_ != kind)) return;
    if (open_ != kind) open({kind, {}, {}});
    writer_.extend(text, logprobs);
  }

  // The first piece of a call has its id.
  void take_call(const Json& call) {
    const Json& function = call.at("function");
    if (const std::string id = text_of(call, "id"); !id.empty())
      open({AnswerPartKind::kToolCall, id, text_of(function, "name")});
    if (const std::string text = text_of(function, "arguments"); !text.empty())
      writer_.extend(text, {});
  }

  void open(const AnswerPart& part) {
    close();
    open_ = part.kind;
    writer_.open(part);
  }

  void close() {
    if (open_) writer_.close(end_.finish_reason == "length");
    open_.reset();
  }

  AnswerWriter& writer_;
  AnswerEnd end_;
  std::optional<AnswerPartKind> open_;
  bool started_ = false;
};

class DialectStream : public ByteSource {
 public:
  DialectStream(std::unique_ptr<AnswerWriter> writer, std::unique_ptr<ByteSource> chat_chunks)
      : writer_(std::move(writer)), reader_(*writer_), chat_chunks_(std::move(chat_chunks)) {}

  bool next(std::string* out) override {
    std::string bytes;  // whole events, as CallEventStream appends them
    const bool more = chat_chunks_->next(&bytes);
    constexpr std::string_view kData = "data: ";
    size_t begin = 0;
    for (size_t end; (end = bytes.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string_view event = std::string_view(bytes).substr(begin, end - begin);
      if (event.substr(0, kData.size()) == kData) {
        take(event.substr(kData.size()));
        *out += writer_->take_events();
      } else {
        out->append(event).append("\n\n");  // a ping
      }
    }
    return more;
  }

 private:
  void take(std::string_view data) {
    if (data == "[DONE]") return reader_.finish();
    const Json chunk = Json::parse(data);
    if (chunk.contains("error")) return writer_->fail(std::string(data));
    reader_.take(chunk);
  }

  std::unique_ptr<AnswerWriter> writer_;
  ChatReader reader_;
  std::unique_ptr<ByteSource> chat_chunks_;
};

// A field's name ends where its text does, or before the name of a member.
bool ends_name(std::string_view text, size_t at) {
  return at == text.size() || text[at] == '\'' || text[at] == '.' || text[at] == '[';
}

}  // namespace

void AnswerWriter::add_event(std::string_view type, std::string_view data) {
  events_ += fmt::format("event: {}\ndata: {}\n\n", type, data);
}

std::string shared_with_chat(const JsonFields& body, Endpoint endpoint) {
  Json chat = Json::object();
  for (const std::string& name : body.names()) {
    if (is_known_field(name, endpoint) && is_known_field(name, Endpoint::kChat))
      chat[name] = Json::parse(body.dump(name));
  }
  if (body.boolean("stream").value_or(false))
    chat["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  else
    chat.erase("stream_options");
  return chat.dump();
}

ApiError unsupported(const JsonFields& at, const std::string& name, const std::string& why) {
  return bad_param(at.path_of(name), fmt::format("'{}': {}", at.path_of(name), why));
}

ApiError renamed(const ApiError& error, FieldNames names) {
  std::string message = error.what();
  std::string param = error.param();
  for (const auto& [ours, theirs] : names) {
    const std::string quoted = fmt::format("'{}", ours);
    const size_t at = message.find(quoted);
    if (at != std::string::npos && ends_name(message, at + quoted.size()))
      message.replace(at + 1, ours.size(), theirs);
    if (param.starts_with(ours) && ends_name(param, ours.size()))
      param.replace(0, ours.size(), theirs);
  }
  return ApiError(error.status(), message, param, error.code());
}

std::string dialect_answer(AnswerWriter& writer, std::string_view chat_completion) {
  ChatReader reader(writer);
  reader.take(Json::parse(chat_completion));
  reader.finish();
  return writer.whole();
}

std::unique_ptr<ByteSource> dialect_stream(std::unique_ptr<AnswerWriter> writer,
                                           std::unique_ptr<ByteSource> chat_chunks) {
  writer->begin_stream();
  return std::make_unique<DialectStream>(std::move(writer), std::move(chat_chunks));
}

}  // namespace outrider
