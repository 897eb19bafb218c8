// run_context_checks() of verify_pair.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/numbers/rng.h"
#include "runtime/commands/verify/verify_pair.h"

namespace outrider {
namespace {

constexpr uint64_t kNoiseSeed = 0x7E5701D;
constexpr int32_t kTextTokens = 192;
constexpr float kControlTemperature = 1.5f;
// Classes of tokens by their rank in the target's law: the last rank of each, and all the rest.
constexpr std::array<int32_t, 6> kLastRank = {1, 2, 3, 4, 8, 16};
constexpr size_t kNumClasses = kLastRank.size() + 1;
using Classes = std::array<double, kNumClasses>;

size_t class_of(int32_t rank) {
  return static_cast<size_t>(std::lower_bound(kLastRank.begin(), kLastRank.end(), rank) -
                             kLastRank.begin());
}

// The probabilities of the classes under the law whose likeliest tokens these are.
Classes law_of(const TokenLogprobs& scored) {
  Classes law{};
  double rest = 1.0;
  for (size_t i = 0; i < scored.top.size(); ++i) {
    const double prob = std::exp(static_cast<double>(scored.top[i].second));
    law[class_of(static_cast<int32_t>(i) + 1)] += prob;
    rest -= prob;
  }
  law.back() = std::max(rest, 0.0);
  return law;
}

// Adds up, over positions, which class came out and how likely the classes were. Given the text
// before it, every token's class follows its law, so the difference of the sums has mean 0 and the
// sum of the single covariances (a martingale); their quadratic form is chi-square with one degree
// less than there are classes.
class ClassSums {
 public:
  void add(size_t chosen, const Classes& law) {
    ++num_positions_;
    difference_[chosen] += 1.0;
    for (size_t a = 0; a < kNumClasses; ++a) {
      difference_[a] -= law[a];
      expected_[a] += law[a];
      for (size_t b = 0; b < kNumClasses; ++b) {
        covariance_[a][b] += (a == b ? law[a] : 0.0) - law[a] * law[b];
      }
    }
  }

  int64_t num_positions() const { return num_positions_; }

  ChiSquare test() const {
    const std::vector<std::vector<size_t>> groups = pooled();
    ChiSquare test;
    test.degrees = static_cast<int>(groups.size()) - 1;
    if (test.degrees < 1) return test;
    test.limit = chi_square_quantile(test.degrees, kFalseAlarm);
    test.statistic = quadratic_form(groups);
    return test;
  }

 private:
  // Neighbouring classes together until each is expected often enough.
  std::vector<std::vector<size_t>> pooled() const {
    std::vector<std::vector<size_t>> groups;
    double expected = kLeastExpected;
    for (size_t a = 0; a < kNumClasses; ++a) {
      if (expected >= kLeastExpected) {
        groups.emplace_back();
        expected = 0.0;
      }
      groups.back().push_back(a);
      expected += expected_[a];
    }
    if (expected < kLeastExpected && groups.size() > 1) {
      const std::vector<size_t> last = groups.back();
      groups.pop_back();
      groups.back().insert(groups.back().end(), last.begin(), last.end());
    }
    return groups;
  }

  // d' C^-1 d of all groups but the last, by Cholesky's factor of C.
  double quadratic_form(const std::vector<std::vector<size_t>>& groups) const {
    const size_t n = groups.size() - 1;
    std::vector<std::vector<double>> factor(n, std::vector<double>(n, 0.0));
    double sum = 0.0;
    std::vector<double> solved(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t a : groups[i]) solved[i] += difference_[a];
      for (size_t j = 0; j <= i; ++j) {
        double value = 0.0;
        for (size_t a : groups[i]) {
          for (size_t b : groups[j]) value += covariance_[a][b];
        }
        for (size_t k = 0; k < j; ++k) value -= factor[i][k] * factor[j][k];
        factor[i][j] = i == j ? std::sqrt(value) : value / factor[j][j];
      }
      for (size_t k = 0; k < i; ++k) solved[i] -= factor[i][k] * solved[k];
      solved[i] /= factor[i][i];
      sum += solved[i] * solved[i];
    }
    return sum;
  }

  int64_t num_positions_ = 0;
  Classes difference_{};
  Classes expected_{};
  std::array<Classes, kNumClasses> covariance_{};
};

class ContextChecks {
 public:
  ContextChecks(const FrontEndContext& context, const PairChecks& options)
      : context_(context), options_(options), prompt_(context.tokenizer->encode(options.prompt)) {
    const int32_t room = context.engine.info().max_model_len - static_cast<int32_t>(prompt_.size());
    text_tokens_ = std::min(kTextTokens, room);
    if (text_tokens_ < 2) throw Error("the prompt of verify leaves no room for an answer");
    num_texts_ =
        static_cast<size_t>((options.num_context_tokens + text_tokens_ - 1) / text_tokens_);
  }

  CheckRow run(const SampledMode& mode) {
    std::vector<std::vector<int32_t>> texts = write(mode, 1.0f, 0);
    for (uint64_t attempt = 1; attempt < kMostAttempts; ++attempt) {
      if (mode.max_draft_len == 0 || drafts_.num_examined > 0) break;
      texts = write(mode, 1.0f, attempt);
    }
    const ChiSquare test = score(texts);
    return pair_row("pair: every token of long texts", test, mode, drafts_, sums_.num_positions());
  }

  // Texts of another temperature, judged as if they were not.
  CheckRow control(const SampledMode& mode) {
    const ChiSquare test = score(write(mode, kControlTemperature, 0));
    CheckRow row =
        law_row(CheckKind::kControl,
                fmt::format("control: long texts of temperature {}", kControlTemperature),
                mode.name,
                test);
    row.num_sequences = sums_.num_positions();
    return row;
  }

 private:
  std::vector<std::vector<int32_t>> write(const SampledMode& mode,
                                          float temperature,
                                          uint64_t attempt) {
    std::vector<std::vector<int32_t>> texts;
    const auto question = [&](size_t i) {
      Request asked;
      asked.prompt = prompt_;
      asked.params.temperature = temperature;
      asked.params.max_tokens = text_tokens_;
      asked.params.verify_mode = mode.mode;
      asked.params.max_draft_len = mode.max_draft_len;
      asked.params.noise_seed = mix_seed(kNoiseSeed + mode.noise + (attempt << 8), i);
      return asked;
    };
    ask_engine(context_,
               num_texts_,
               requests_in_flight(context_.config),
               question,
               [&](size_t, const BenchAnswer& answer) {
                 texts.push_back(prompt_);
                 texts.back().insert(
                     texts.back().end(), answer.tokens.begin(), answer.tokens.end());
                 add_drafts(answer, &drafts_);
               });
    options_.progress(fmt::format("pair, {}: {} texts written", mode.name, texts.size()));
    return texts;
  }

  ChiSquare score(const std::vector<std::vector<int32_t>>& texts) {
    const auto question = [&](size_t i) {
      Request asked;
      asked.prompt = texts[i];
      asked.params.max_tokens = 0;
      asked.params.prompt_logprobs = true;
      asked.params.num_logprobs = kLastRank.back();
      return asked;
    };
    ask_engine(context_,
               texts.size(),
               requests_in_flight(context_.config),
               question,
               [&](size_t, const BenchAnswer& answer) {
                 // The first entry is of the prompt's second token.
                 for (size_t t = prompt_.size() - 1; t < answer.prompt_logprobs.size(); ++t) {
                   const TokenLogprobs& scored = answer.prompt_logprobs[t];
                   sums_.add(class_of(scored.rank), law_of(scored));
                 }
               });
    return sums_.test();
  }

  const FrontEndContext& context_;
  const PairChecks& options_;
  const std::vector<int32_t> prompt_;
  int32_t text_tokens_ = 0;
  size_t num_texts_ = 0;
  DraftCounts drafts_;
  ClassSums sums_;
};

}  // namespace

std::vector<CheckRow> run_context_checks(const FrontEndContext& context,
                                         const PairChecks& options) {
  std::vector<CheckRow> rows;
  for (const SampledMode& mode : kSampledModes) {
    rows.push_back(ContextChecks(context, options).run(mode));
  }
  rows.push_back(ContextChecks(context, options).control(kSampledModes[0]));
  return rows;
}

}  // namespace outrider
