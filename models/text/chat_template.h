// Chat templates: turns the messages of a request into the prompt text a model was trained on.
// A subset of Jinja of our own (lexer, parser, evaluator in models/text/jinja/), rendered the way
// Hugging Face renders it. Called on HTTP threads and by `outrider render`, never on the round.
// Invariant: every byte of the prompt that came from the request is covered by a literal span, so
// the tokenizer never turns a user's text into a special token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/text_span.h"

namespace outrider {

struct RenderedPrompt {
  std::string text;
  // Bytes that came from the request's data (message contents, names, tool texts, ...), sorted,
  // not overlapping and not touching. Special tokens must not be recognised inside them.
  std::vector<TextSpan> literal_spans;
};

// What one rendering may cost. Beyond a limit render() throws Error.
struct RenderLimits {
  size_t max_output_bytes = 16u << 20;
  int64_t max_steps = 1'000'000;      // evaluated nodes, loop turns and elements touched by filters
  std::optional<int64_t> now_unix_s;  // clock of strftime_now (local time); none: the system's
};

// Immutable after parse; one object may render on many threads at once.
class ChatTemplate {
 public:
  // Reads chat_template.jinja, else "chat_template" of tokenizer_config.json: a string, or a list
  // of {name, template} of which "default" is used, and "tool_use" when a request has tools.
  // nullopt when the folder has no template. Throws Error for one that is there but broken.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model_dir);

  // At most 64 KiB of source, nesting at most 64. Throws Error naming the line and what is wrong.
  // The special tokens are those of model_dir, or none without one.
  static ChatTemplate parse(std::string source, const std::filesystem::path& model_dir = {});

  // inputs_json: one JSON object {"messages": [...], "tools": [...], "add_generation_prompt": true,
  // ...}; every member is a variable of the template, but for continue_final_message: with it the
  // prompt ends with the last message's text, where Hugging Face ends it. Hand over the request's
  // own bytes: key order shows in the prompt, and a sorted re-dump would change it. bos_token,
  // eos_token and the other special tokens come from the model's folder unless given. Throws Error
  // for bad JSON (depth over 64 included), for anything the template does wrong, and for its
  // raise_exception, whose text it carries.
  RenderedPrompt render(std::string_view inputs_json, const RenderLimits& limits = {}) const;

  // The Jinja text, of all templates of the model.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace outrider
