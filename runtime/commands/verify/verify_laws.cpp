// run_law_checks() of verify_pair.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/verify/verify_pair.h"

namespace outrider {
namespace {

constexpr uint64_t kNoiseSeed = 0x0D15EA5E;
constexpr double kControlTemperature = 1.5;
// Tokens whose log-probabilities are nearer than this could be ordered otherwise by the filter,
// which sees the logits.
constexpr float kLeastGap = 1e-5f;
constexpr int32_t kSampledTokens = 4;

using Pair = std::array<int32_t, 2>;

struct WeightedToken {
  int32_t token = 0;
  double logprob = 0.0;
};

// The laws of token 2 and of tokens 2 and 3, token 1 summed over.
struct PairLaw {
  std::map<int32_t, double> second;
  std::map<Pair, double> both;
};

// The kPairTopK likeliest tokens after every text of 0, 1 and 2 such tokens.
class LawTree {
 public:
  LawTree(const FrontEndContext& context, const std::vector<int32_t>& prompt)
      : context_(context), prompt_(prompt) {
    std::vector<std::vector<int32_t>> texts = {{}};
    for (int depth = 0; depth < 3; ++depth) {
      score(texts);
      std::vector<std::vector<int32_t>> longer;
      for (const std::vector<int32_t>& text : texts) {
        for (const WeightedToken& next : best_.at(text)) {
          longer.push_back(text);
          longer.back().push_back(next.token);
        }
      }
      texts = std::move(longer);
    }
  }

  PairLaw law(double temperature) const {
    PairLaw law;
    for (const auto& [first, first_prob] : probs({}, temperature)) {
      for (const auto& [second, second_prob] : probs({first}, temperature)) {
        law.second[second] += first_prob * second_prob;
        for (const auto& [third, third_prob] : probs({first, second}, temperature)) {
          law.both[{second, third}] += first_prob * second_prob * third_prob;
        }
      }
    }
    return law;
  }

 private:
  void score(const std::vector<std::vector<int32_t>>& texts) {
    const auto question = [&](size_t i) {
      Request asked;
      asked.prompt = prompt_;
      asked.prompt.insert(asked.prompt.end(), texts[i].begin(), texts[i].end());
      asked.params.temperature = 0.0f;
      asked.params.max_tokens = 1;
      asked.params.max_draft_len = 0;
      asked.params.num_logprobs = kPairTopK + 1;
      return asked;
    };
    const size_t num_in_flight = requests_in_flight(context_.config);
    ask_engine(context_, texts.size(), num_in_flight, question, [&](size_t i, const auto& answer) {
      const auto& top = answer.logprobs.at(0).top;
      if (top.size() <= kPairTopK) {
        throw Error(fmt::format("verify needs a vocabulary of more than {} tokens", kPairTopK));
      }
      if (top[kPairTopK - 1].second - top[kPairTopK].second < kLeastGap) {
        throw Error(
            "two tokens after the prompt are equally likely, so that top_k may keep either; "
            "choose another --prompt");
      }
      std::vector<WeightedToken>& best = best_[texts[i]];
      for (size_t v = 0; v < kPairTopK; ++v) {
        best.push_back({top[v].first, static_cast<double>(top[v].second)});
      }
    });
  }

  std::vector<std::pair<int32_t, double>> probs(const std::vector<int32_t>& text,
                                                double temperature) const {
    std::vector<std::pair<int32_t, double>> probs;
    double sum = 0.0;
    for (const WeightedToken& next : best_.at(text)) {
      probs.emplace_back(next.token, std::exp(next.logprob / temperature));
      sum += probs.back().second;
    }
    for (auto& [token, prob] : probs) prob /= sum;
    return probs;
  }

  const FrontEndContext& context_;
  const std::vector<int32_t>& prompt_;
  std::map<std::vector<int32_t>, std::vector<WeightedToken>> best_;
};

struct Sampled {
  std::map<int32_t, uint64_t> second;
  std::map<Pair, uint64_t> both;
  DraftCounts drafts;
};

// Counts in the order of the law's cells, and one cell of probability 0 for everything else.
template <typename Key>
ChiSquare compare(const std::map<Key, double>& law, const std::map<Key, uint64_t>& counts) {
  std::vector<double> probs;
  std::vector<uint64_t> observed;
  for (const auto& [key, prob] : law) {
    const auto found = counts.find(key);
    probs.push_back(prob);
    observed.push_back(found == counts.end() ? 0 : found->second);
  }
  probs.push_back(0.0);
  observed.push_back(0);
  for (const auto& [key, count] : counts) {
    if (!law.contains(key)) observed.back() += count;
  }
  return chi_square(observed, probs, {kFalseAlarm, kLeastExpected});
}

Sampled sample(const FrontEndContext& context,
               const std::vector<int32_t>& prompt,
               const PairChecks& options,
               const SampledMode& mode,
               uint64_t attempt) {
  Sampled sampled;
  const auto question = [&](size_t i) {
    Request asked;
    asked.prompt = prompt;
    asked.params.top_k = kPairTopK;
    asked.params.max_tokens = kSampledTokens;
    asked.params.verify_mode = mode.mode;
    asked.params.max_draft_len = mode.max_draft_len;
    asked.params.noise_seed = mix_seed(kNoiseSeed + mode.noise + (attempt << 8), i);
    return asked;
  };
  ask_engine(context,
             static_cast<size_t>(options.num_samples),
             requests_in_flight(context.config),
             question,
             [&](size_t i, const BenchAnswer& answer) {
               ++sampled.second[answer.tokens.at(1)];
               ++sampled.both[{answer.tokens.at(1), answer.tokens.at(2)}];
               add_drafts(answer, &sampled.drafts);
               if (i % 1000 == 999) {
                 options.progress(fmt::format(
                     "pair, {}: {} of {} answers sampled", mode.name, i + 1, options.num_samples));
               }
             });
  return sampled;
}

std::string problem_of(const ChiSquare& test, const SampledMode& mode, const DraftCounts& drafts) {
  if (test.degrees < 1) return "Every answer begins alike: choose another --prompt.";
  if (mode.max_draft_len == 0) return {};
  if (drafts.num_examined == 0) return "No draft token was judged: speculation did not take place.";
  if (drafts.num_accepted == 0 || drafts.num_accepted == drafts.num_examined) {
    return "Not both accepted and refused draft tokens: one side of the rule was not tried.";
  }
  return {};
}

}  // namespace

CheckRow pair_row(const char* check,
                  const ChiSquare& test,
                  const SampledMode& mode,
                  const DraftCounts& drafts,
                  int64_t num_sequences) {
  CheckRow row = law_row(CheckKind::kLaw, check, mode.name, test);
  row.num_sequences = num_sequences;
  row.problem = problem_of(test, mode, drafts);
  if (test.degrees > 0)
    row.found_distance = smallest_found_distance(test, static_cast<double>(num_sequences));
  if (mode.max_draft_len != 0) row.drafts = drafts;
  return row;
}

std::vector<CheckRow> run_law_checks(const FrontEndContext& context, const PairChecks& options) {
  const std::vector<int32_t> prompt = context.tokenizer->encode(options.prompt);
  if (prompt.empty()) throw Error("the prompt of verify has no tokens");
  const LawTree tree(context, prompt);
  const PairLaw law = tree.law(1.0);
  const PairLaw other_law = tree.law(kControlTemperature);
  std::vector<CheckRow> rows;
  std::vector<CheckRow> controls;
  const bool lookup_only = context.engine.info().draft == "ngram";
  for (const SampledMode& mode : kSampledModes) {
    Sampled sampled = sample(context, prompt, options, mode, 0);
    for (uint64_t attempt = 1; attempt < kMostAttempts && !lookup_only; ++attempt) {
      if (mode.max_draft_len == 0 || sampled.drafts.num_examined > 0) break;
      sampled = sample(context, prompt, options, mode, attempt);
    }
    if (lookup_only && mode.max_draft_len != 0 && sampled.drafts.num_examined == 0) {
      options.progress(
          "answers of four tokens repeat nothing: prompt lookup is judged on long texts");
      continue;
    }
    const auto add = [&](const char* check, const ChiSquare& test) {
      rows.push_back(pair_row(check, test, mode, sampled.drafts, options.num_samples));
    };
    add("pair: next token", compare(law.second, sampled.second));
    add("pair: two tokens", compare(law.both, sampled.both));
    if (mode.max_draft_len != 0) continue;
    controls.push_back(
        law_row(CheckKind::kControl,
                fmt::format("control: the law of temperature {}", kControlTemperature),
                mode.name,
                compare(other_law.both, sampled.both)));
    controls.back().num_sequences = options.num_samples;
  }
  rows.insert(rows.end(), controls.begin(), controls.end());
  return rows;
}

}  // namespace outrider
