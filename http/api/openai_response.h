// The JSON that goes back: errors, completions, chat completions, their chunks, and the small
// routes. Pure functions from plain values to text; the JSON library stays in the .cpp. Bytes that
// are not UTF-8 become U+FFFD.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/api/openai_request.h"
#include "http/api/output_assembler.h"
#include "models/text/tokenizer.h"
#include "scheduler/engine.h"

namespace outrider {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;     // of prompt_tokens
  int64_t reasoning_tokens = 0;  // of completion_tokens
};

// Speculation of the one choice of a call, for metrics.speculative_decoding.
struct SpeculationReport {
  SpeculationStats stats;
  int32_t num_spec_tokens = 0;  // the draft length that was allowed
  // [k][j] = rounds in which j of k draft tokens were accepted.
  std::map<int32_t, std::vector<int32_t>> histograms;
  // One entry per round with draft tokens; empty unless detailed.
  std::vector<int32_t> accepted_per_round;
  std::vector<int32_t> drafted_per_round;

  // Notes the rounds between two states of a request's counters, at most one with draft tokens.
  void note(const SpeculationStats& later, bool detailed);
};

// One choice of a response, or what a chunk adds to it.
struct ChoiceOutput {
  int32_t index = 0;
  OutputDelta delta;
  AnswerPieces pieces;  // chat: what the text is made of
  bool has_called = false;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  bool is_first = false;  // of the call: nothing was taken of any choice before
  const std::vector<int32_t>* prompt_token_ids =
      nullptr;  // when asked for, in a choice's first chunk
  // Of a whole answer, when asked for: (the prompt, what of its second token and on).
  std::pair<const std::vector<int32_t>*, const std::vector<TokenLogprobs>*> prompt_logprobs;
};

struct ResponseHead {
  std::string id;
  int64_t created = 0;
  std::string model;
  std::string system_fingerprint;  // empty: null
};

class ResponseWriter {
 public:
  ResponseWriter(const CompletionCall& call,
                 ResponseHead head,
                 std::shared_ptr<const Tokenizer> tokenizer);

  std::string response(const std::vector<ChoiceOutput>& choices,
                       const Usage& usage,
                       const std::optional<SpeculationReport>& speculation) const;
  // Chat only: the chunk that names the role.
  std::string role_chunk(const ChoiceOutput& choice, const Usage& usage) const;
  std::string delta_chunk(const ChoiceOutput& choice, const Usage& usage) const;
  std::string usage_chunk(const Usage& usage,
                          const std::optional<SpeculationReport>& speculation) const;
  const std::string& id() const { return head_.id; }

 private:
  const CompletionCall& call_;
  ResponseHead head_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// "data: ...\n\n"
std::string sse_event(std::string_view data);

std::string model_json(const EngineInfo& info, int64_t created);
std::string model_list_json(const EngineInfo& info, int64_t created);
// build: further members, as HttpOptions has them.
std::string server_info_json(const EngineInfo& info,
                             const EngineStatus& status,
                             const std::vector<std::pair<std::string, std::string>>& build);

// How /tokenize lists tokens: as ids, as llama.cpp's [{"id", "piece"}], or as ids with token_strs,
// their vocabulary forms, beside them.
enum class TokenListing : uint8_t { kIds, kPieces, kIdsAndTexts };
std::string tokenize_json(const std::vector<int32_t>& ids,
                          TokenListing listing,
                          const Tokenizer& tokenizer,
                          int32_t max_model_len);
// What a client needs to tokenise through /tokenize alone: the texts of the special tokens.
std::string tokenizer_info_json(const Tokenizer& tokenizer, int32_t max_model_len);

// A flat object of texts and numbers, in the given order.
std::string text_object_json(const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace outrider
