// The exact law of the first tokens behind a prompt, from models outside the engine, and how
// sampled tokens are judged by it; and threads that keep a job from its cores.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "runtime/ranks/loading/model_probe.h"
#include "scheduler/exactness/chi_square.h"
#include "scheduler/request.h"

namespace outrider::test {

constexpr size_t kNumJudged = 4;  // tokens of an answer; the first comes without a draft
using FirstTokens = std::array<int32_t, kNumJudged>;

// Which way sampled tokens may lean: to what the draft says more often than the target, as a
// broken acceptance makes them; to the draft's favourites, as bonus draft tokens that count by
// their value do; to what is likely, as another temperature does.
enum Direction : size_t { kDraftShare, kDraftProb, kLogProb, kNumDirections };

// The sum of f(token) - E f given all tokens before it: a martingale, so z is normal under the law.
struct Score {
  double sum = 0;
  double variance = 0;
  double shift_by_draft = 0;  // of the sum, had the draft drawn every token

  double z() const { return sum / std::sqrt(variance); }
  // The share of tokens drawn by the draft that exceeds the limit in 99 of 100 runs.
  double smallest_share(double limit) const;
  Score& operator+=(const Score& other);
};
using Scores = std::array<std::array<Score, kNumDirections>, kNumJudged>;  // by place and direction

struct Judgement {
  Scores scores;
  ChiSquare joint;  // of all tokens together
};

// The two models whose distributions are compared.
struct ProbedPair {
  explicit ProbedPair(const RunConfig& config)
      : target(config, Role::kTarget), draft(config, Role::kDraft) {}
  ModelProbe target;
  ModelProbe draft;
};

// Of one prompt under one request's temperature and penalties. The distribution after a beginning
// is kept when it is expected often enough; answers with a rarer beginning are counted together.
class ExactLaw {
 public:
  ExactLaw(ProbedPair& pair,
           const std::vector<int32_t>& prompt,
           const SamplingParams& params,
           double num_samples);

  Judgement judge(const std::vector<FirstTokens>& samples, double upper_tail) const;
  // An answer by the law, but with this chance each token is the draft's.
  FirstTokens draw(std::mt19937_64& random, double draft_share) const;

 private:
  struct Moments {
    double mean = 0;
    double variance = 0;
    double mean_by_draft = 0;
  };
  struct Beginning {
    double prob = 1.0;
    std::vector<double> target_probs;     // [vocab]
    std::vector<double> draft_probs;      // [vocab]
    std::map<int32_t, size_t> following;  // beginnings that are one token longer
    std::array<Moments, kNumDirections> moments;
    double value(Direction direction, size_t token) const;
    Moments moments_of(Direction direction) const;
  };
  size_t add(ProbedPair& pair, std::vector<int32_t>& tokens, double prob);

  const SamplingParams params_;
  const size_t prompt_len_;
  const double least_prob_;
  std::vector<Beginning> beginnings_;
};

// Busy threads, twice as many as there are cores, each with bursts and rests of random length: the
// job's threads stop at arbitrary moments and yet get on.
class Starvation {
 public:
  Starvation();
  ~Starvation();

 private:
  std::atomic<bool> ends_{false};
  std::vector<std::thread> threads_;
};

}  // namespace outrider::test
