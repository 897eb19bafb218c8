// Turns the tokens of one choice into text that may be shown: decodes as they come, finds stop
// strings across token boundaries, and holds back what could still become one. Text and tokens are
// released together, at token boundaries, so that log-probabilities, ids and origins stay parallel
// to the text whether streamed or not. Owned by the thread that answers the call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/text/streaming_decoder.h"
#include "models/text/tokenizer.h"
#include "scheduler/request.h"

namespace outrider {

struct OutputToken {
  int32_t id = 0;
  TokenOrigin origin = TokenOrigin::kPlain;
  bool from_prompt = false;               // echoed
  size_t text_offset = 0;                 // characters before this token's text
  std::optional<TokenLogprobs> logprobs;  // absent for the first token of an echoed prompt
};

struct OutputDelta {
  std::string text;
  std::vector<OutputToken> tokens;
};

// Why the choice ended, beyond its finish reason: a stop string, or one of the request's stop token
// ids.
struct StopReason {
  std::optional<std::string> text;
  std::optional<int32_t> token_id;
};

class OutputAssembler {
 public:
  struct Options {
    std::vector<std::string> stop;
    bool include_stop_text = false;
    bool skip_special_tokens = true;
    std::vector<int32_t> shown_special_ids;  // all the same; ascending
    int32_t min_tokens = 0;  // stop strings before that many tokens do not count
    std::vector<int32_t> user_stop_token_ids;
    bool wants_prompt_logprobs = false;
    bool drop_output = false;  // only the echoed prompt is wanted
  };

  OutputAssembler(std::shared_ptr<const Tokenizer> tokenizer, Options options);

  // Either of these once, before add(). continue_prompt: the output is read as the text that
  // follows the prompt (SentencePiece-style tokenizers drop a leading space otherwise).
  // echo_prompt: the prompt is part of the output, its special tokens too but for the first
  // num_added, which the tokenizer put before a text.
  void continue_prompt(std::span<const int32_t> prompt);
  void echo_prompt(std::span<const int32_t> prompt, size_t num_added = 0);

  // Events after the end are ignored: what was speculated past a stop string does not exist.
  void add(const ResultEvent& event);
  // Ends it without the engine's word, e.g. when only the prompt was wanted.
  void finish(FinishReason reason);

  // What can be shown now and was not taken before.
  OutputDelta take();

  bool finished() const { return finish_reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_reason_; }
  const StopReason& stop_reason() const { return stop_reason_; }
  // Generated tokens up to and including the one that completed a stop string, or the stop token.
  int32_t num_tokens() const { return num_tokens_; }

 private:
  struct Pending {
    OutputToken token;
    size_t text_end = 0;  // in text_, bytes
  };

  void append_token(OutputToken token, const std::string& text);
  void append_text(const std::string& text);
  void append_end_token(const ResultEvent& event, size_t text_offset);
  void apply_stop_strings();
  void end_at(size_t position, const std::string& stop);
  size_t held_bytes() const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  Options options_;
  StreamingDecoder decoder_;
  std::string text_;            // everything so far, echo included
  size_t text_characters_ = 0;  // characters in text_
  size_t released_bytes_ = 0;
  size_t stop_floor_ = 0;      // stop strings must start here or later
  size_t searched_bytes_ = 0;  // text_ that was already searched
  std::deque<Pending> pending_;
  size_t num_prompt_pending_ = 0;   // echoed tokens that still lack their log-probabilities
  size_t next_prompt_logprob_ = 0;  // index in pending_ of the next to get them
  int32_t num_tokens_ = 0;
  FinishReason finish_reason_ = FinishReason::kNone;
  StopReason stop_reason_;
};

}  // namespace outrider
