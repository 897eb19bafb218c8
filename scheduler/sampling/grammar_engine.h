// Structured output: which tokens a grammar lets come next. The parser is xgrammar's (Dong et al.,
// arXiv 2411.15100); a build without it has no engine. One engine per process and vocabulary, kept
// as long as the job. All ranks that are given the same grammar forbid the same tokens.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scheduler/sampling/token_mask.h"
#include "scheduler/sampling_params.h"

namespace outrider {

// A grammar as it is applied to one sequence. A function of the tokens after the prompt; the parser
// inside remembers where it was, so that a row costs one step. Used by one thread.
class GrammarMask : public TokenMask {
 public:
  // How many of these tokens may follow the history, one after the other.
  virtual size_t num_allowed(const TokenHistory& history,
                             std::span<const int32_t> tokens) const = 0;
  // Where the grammar leaves one continuation only: that text, cut into the longest tokens there
  // are; at most so many. Likely tokens and no certain ones: the model may cut the text otherwise.
  virtual std::vector<int32_t> forced_tokens(const TokenHistory& history, size_t most) const = 0;
};

class GrammarEngine {
 public:
  static bool is_built();
  // token_bytes[id]: what the token stands for in the middle of a text. An empty one (a special
  // token, padding) is never allowed. vocab_size: of the logits, at least token_bytes.size().
  // Throws Error in a build without xgrammar.
  GrammarEngine(const std::vector<std::string>& token_bytes, int32_t vocab_size);
  ~GrammarEngine();

  // Compiles the grammar, or finds it compiled. Returns what of a schema xgrammar says it leaves
  // out. Throws Error with one sentence when it is no grammar, or when that takes longer than
  // `limit`. From any thread.
  std::vector<std::string> check(const Grammar& grammar, std::chrono::milliseconds limit) const;
  // Whether it is compiled or about to be. From any thread.
  bool knows(const Grammar& grammar) const;
  // Begins to compile it on a thread of its own, unless there is much to compile already. Who needs
  // it soon calls this, and then finds it done. From any thread.
  void prepare(const Grammar& grammar) const;
  // As check() without a limit. From any thread.
  std::shared_ptr<const GrammarMask> mask(const Grammar& grammar) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace outrider
