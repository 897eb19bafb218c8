// See event_stream.h.
#include "http/api/event_stream.h"

#include "http/wire/api_error.h"
#include "runtime/base/log.h"

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kSlice{40};

}  // namespace

CallEventStream::CallEventStream(std::unique_ptr<Generation> generation,
                                 ResponseHead head,
                                 std::shared_ptr<const Tokenizer> tokenizer,
                                 Surroundings surroundings)
    : generation_(std::move(generation)),
      writer_(generation_->call(), std::move(head), std::move(tokenizer)),
      surroundings_(std::move(surroundings)),
      last_sent_(std::chrono::steady_clock::now()) {}

CallEventStream::~CallEventStream() {
  if (!ended_) surroundings_.metrics.clients_gone.add();
  generation_->log_end(writer_.id(), failed_ ? "failed" : ended_ ? "done" : "client gone");
  generation_.reset();
}

bool CallEventStream::next(std::string* out) {
  const size_t before = out->size();
  try {
    append_news(out);
  } catch (const ApiError& error) {
    append_deltas(out);  // what had come before it
    append_error(out, error);
  } catch (const std::exception& error) {
    log_error("{} failed: {}", writer_.id(), error.what());
    append_error(out, {500, "internal error"});
  }
  const auto now = std::chrono::steady_clock::now();
  const auto interval = surroundings_.ping_interval;
  if (out->size() == before && interval.count() > 0 && now - last_sent_ >= interval) {
    *out += ": ping\n\n";
  }
  if (out->size() != before) last_sent_ = now;
  return !ended_;
}

void CallEventStream::append_news(std::string* out) {
  const size_t before = out->size();
  append_deltas(out);
  if (out->size() == before && !generation_->done()) {
    if (surroundings_.aborting) throw ApiError(503, "the server is shutting down");
    if (generation_->poll(kSlice)) append_deltas(out);
  }
  if (generation_->done()) append_end(out);
}

void CallEventStream::append_error(std::string* out, const ApiError& error) {
  *out += sse_event(error_json(error));
  ended_ = failed_ = true;
}

void CallEventStream::append_roles(std::string* out) {
  roles_sent_ = true;
  if (generation_->call().kind != CallKind::kChat) return;
  for (size_t i = 0; i < generation_->num_choices(); ++i) {
    ChoiceOutput choice;
    choice.index = static_cast<int32_t>(i);
    if (generation_->call().return_token_ids) {
      choice.prompt_token_ids = &generation_->call().prompt_ids.front();
    }
    Usage usage = generation_->usage_of(i);
    usage.completion_tokens = 0;  // its first ones come with the next event
    *out += sse_event(writer_.role_chunk(choice, usage));
  }
}

void CallEventStream::append_deltas(std::string* out) {
  for (size_t i = 0; i < generation_->num_choices(); ++i) {
    const std::optional<ChoiceOutput> choice = generation_->take(i);
    if (!choice) continue;
    // Not sooner: clients measure their time to the first token by the first event.
    if (!roles_sent_) append_roles(out);
    *out += sse_event(writer_.delta_chunk(*choice, generation_->usage_of(i)));
  }
}

void CallEventStream::append_end(std::string* out) {
  if (generation_->call().include_usage) {
    *out += sse_event(writer_.usage_chunk(generation_->usage(), generation_->speculation()));
  }
  *out += sse_event("[DONE]");
  ended_ = true;
}

}  // namespace outrider
