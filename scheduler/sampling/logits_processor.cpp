// See logits_processor.h.
#include "scheduler/sampling/logits_processor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "scheduler/rows/row_sums.h"

namespace outrider {
namespace {

bool repeats_matter(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f && params.repetition_penalty > 0.0f;
}

bool output_matters(const SamplingParams& params) {
  return params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

int32_t num_output(const ProcessorInput& input) {
  return static_cast<int32_t>(input.tokens.size()) - input.num_prompt_tokens;
}

// A set of indices read back in ascending order, without sorting a long context.
class IndexSet {
 public:
  explicit IndexSet(const VocabShard& shard)
      : shard_(shard), words_(static_cast<size_t>(shard.size() + 63) / 64) {}
  void insert(int32_t token) {
    if (!shard_.contains(token)) return;
    const auto index = static_cast<uint32_t>(token - shard_.begin);
    words_[index / 64] |= uint64_t{1} << (index % 64);
  }
  std::vector<int32_t> ascending() const {
    std::vector<int32_t> list;
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t left = words_[w]; left != 0; left &= left - 1) {
        list.push_back(static_cast<int32_t>(w * 64) + std::countr_zero(left));
      }
    }
    return list;
  }

 private:
  const VocabShard& shard_;
  std::vector<uint64_t> words_;
};

}  // namespace

bool is_greedy(const SamplingParams& params) { return !(params.temperature >= 1e-5f); }

float inverse_temperature(const SamplingParams& params) {
  return is_greedy(params) ? 1.0f : 1.0f / params.temperature;
}

ProcessedRows::ProcessedRows(const ProcessorInput& input, const VocabShard& shard)
    : input_(input),
      params_(*input.params),
      shard_(shard),
      inverse_temperature_(inverse_temperature(*input.params)) {
  collect_allowed();
  collect_indices();
  if (index_.empty()) return;
  collect_states();
  values_.resize(static_cast<size_t>(input.num_rows) * index_.size());
}

void ProcessedRows::ask(RowQuestions& questions) {
  if (index_.empty()) return;
  questions.reads.push_back({.logits = input_.logits,
                             .stride = input_.row_stride,
                             .num_rows = input_.num_rows,
                             .index = index_,
                             .values = values_});
}

void ProcessedRows::process() {
  if (index_.empty()) return;
  const auto first_row = static_cast<size_t>(input_.first_row);
  for (const DraftToken& draft : input_.draft.first(first_row)) count_output(draft.token);
  for (int32_t row = 0; row < input_.num_rows; ++row) {
    const int32_t num_drafted = input_.first_row + row;
    if (row > 0) count_output(input_.draft[static_cast<size_t>(num_drafted) - 1].token);
    const bool mask_stops = num_output(input_) + num_drafted < params_.min_tokens;
    float* values = values_.data() + static_cast<size_t>(row) * index_.size();
    for (size_t i = 0; i < index_.size(); ++i) {
      values[i] = processed(values[i], states_[i], mask_stops);
    }
  }
}

void ProcessedRows::collect_indices() {
  const bool masks_stops =
      num_output(input_) < params_.min_tokens && !params_.stop_token_ids.empty();
  const bool repeats = repeats_matter(params_);
  const bool outputs = output_matters(params_);
  if (!masks_stops && !repeats && !outputs && params_.logit_bias.empty()) return;
  IndexSet set(shard_);
  for (const auto& [token, bias] : params_.logit_bias) set.insert(token);
  if (masks_stops) {
    for (int32_t token : params_.stop_token_ids) set.insert(token);
  }
  if (repeats || outputs) {
    const size_t first = repeats ? 0 : static_cast<size_t>(input_.num_prompt_tokens);
    for (int32_t token : input_.tokens.subspan(first)) set.insert(token);
    for (const DraftToken& draft : input_.draft) set.insert(draft.token);
  }
  index_ = set.ascending();
}

void ProcessedRows::collect_states() {
  states_.resize(index_.size());
  for (const auto& [token, bias] : params_.logit_bias) {
    if (TokenState* state = state_of(token)) state->bias = bias;
  }
  for (int32_t token : params_.stop_token_ids) {
    if (TokenState* state = state_of(token)) state->stops = true;
  }
  if (!repeats_matter(params_) && !output_matters(params_)) return;
  // A table from shard index to place, so that a long context costs one look-up per token.
  std::vector<int32_t> place(static_cast<size_t>(shard_.size()), -1);
  for (size_t i = 0; i < index_.size(); ++i) {
    place[static_cast<size_t>(index_[i])] = static_cast<int32_t>(i);
  }
  for (size_t t = 0; t < input_.tokens.size(); ++t) {
    if (!shard_.contains(input_.tokens[t])) continue;
    const int32_t found = place[static_cast<size_t>(input_.tokens[t] - shard_.begin)];
    if (found < 0) continue;
    TokenState& state = states_[static_cast<size_t>(found)];
    state.seen = true;
    if (t >= static_cast<size_t>(input_.num_prompt_tokens)) ++state.output_count;
  }
}

void ProcessedRows::collect_allowed() {
  std::shared_ptr<const TokenMask> made;
  const TokenMask* mask = input_.mask;
  if (mask == nullptr) {
    made = make_token_mask(params_);
    mask = made.get();
  }
  if (mask == nullptr) return;
  std::vector<int32_t> drafted;
  for (const DraftToken& draft : input_.draft) drafted.push_back(draft.token);
  const size_t num_words = AllowedBits::num_words(shard_);
  allowed_.assign(static_cast<size_t>(input_.num_rows) * num_words, ~uint64_t{0});
  for (int32_t row = 0; row < input_.num_rows; ++row) {
    const size_t first_word = static_cast<size_t>(row) * num_words;
    AllowedBits allowed(shard_, std::span(allowed_).subspan(first_word, num_words));
    mask->restrict_next(
        {.committed = input_.tokens,
         .num_prompt_tokens = input_.num_prompt_tokens,
         .drafted = std::span(drafted).first(static_cast<size_t>(input_.first_row + row))},
        allowed);
  }
}

void ProcessedRows::count_output(int32_t token) {
  if (TokenState* state = state_of(token)) {
    state->seen = true;
    ++state->output_count;
  }
}

ProcessedRows::TokenState* ProcessedRows::state_of(int32_t token) {
  if (!shard_.contains(token)) return nullptr;
  const int32_t index = token - shard_.begin;
  const auto found = std::lower_bound(index_.begin(), index_.end(), index);
  if (found == index_.end() || *found != index) return nullptr;
  return &states_[static_cast<size_t>(found - index_.begin())];
}

float ProcessedRows::processed(float raw, const TokenState& state, bool mask_stops) const {
  if (state.stops && mask_stops) return kMasked;
  float value = raw + state.bias;
  if (state.seen && repeats_matter(params_)) {
    value = value > 0.0f ? value / params_.repetition_penalty : value * params_.repetition_penalty;
  }
  value -= params_.frequency_penalty * static_cast<float>(state.output_count);
  if (state.output_count > 0) value -= params_.presence_penalty;
  if (std::isnan(value)) return kMasked;  // a bias of infinity; a raw NaN is caught in the raw row
  // Lower than any real logit is a mask; the upper bound keeps the division by the temperature
  // finite.
  return value < -kLargestLogit ? kMasked : std::min(value, kLargestLogit);
}

RowView ProcessedRows::row(int32_t index) const {
  const auto at = static_cast<size_t>(index);
  RowView view;
  view.logits = input_.logits + index * static_cast<int64_t>(input_.row_stride);
  view.size = shard_.size();
  view.first_token = shard_.begin;
  view.edit_index = index_;
  if (!index_.empty()) {
    view.edit_value = std::span(values_).subspan(at * index_.size(), index_.size());
  }
  if (!allowed_.empty()) {
    const size_t num_words = AllowedBits::num_words(shard_);
    view.allowed = std::span(allowed_).subspan(at * num_words, num_words);
  }
  view.inverse_temperature = inverse_temperature_;
  return view;
}

}  // namespace outrider
