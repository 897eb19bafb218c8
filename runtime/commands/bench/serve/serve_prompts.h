// The prompts of `bench serve`: random words or ids of a wanted number of tokens, the same for the
// same seed, with beginnings that several prompts share. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"
#include "runtime/commands/bench/serve/serve_traces.h"

namespace outrider {

// A run of random tokens. Equal keys give equal beginnings, whatever the lengths.
struct PromptPiece {
  uint64_t key = 0;
  int32_t num_tokens = 0;
};

struct ServePrompt {
  std::string text;  // one of text and ids
  std::vector<int32_t> ids;
  int32_t num_tokens = 0;  // with a tokenizer as it counts text, else as asked for
};

enum class PromptForm { kText, kIds };

// What prompts are made of.
struct PromptSource {
  // Text: words that are one token each. Ids: the ids of those words. Null: common English words,
  // taken for one token each.
  std::shared_ptr<const Tokenizer> tokenizer;
  int32_t vocab_size = 0;  // ids without a tokenizer: drawn from the upper part of [0, vocab_size)
  PromptForm form = PromptForm::kText;
};

class PromptMaker {
 public:
  // Throws Error when the source has nothing to draw from.
  explicit PromptMaker(PromptSource source);

  // The pieces one after the other. With a tokenizer, text is cut or filled up in its last piece so
  // that it has the sum of the pieces' tokens, special tokens counted.
  ServePrompt make(const std::vector<PromptPiece>& pieces) const;

 private:
  std::vector<uint32_t> draw(const PromptPiece& piece) const;
  ServePrompt make_text(const std::vector<PromptPiece>& pieces, int32_t num_tokens) const;

  PromptSource source_;
  std::vector<std::string> words_;  // each with the space before it
  std::vector<int32_t> ids_;        // of words_, or all that may be drawn
};

// A prompt of a file: its text and, when its line says so, how long the answer shall be.
struct FilePrompt {
  std::string text;
  int32_t output_len = 0;  // 0 = not said
};

// Lines of text, or JSON lines with "prompt" or "turns" (the first) and perhaps "output_tokens" (as
// vLLM's custom data sets) or "max_tokens". Throws Error naming `origin` and the line.
std::vector<FilePrompt> parse_prompt_lines(std::string_view text, const std::string& origin);

// The pieces of a trace's prompt: its blocks by hash id, scaled, and what is left over. `salt`
// makes other content of the same structure; `row` tells prompts without hash ids apart.
std::vector<PromptPiece> trace_pieces(const TraceRow& scaled_row,
                                      double length_scale,
                                      uint64_t salt,
                                      int32_t row);

}  // namespace outrider
