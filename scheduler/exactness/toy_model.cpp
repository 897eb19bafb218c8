// See toy_model.h.
#include "scheduler/exactness/toy_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "runtime/base/numbers/rng.h"

namespace outrider {
namespace {

constexpr long double kNothing = -std::numeric_limits<long double>::infinity();

constexpr int32_t kOpening = 3;  // "d" of toy_grammar()
constexpr int32_t kNumLetters = 6;

bool toy_grammar_allows(int32_t token,
                        std::span<const int32_t> context,
                        int32_t num_prompt_tokens) {
  const bool is_open =
      std::ssize(context) > num_prompt_tokens && context.back() == kOpening;
  return is_open == (token > kOpening);
}

bool is_allowed(int32_t token,
                const SamplingParams& params,
                std::span<const int32_t> context,
                int32_t num_prompt_tokens) {
  if (params.grammar && !toy_grammar_allows(token, context, num_prompt_tokens)) return false;
  const std::vector<int32_t>& ids = params.allowed_token_ids;
  if (!ids.empty() && std::find(ids.begin(), ids.end(), token) == ids.end()) return false;
  std::vector<int32_t> text(context.begin(), context.end());
  text.push_back(token);
  for (const std::vector<int32_t>& word : params.bad_words) {
    if (word.empty() || word.size() > text.size()) continue;
    if (std::equal(word.begin(), word.end(), text.end() - static_cast<ptrdiff_t>(word.size()))) {
      return false;
    }
  }
  return true;
}

std::vector<long double> processed(std::span<const float> logits,
                                   const SamplingParams& params,
                                   std::span<const int32_t> context,
                                   int32_t num_prompt_tokens) {
  std::vector<long double> values(logits.begin(), logits.end());
  std::vector<int> seen(values.size(), 0);
  std::vector<int> output(values.size(), 0);
  for (size_t t = 0; t < context.size(); ++t) {
    seen[static_cast<size_t>(context[t])] = 1;
    if (static_cast<int32_t>(t) >= num_prompt_tokens) ++output[static_cast<size_t>(context[t])];
  }
  for (const auto& [token, bias] : params.logit_bias) values[static_cast<size_t>(token)] += bias;
  for (size_t v = 0; v < values.size(); ++v) {
    if (seen[v]) {
      values[v] = values[v] > 0 ? values[v] / params.repetition_penalty
                                : values[v] * params.repetition_penalty;
    }
    values[v] -= static_cast<long double>(params.frequency_penalty) * output[v];
    if (output[v] > 0) values[v] -= params.presence_penalty;
  }
  const auto num_output = static_cast<int32_t>(context.size()) - num_prompt_tokens;
  if (num_output < params.min_tokens) {
    for (int32_t token : params.stop_token_ids) values[static_cast<size_t>(token)] = kNothing;
  }
  for (size_t v = 0; v < values.size(); ++v) {
    if (!is_allowed(static_cast<int32_t>(v), params, context, num_prompt_tokens))
      values[v] = kNothing;
  }
  for (long double& value : values) value /= params.temperature;
  return values;
}

// Sums of twelve uniforms, close to normal: <random> has other numbers with every library.
class Spread {
 public:
  Spread(uint64_t seed, float spread) : seed_(seed), spread_(spread) {}
  float next() {
    double sum = -6.0;
    for (uint32_t block = 0; block < 3; ++block) {
      const PhiloxBlock bits = noise_block({seed_, next_, Stream::kCoupled, 0}, block);
      for (uint32_t lane : bits.lane) sum += uniform_from_bits(lane);
    }
    ++next_;
    return spread_ * static_cast<float>(sum);
  }

 private:
  uint64_t seed_;
  float spread_;
  uint32_t next_ = 0;
};

void normalise(std::vector<long double>& probs) {
  const long double sum = std::accumulate(probs.begin(), probs.end(), 0.0L);
  for (long double& prob : probs) prob /= sum;
}

// Locally typical sampling: the nearest surprisals to the entropy, until their mass is enough.
void keep_typical(std::vector<long double>& probs, long double typical_p) {
  normalise(probs);
  long double entropy = 0;
  for (long double prob : probs) entropy -= prob > 0 ? prob * std::log(prob) : 0;
  std::vector<std::pair<long double, size_t>> order;  // how far the surprisal is off, token
  for (size_t v = 0; v < probs.size(); ++v) {
    if (probs[v] > 0) order.emplace_back(std::fabs(-std::log(probs[v]) - entropy), v);
  }
  std::sort(order.begin(), order.end());
  long double reached = 0;
  size_t kept = 0;
  while (kept < order.size() && reached < typical_p) reached += probs[order[kept++].second];
  while (kept < order.size() && order[kept].first == order[kept - 1].first) ++kept;
  for (size_t i = kept; i < order.size(); ++i) probs[order[i].second] = 0;
}

}  // namespace

ToyModel::ToyModel(int32_t vocab_size, uint64_t seed, float spread) : vocab_size_(vocab_size) {
  Spread noise(seed, spread);
  const auto n = static_cast<size_t>(vocab_size);
  table_.resize(n * n * n);
  for (float& logit : table_) logit = noise.next();
}

ToyModel ToyModel::perturbed(uint64_t seed, float spread) const {
  Spread noise(seed, spread);
  ToyModel other = *this;
  for (float& logit : other.table_) logit += noise.next();
  return other;
}

std::span<const float> ToyModel::logits(std::span<const int32_t> context) const {
  const auto n = static_cast<size_t>(vocab_size_);
  const auto last = static_cast<size_t>(context[context.size() - 1]);
  const size_t before =
      context.size() > 1 ? static_cast<size_t>(context[context.size() - 2]) : size_t{0};
  return std::span(table_).subspan((before * n + last) * n, n);
}

std::vector<long double> exact_law(std::span<const float> logits,
                                   const SamplingParams& params,
                                   std::span<const int32_t> context,
                                   int32_t num_prompt_tokens) {
  const std::vector<long double> values = processed(logits, params, context, num_prompt_tokens);
  const long double max = *std::max_element(values.begin(), values.end());
  std::vector<long double> probs;
  for (long double value : values) probs.push_back(std::exp(value - max));
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  size_t kept = values.size();
  if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
  while (kept < order.size() && values[order[kept]] == values[order[kept - 1]]) ++kept;
  long double mass = 0;
  for (size_t i = 0; i < kept; ++i) mass += probs[order[i]];
  if (params.top_p < 1.0f) {
    long double reached = 0;
    size_t needed = 0;
    while (needed < kept && reached < params.top_p * mass) reached += probs[order[needed++]];
    while (needed < kept && values[order[needed]] == values[order[needed - 1]]) ++needed;
    kept = needed;
  }
  for (size_t i = 0; i < order.size(); ++i) {
    if (i >= kept || probs[order[i]] < params.min_p) probs[order[i]] = 0;
  }
  if (params.typical_p < 1.0f) keep_typical(probs, params.typical_p);
  normalise(probs);
  return probs;
}

std::vector<double> joint_law(const ToyModel& model,
                              const SamplingParams& params,
                              const std::vector<int32_t>& prompt,
                              int num_tokens) {
  std::vector<double> law = {1.0};
  std::vector<std::vector<int32_t>> contexts = {prompt};
  for (int t = 0; t < num_tokens; ++t) {
    std::vector<double> next_law;
    std::vector<std::vector<int32_t>> next_contexts;
    for (size_t c = 0; c < contexts.size(); ++c) {
      const auto probs = exact_law(
          model.logits(contexts[c]), params, contexts[c], static_cast<int32_t>(prompt.size()));
      for (int32_t v = 0; v < model.vocab_size(); ++v) {
        next_law.push_back(law[c] * static_cast<double>(probs[static_cast<size_t>(v)]));
        next_contexts.push_back(contexts[c]);
        next_contexts.back().push_back(v);
      }
    }
    law = std::move(next_law);
    contexts = std::move(next_contexts);
  }
  return law;
}

Grammar toy_grammar() { return {GrammarKind::kRegex, "([a-c]|d[ef])*", {}}; }

std::unique_ptr<const GrammarEngine> toy_grammar_engine(const SamplingParams& params) {
  if (params.grammar == nullptr) return nullptr;
  std::vector<std::string> letters;
  for (char letter = 'a'; std::ssize(letters) < kNumLetters; ++letter) letters.emplace_back(1, letter);
  return std::make_unique<const GrammarEngine>(letters, kNumLetters);
}

VocabShard even_shard(int32_t vocab_size, int rank, int num_shards) {
  return {vocab_size * rank / num_shards, vocab_size * (rank + 1) / num_shards, vocab_size};
}

}  // namespace outrider
