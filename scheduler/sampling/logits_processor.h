// What a request's parameters change in its logits before the temperature: logit_bias, then the
// min_tokens mask, then repetition, frequency and presence penalties (vLLM's order), and the token
// mask, which is last here and first there: what it forbids nothing brings back. Of the others only
// the few changed values of this shard are kept, by index; see row_view.h. Used by verify() and
// propose(), alike on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/short_list.h"
#include "scheduler/round.h"
#include "scheduler/rows/row_scanner.h"
#include "scheduler/sampling/shard_exchange.h"
#include "scheduler/sampling/token_mask.h"

namespace outrider {

struct ProcessorInput {
  const SamplingParams* params = nullptr;
  std::span<const int32_t> tokens;    // committed: prompt and output
  int32_t num_prompt_tokens = 0;      // of these
  std::span<const DraftToken> draft;  // row i follows draft[0 .. i), which count as output
  int32_t first_row = 0;              // rows first_row .. first_row + num_rows are processed
  int32_t num_rows = 0;
  LogitsAddress logits;  // [num_rows, row_stride]
  int32_t row_stride = 0;
  const TokenMask* mask = nullptr;  // null: made from params, which costs its construction
};

// The rows of one sequence. One that is kept from round to round has counted the tokens before and
// has its memory already.
class ProcessedRows {
 public:
  // The next rows. What input refers to must outlive them. Of one sequence, params and shard, whose
  // tokens are the last call's and more.
  void begin(const ProcessorInput& input, const VocabShard& shard);

  // What another has counted, of the same text and all else.
  void count_as(const ProcessedRows& other);

  // Asks for the raw values that are changed, when there are any; process() must follow the answer.
  void ask(RowQuestions& questions);
  void process();
  // The index-th of the num_rows. Valid until begin() is called again, and while the logits live.
  RowView row(int32_t index) const;

 private:
  struct TokenState {
    float bias = 0.0f;
    bool stops = false;  // masked while fewer than min_tokens are out
    bool in_prompt = false;
    int32_t output_count = 0;

    bool operator==(const TokenState&) const = default;
  };
  struct Penalties;
  using ShortTokens = ShortList<int32_t, 64>;
  void collect_allowed();
  void collect_indices();
  void drop_rejected();
  void merge(ShortTokens& added);
  TokenState uncounted(int32_t token) const;
  void count_tokens();
  void count_output(int32_t token, int32_t change);
  TokenState* state_of(int32_t token);

  ProcessorInput input_;
  VocabShard shard_;
  bool is_edited_ = false;          // these rows
  size_t num_counted_ = 0;          // of the tokens
  std::vector<int32_t> index_;      // ascending, into this shard's logits
  std::vector<TokenState> states_;  // one per index, after the tokens that are counted
  std::vector<float> values_;       // [num_rows, index_.size()]: raw, then processed
  std::vector<int32_t> drafted_;    // by the last rows, where tokens are counted
  std::vector<uint64_t> allowed_;   // [num_rows, AllowedBits::num_words()], empty without a mask
};

// Of input n of `num`: the one that is kept, or else one of `made`.
inline ProcessedRows& kept_or_made(ProcessedRows* kept,
                                   std::vector<ProcessedRows>& made,
                                   size_t n,
                                   size_t num) {
  if (kept != nullptr) return *kept;
  if (made.empty()) made.resize(num);
  return made[n];
}

// Whether the temperature means "take the most likely token". Below 1e-5 the division would drown
// every difference.
bool is_greedy(const SamplingParams& params);
float inverse_temperature(const SamplingParams& params);

}  // namespace outrider
