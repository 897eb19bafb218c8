// See law_under_load.h.
#include "tests/ranks/law_under_load.h"

#include <algorithm>
#include <cmath>

namespace outrider::test {
namespace {

// How often a beginning is expected whose distribution is kept.
constexpr double kLeastExpected = 50;
constexpr double kNormalQuantile99 = 2.326;

// Temperature and penalties as OpenAI and Hugging Face define them; not the engine's code.
std::vector<double> next_token_law(ModelProbe& model,
                                   const std::vector<int32_t>& tokens,
                                   size_t prompt_len,
                                   const SamplingParams& params) {
  std::map<int32_t, int> output_counts;
  for (size_t i = 0; i < tokens.size(); ++i) output_counts[tokens[i]] += i < prompt_len ? 0 : 1;
  std::vector<double> probs;
  model.visit_logits(tokens, tokens.size() - 1, [&](size_t, std::span<const float> raw) {
    std::vector<float> logits(raw.begin(), raw.end());
    for (const auto& [token, count] : output_counts) {
      float& logit = logits[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      logit -= params.frequency_penalty * static_cast<float>(count);
      if (count > 0) logit -= params.presence_penalty;
    }
    probs = softmax(logits, static_cast<double>(params.temperature));
  });
  return probs;
}

}  // namespace

double Score::smallest_share(double limit) const {
  return (limit + kNormalQuantile99) * std::sqrt(variance) / std::abs(shift_by_draft);
}

Score& Score::operator+=(const Score& other) {
  sum += other.sum;
  variance += other.variance;
  shift_by_draft += other.shift_by_draft;
  return *this;
}

ExactLaw::ExactLaw(ProbedPair& pair,
                   const std::vector<int32_t>& prompt,
                   const SamplingParams& params,
                   double num_samples)
    : params_(params), prompt_len_(prompt.size()), least_prob_(kLeastExpected / num_samples) {
  std::vector<int32_t> tokens = prompt;
  add(pair, tokens, 1.0);
}

size_t ExactLaw::add(ProbedPair& pair, std::vector<int32_t>& tokens, double prob) {
  const size_t index = beginnings_.size();
  Beginning own{.prob = prob,
                .target_probs = next_token_law(pair.target, tokens, prompt_len_, params_),
                .draft_probs = next_token_law(pair.draft, tokens, prompt_len_, params_)};
  for (size_t d = 0; d < kNumDirections; ++d) {
    own.moments[d] = own.moments_of(static_cast<Direction>(d));
  }
  const std::vector<double> target_probs = own.target_probs;
  beginnings_.push_back(std::move(own));
  if (tokens.size() + 1 == prompt_len_ + kNumJudged) return index;
  for (size_t token = 0; token < target_probs.size(); ++token) {
    const double longer_prob = prob * target_probs[token];
    if (longer_prob < least_prob_) continue;
    tokens.push_back(static_cast<int32_t>(token));
    const size_t longer = add(pair, tokens, longer_prob);
    beginnings_[index].following[tokens.back()] = longer;
    tokens.pop_back();
  }
  return index;
}

double ExactLaw::Beginning::value(Direction direction, size_t token) const {
  const double target_prob = target_probs[token];
  const double draft_prob = draft_probs[token];
  if (direction == kLogProb) return std::log(target_prob);
  return direction == kDraftProb ? draft_prob : draft_prob / (draft_prob + target_prob);
}

ExactLaw::Moments ExactLaw::Beginning::moments_of(Direction direction) const {
  Moments found;
  double square = 0;
  for (size_t token = 0; token < target_probs.size(); ++token) {
    const double f = value(direction, token);
    found.mean += target_probs[token] * f;
    found.mean_by_draft += draft_probs[token] * f;
    square += target_probs[token] * f * f;
  }
  found.variance = square - found.mean * found.mean;
  return found;
}

Judgement ExactLaw::judge(const std::vector<FirstTokens>& samples, double upper_tail) const {
  const size_t vocab_size = beginnings_[0].target_probs.size();
  std::vector<uint64_t> counts(beginnings_.size() * vocab_size);
  Judgement judgement;
  for (const FirstTokens& sample : samples) {
    size_t at = 0;
    for (size_t place = 0; place < kNumJudged; ++place) {
      const Beginning& beginning = beginnings_[at];
      const auto token = static_cast<size_t>(sample[place]);
      for (size_t d = 0; d < kNumDirections; ++d) {
        const Moments& moments = beginning.moments[d];
        const double f = beginning.value(static_cast<Direction>(d), token);
        judgement.scores[place][d] +=
            {f - moments.mean, moments.variance, moments.mean_by_draft - moments.mean};
      }
      const auto longer = beginning.following.find(sample[place]);
      if (longer == beginning.following.end()) {
        ++counts[at * vocab_size + token];
        break;
      }
      at = longer->second;
    }
  }
  std::vector<double> law;
  for (const Beginning& beginning : beginnings_) {
    for (size_t token = 0; token < vocab_size; ++token) {
      const bool goes_on = beginning.following.contains(static_cast<int32_t>(token));
      law.push_back(goes_on ? 0.0 : beginning.prob * beginning.target_probs[token]);
    }
  }
  judgement.joint = chi_square(counts, law, {.upper_tail = upper_tail});
  return judgement;
}

FirstTokens ExactLaw::draw(std::mt19937_64& random, double draft_share) const {
  FirstTokens tokens{};
  std::uniform_real_distribution<double> uniform;
  size_t at = 0;
  for (int32_t& token : tokens) {
    const Beginning& beginning = beginnings_[at];
    const std::vector<double>& probs =
        uniform(random) < draft_share ? beginning.draft_probs : beginning.target_probs;
    double left = uniform(random);
    size_t chosen = 0;
    while (chosen + 1 < probs.size() && !(left < probs[chosen])) left -= probs[chosen++];
    token = static_cast<int32_t>(chosen);
    const auto longer = beginning.following.find(token);
    if (longer == beginning.following.end()) break;
    at = longer->second;
  }
  return tokens;
}

Starvation::Starvation() {
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    threads_.emplace_back([this, i] {
      std::mt19937 random(i);
      std::uniform_int_distribution<int> microseconds(10, 3000);
      while (!ends_) {
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds(random));
        while (std::chrono::steady_clock::now() < until) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(7 * microseconds(random)));
      }
    });
  }
}

Starvation::~Starvation() {
  ends_ = true;
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace outrider::test
