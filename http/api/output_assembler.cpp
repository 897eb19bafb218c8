// See output_assembler.h.
#include "http/api/output_assembler.h"

#include <algorithm>
#include <string_view>

namespace outrider {
namespace {

constexpr size_t kContextTokens = 16;

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

OutputAssembler::OutputAssembler(std::shared_ptr<const Tokenizer> tokenizer, Options options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      decoder_(tokenizer_, options_.skip_special_tokens, options_.shown_special_ids) {}

void OutputAssembler::continue_prompt(std::span<const int32_t> prompt) {
  // One token that is text by itself puts the decoder in the middle of a text. A token that leaves
  // bytes undecided will not do: they would come out again in front of the output.
  const size_t num_tried = std::min(prompt.size(), kContextTokens);
  for (size_t i = 1; i <= num_tried; ++i) {
    StreamingDecoder decoder(
        tokenizer_, options_.skip_special_tokens, options_.shown_special_ids);
    const bool has_text = !decoder.push(prompt[prompt.size() - i]).empty();
    StreamingDecoder probe = decoder;
    if (has_text && probe.flush().empty()) {
      decoder_ = std::move(decoder);
      return;
    }
  }
}

void OutputAssembler::echo_prompt(std::span<const int32_t> prompt, size_t num_added) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    append_token(
        {.id = prompt[i], .origin = TokenOrigin::kPlain, .from_prompt = true, .logprobs = {}},
        decoder_.push(prompt[i], i < num_added));
  }
  stop_floor_ = searched_bytes_ = text_.size();
  if (options_.wants_prompt_logprobs && prompt.size() > 1) {
    next_prompt_logprob_ = 1;
    num_prompt_pending_ = prompt.size() - 1;
  }
}

void OutputAssembler::append_text(const std::string& text) {
  text_ += text;
  text_characters_ += count_characters(text);
}

void OutputAssembler::append_token(OutputToken token, const std::string& text) {
  token.text_offset = text_characters_;
  append_text(text);
  pending_.push_back({std::move(token), text_.size()});
}

void OutputAssembler::add(const ResultEvent& event) {
  if (finished()) return;
  for (const TokenLogprobs& logprobs : event.prompt_logprobs) {
    if (num_prompt_pending_ == 0) break;
    pending_[next_prompt_logprob_++].token.logprobs = logprobs;
    --num_prompt_pending_;
  }
  for (size_t i = 0; i < event.tokens.size() && !finished() && !options_.drop_output; ++i) {
    OutputToken token;
    token.id = event.tokens[i];
    if (i < event.origins.size()) token.origin = event.origins[i];
    if (i < event.logprobs.size()) token.logprobs = event.logprobs[i];
    append_token(std::move(token), decoder_.push(event.tokens[i]));
    ++num_tokens_;
    apply_stop_strings();
  }
  if (finished() || event.finish_reason == FinishReason::kNone) return;
  size_t end_token_offset = std::string::npos;
  if (event.stop_token && !options_.drop_output) {
    if (options_.include_stop_text) {
      end_token_offset = text_characters_;
      append_text(decoder_.push(*event.stop_token));
    }
    const auto& ids = options_.user_stop_token_ids;
    if (std::find(ids.begin(), ids.end(), *event.stop_token) != ids.end()) {
      stop_reason_.token_id = event.stop_token;
    }
  }
  finish(event.finish_reason);
  append_end_token(event, std::min(end_token_offset, text_characters_));
}

// The stop token is a token as the others, as with vLLM; only its text is not shown.
void OutputAssembler::append_end_token(const ResultEvent& event, size_t text_offset) {
  if (!event.stop_token || options_.drop_output || stop_reason_.text) return;
  OutputToken token;
  token.id = *event.stop_token;
  token.origin = event.stop_token_origin;
  token.text_offset = text_offset;
  token.logprobs = event.stop_token_logprobs;
  pending_.push_back({std::move(token), text_.size()});
  ++num_tokens_;
}

void OutputAssembler::finish(FinishReason reason) {
  if (finished()) return;
  append_text(decoder_.flush());
  if (!options_.drop_output) apply_stop_strings();
  if (finished()) return;
  finish_reason_ =
      options_.drop_output && reason == FinishReason::kStop ? FinishReason::kLength : reason;
  if (!pending_.empty()) pending_.back().text_end = text_.size();
}

void OutputAssembler::apply_stop_strings() {
  if (options_.stop.empty()) return;
  if (num_tokens_ < options_.min_tokens) {
    stop_floor_ = searched_bytes_ = text_.size();
    return;
  }
  // The stop string that is complete first wins; among those that end together the longest.
  size_t best_start = std::string::npos;
  size_t best_end = std::string::npos;
  const std::string* best = nullptr;
  for (const std::string& stop : options_.stop) {
    const size_t overlap = std::min(searched_bytes_, stop.size() - 1);
    const size_t start = text_.find(stop, std::max(stop_floor_, searched_bytes_ - overlap));
    if (start == std::string::npos) continue;
    const size_t end = start + stop.size();
    if (end < best_end || (end == best_end && start < best_start)) {
      best_start = start;
      best_end = end;
      best = &stop;
    }
  }
  searched_bytes_ = text_.size();
  if (best) end_at(options_.include_stop_text ? best_end : best_start, *best);
}

void OutputAssembler::end_at(size_t position, const std::string& stop) {
  text_.resize(position);
  for (Pending& pending : pending_) pending.text_end = std::min(pending.text_end, position);
  finish_reason_ = FinishReason::kStop;
  stop_reason_.text = stop;
}

size_t OutputAssembler::held_bytes() const {
  if (finished()) return 0;
  const size_t searchable = text_.size() - stop_floor_;
  size_t held = 0;
  for (const std::string& stop : options_.stop) {
    for (size_t length = std::min(stop.size() - 1, searchable); length > held; --length) {
      if (text_.compare(text_.size() - length, length, stop, 0, length) == 0) held = length;
    }
  }
  return held;
}

OutputDelta OutputAssembler::take() {
  OutputDelta delta;
  if (num_prompt_pending_ > 0 && !finished()) return delta;
  const size_t limit = text_.size() - held_bytes();
  size_t end = released_bytes_;
  while (!pending_.empty() && pending_.front().text_end <= limit) {
    end = std::max(end, pending_.front().text_end);
    delta.tokens.push_back(std::move(pending_.front().token));
    pending_.pop_front();
  }
  if (finished()) end = text_.size();
  delta.text = text_.substr(released_bytes_, end - released_bytes_);
  released_bytes_ = end;
  return delta;
}

}  // namespace outrider
