// See logits_processor.h.
#include "scheduler/sampling/logits_processor.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

}  // namespace

bool is_greedy(const SamplingParams& params) { return !(params.temperature >= 1e-5f); }

float inverse_temperature(const SamplingParams& params) {
  return is_greedy(params) ? 1.0f : 1.0f / params.temperature;
}

void ProcessedRows::begin(const ProcessorInput& input, const VocabShard& shard) {
  input_ = input;
  shard_ = shard;
  collect_indices();
  collect_allowed();
  values_.resize(is_edited_ ? static_cast<size_t>(input.num_rows) * index_.size() : 0);
}

void ProcessedRows::count_as(const ProcessedRows& other) {
  num_counted_ = other.num_counted_;
  index_ = other.index_;
  states_ = other.states_;
  drafted_ = other.drafted_;
}

void ProcessedRows::ask(RowQuestions& questions) {
  if (values_.empty()) return;
  questions.reads.push_back({.logits = input_.logits,
                             .stride = input_.row_stride,
                             .num_rows = input_.num_rows,
                             .index = index_,
                             .values = values_});
}

// Of the parameters, by value: what a loop over a row keeps at hand.
struct ProcessedRows::Penalties {
  bool mask_stops = false;
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;

  float processed(float raw, const TokenState& state) const {
    if (state.stops && mask_stops) return kMasked;
    float value = raw + state.bias;
    const bool seen = state.in_prompt || state.output_count > 0;
    if (seen && repetition != 1.0f) value = value > 0.0f ? value / repetition : value * repetition;
    value -= frequency * static_cast<float>(state.output_count);
    if (state.output_count > 0) value -= presence;
    if (std::isnan(value))
      return kMasked;  // a bias of infinity; a raw NaN is caught in the raw row
    // Lower than any real logit is a mask; the upper bound keeps the division by the temperature
    // finite.
    return value < -kLargestLogit ? kMasked : std::min(value, kLargestLogit);
  }
};

void ProcessedRows::process() {
  if (values_.empty()) return;
  const SamplingParams& params = *input_.params;
  Penalties penalties{.repetition = repeats_matter(params) ? params.repetition_penalty : 1.0f,
                      .presence = params.presence_penalty,
                      .frequency = params.frequency_penalty};
  const int32_t num_drafted = input_.first_row + input_.num_rows - 1;
  const auto token_at = [&](int32_t i) { return input_.draft[static_cast<size_t>(i)].token; };
  for (int32_t i = 0; i < input_.first_row; ++i) count_output(token_at(i), 1);
  for (int32_t row = 0; row < input_.num_rows; ++row) {
    const int32_t num_before = input_.first_row + row;
    if (row > 0) count_output(token_at(num_before - 1), 1);
    penalties.mask_stops = num_output(input_) + num_before < params.min_tokens;
    float* values = values_.data() + static_cast<size_t>(row) * index_.size();
    for (size_t i = 0; i < index_.size(); ++i) {
      values[i] = penalties.processed(values[i], states_[i]);
    }
  }
  for (int32_t i = 0; i < num_drafted; ++i) count_output(token_at(i), -1);
}

void ProcessedRows::collect_indices() {
  const SamplingParams& params = *input_.params;
  const bool masks_stops = num_output(input_) < params.min_tokens && !params.stop_token_ids.empty();
  const bool repeats = repeats_matter(params);
  const bool counts = repeats || output_matters(params);
  is_edited_ = masks_stops || counts || !params.logit_bias.empty();
  if (!is_edited_) return;
  drop_rejected();
  ShortTokens added;  // as indices
  const auto add = [&](int32_t token) {
    if (shard_.contains(token) && state_of(token) == nullptr) added.push_back(token - shard_.begin);
  };
  if (index_.empty()) {  // the first rows
    for (const auto& [token, bias] : params.logit_bias) add(token);
    for (const int32_t token : params.stop_token_ids) add(token);
  }
  drafted_.clear();
  if (counts) {
    // Without a repetition penalty the prompt's tokens are as any others.
    if (!repeats)
      num_counted_ = std::max(num_counted_, static_cast<size_t>(input_.num_prompt_tokens));
    for (const int32_t token : input_.tokens.subspan(num_counted_)) add(token);
    for (const DraftToken& draft : input_.draft) {
      add(draft.token);
      drafted_.push_back(draft.token);
    }
  }
  merge(added);
  if (counts) count_tokens();
}

// Tokens of the last rows' draft; accepted ones are added again.
void ProcessedRows::drop_rejected() {
  for (const int32_t token : drafted_) {
    const TokenState* const state = state_of(token);
    if (state == nullptr || *state != TokenState{}) continue;
    const auto place = state - states_.data();
    states_.erase(states_.begin() + place);
    index_.erase(index_.begin() + place);
  }
}

void ProcessedRows::merge(ShortTokens& added) {
  if (added.empty()) return;
  std::sort(added.begin(), added.end());
  size_t num_new = static_cast<size_t>(std::unique(added.begin(), added.end()) - added.begin());
  size_t num_old = index_.size();
  index_.resize(num_old + num_new);
  states_.resize(num_old + num_new);
  while (num_new > 0) {  // from the last place on
    const size_t place = num_old + num_new - 1;
    const bool is_new = num_old == 0 || index_[num_old - 1] < added[num_new - 1];
    index_[place] = is_new ? added[--num_new] : index_[--num_old];
    states_[place] = is_new ? uncounted(shard_.begin + index_[place]) : states_[num_old];
  }
}

ProcessedRows::TokenState ProcessedRows::uncounted(int32_t token) const {
  const SamplingParams& params = *input_.params;
  TokenState state;
  const auto biased =
      std::ranges::lower_bound(params.logit_bias, token, {}, &std::pair<int32_t, float>::first);
  if (biased != params.logit_bias.end() && biased->first == token) state.bias = biased->second;
  state.stops = std::ranges::binary_search(params.stop_token_ids, token);
  return state;
}

void ProcessedRows::count_tokens() {
  for (; num_counted_ < input_.tokens.size(); ++num_counted_) {
    TokenState* const state = state_of(input_.tokens[num_counted_]);
    if (state == nullptr) continue;  // another shard's
    if (num_counted_ < static_cast<size_t>(input_.num_prompt_tokens)) {
      state->in_prompt = true;
    } else {
      ++state->output_count;
    }
  }
}

void ProcessedRows::collect_allowed() {
  allowed_.clear();
  std::shared_ptr<const TokenMask> made;
  const TokenMask* mask = input_.mask;
  if (mask == nullptr) {
    made = make_token_mask(*input_.params);
    mask = made.get();
  }
  if (mask == nullptr) return;
  ShortTokens drafted;
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

void ProcessedRows::count_output(int32_t token, int32_t change) {
  if (TokenState* state = state_of(token)) state->output_count += change;
}

ProcessedRows::TokenState* ProcessedRows::state_of(int32_t token) {
  if (!shard_.contains(token)) return nullptr;
  const auto found = std::lower_bound(index_.begin(), index_.end(), token - shard_.begin);
  if (found == index_.end() || *found != token - shard_.begin) return nullptr;
  return &states_[static_cast<size_t>(found - index_.begin())];
}

RowView ProcessedRows::row(int32_t index) const {
  const auto at = static_cast<size_t>(index);
  RowView view;
  view.logits = input_.logits + index * static_cast<int64_t>(input_.row_stride);
  view.size = shard_.size();
  view.first_token = shard_.begin;
  if (!values_.empty()) {
    view.edit_index = index_;
    view.edit_value = std::span(values_).subspan(at * index_.size(), index_.size());
  }
  if (!allowed_.empty()) {
    const size_t num_words = AllowedBits::num_words(shard_);
    view.allowed = std::span(allowed_).subspan(at * num_words, num_words);
  }
  view.inverse_temperature = inverse_temperature(*input_.params);
  return view;
}

}  // namespace outrider
