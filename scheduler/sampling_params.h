// How one request's tokens are drawn and how its drafts are judged. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {

// How draft tokens are judged (docs/architecture.md, section 4). kAuto: coupled for a request with
// a seed, else block. At temperature 0 all are the same.
enum class VerifyMode : uint8_t { kAuto, kStandard, kCoupled, kBlock };
// "auto", "standard", "block", "coupled"; nothing for another name.
std::optional<VerifyMode> verify_mode_from_name(std::string_view name);
const char* verify_mode_name(VerifyMode mode);

// What the draft does while the target verifies (docs/round.md, Asynchronous drafting): nothing; go
// on behind the block in flight; prepare blocks for the likely outcomes. kAuto = the server's.
enum class AsyncDrafting : uint8_t { kAuto, kOff, kChain, kCache };
// "auto", "off", "chain", "cache"; nothing for another name.
std::optional<AsyncDrafting> async_drafting_from_name(std::string_view name);
const char* async_drafting_name(AsyncDrafting mode);

// What a grammar's text is: a JSON schema, also one whose documents have no free whitespace, a
// regular expression, a grammar in EBNF (GBNF is one) or Lark, or a structural tag (xgrammar's JSON).
enum class GrammarKind : uint8_t { kJsonSchema, kCompactJson, kRegex, kEbnf, kLark, kStructuralTag };

// Reasoning that comes before what a grammar is about: from these tokens at the start of the
// output, or from the prompt, to the first of those.
struct ReasoningTokens {
  std::vector<int32_t> begin;
  std::vector<int32_t> end;  // empty: there is no reasoning
  bool is_begun = false;     // by the prompt

  bool operator==(const ReasoningTokens&) const = default;
};

// What the output must match, to its end.
struct Grammar {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;
  std::vector<int32_t> end_token_ids;  // allowed where the output may be over, and only there
  ReasoningTokens reasoning;           // which may be anything

  bool operator==(const Grammar&) const = default;
};

struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  float top_p = 1.0f;               // (0, 1]
  int32_t top_k = 0;                // 0 = off
  float min_p = 0.0f;               // [0, 1]
  float typical_p = 1.0f;           // (0, 1]; after the other filters
  float repetition_penalty = 1.0f;  // > 0; over prompt and output (Hugging Face's rule)
  float presence_penalty = 0.0f;    // over the output (OpenAI's rule)
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // by token id, ascending, no duplicates
  std::vector<int32_t> allowed_token_ids;       // nothing else may come out; ascending, empty = off
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that may not be completed
  std::shared_ptr<const Grammar> grammar;       // null without one
  std::optional<uint64_t> seed;  // given by the user; noise_seed is what the draws use
  uint64_t noise_seed = 0;       // = seed (mixed with the choice index), or drawn by the front end
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // stop_token_ids are masked until so many tokens are out
  std::vector<int32_t>
      stop_token_ids;            // ascending; includes the model's end tokens unless ignore_eos
  int32_t num_logprobs = -1;     // -1 none; n = the chosen token's and the n best
  bool prompt_logprobs = false;  // also for each prompt token (echo)
  VerifyMode verify_mode = VerifyMode::kAuto;
  int32_t max_draft_len = -1;  // -1 = the server's; 0 = no speculation for this request
  // Drafts are as long as max_draft_len and the server allow, whatever the planner would choose.
  bool fixed_draft_len = false;
  AsyncDrafting async_drafting = AsyncDrafting::kAuto;
};

}  // namespace outrider
