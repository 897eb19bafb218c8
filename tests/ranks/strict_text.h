// Promise P3 on whole jobs: under numerics strict, greedy and seeded text (and its logprobs) is the
// same on 1, 2, 4 and 8 target ranks, whatever the draft, its length, the batch and preemption.
// Shared by the default and the slow test.
#pragma once

#include <string>
#include <vector>

#include "tests/ranks/engine_harness.h"

namespace outrider::test {

// One way to run requests.
struct StrictRun {
  int num_targets = 1;
  int draft_len = 0;   // 0: no draft
  std::string method;  // ngram, bigram; empty: the draft model
  int max_num_seqs = 16;
  bool tight = false;  // little KV memory and few rows a round: preemption, chunked prompts
  std::string numerics = "strict";
  std::string name() const;
};

// count requests with prompts of their own: greedy and seeded, all sampler options, some with
// logprobs.
std::vector<Ask> strict_asks(size_t count, int32_t max_tokens);

// Outcomes of all asks, submitted in an order of the run's own. Fails the test when a request
// fails, a draft had no token accepted, or a tight run preempted nobody.
std::vector<Outcome> run_strict(const StrictRun& run, const std::vector<Ask>& asks);

// Tokens and logprobs, bit for bit.
bool same_outcome(const Outcome& a, const Outcome& b);

// The expected outcomes (one rank, no draft, one request after the other), and how much was
// compared with them.
class StrictComparison {
 public:
  explicit StrictComparison(std::vector<Ask> asks);
  // Runs the first num_asks (0: all) in this way and expects the same outcomes.
  void expect_same(const StrictRun& run, size_t num_asks = 0);
  size_t num_compared() const { return num_compared_; }
  // Expects that the texts differ from each other; prints how many were compared.
  void report() const;

 private:
  std::vector<Ask> asks_;
  std::vector<Outcome> expected_;
  size_t num_compared_ = 0;
};

}  // namespace outrider::test
