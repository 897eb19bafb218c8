// Random rounds for the tests of verification: sequences with their logits, decided by any number
// of shards.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "scheduler/exactness/thread_exchange.h"
#include "scheduler/round.h"

namespace outrider {

struct TestSequence {
  SamplingParams params;
  std::vector<int32_t> tokens;
  int32_t num_prompt_tokens = 1;
  uint32_t round = 0;
  std::vector<DraftToken> draft;
  std::vector<std::vector<float>> rows;  // [draft.size() + 1][vocab]
  std::optional<DraftToken> bonus_draft;
};

struct TestRound {
  int32_t vocab_size = 0;
  std::vector<TestSequence> sequences;
};

struct ShardRun {
  std::vector<SequenceDecision> decisions;
  int num_collectives = 0;
  size_t num_bytes = 0;
};

// cuts: ascending token ids where shards end, the last one vocab_size. The decisions of every rank.
std::vector<ShardRun> verify_on_shards(const TestRound& round, const std::vector<int32_t>& cuts);
std::vector<SequenceDecision> verify_alone(const TestRound& round);

std::vector<int32_t> random_cuts(int32_t vocab_size, int num_shards, std::mt19937_64& generator);
std::vector<int32_t> even_cuts(int32_t vocab_size, int num_shards);

// Logits with many exact ties when `ties`, else normal ones with a few peaks.
std::vector<float> random_logits(int32_t vocab_size, bool ties, std::mt19937_64& generator);
SamplingParams random_params(int32_t vocab_size, std::mt19937_64& generator);
TestSequence random_sequence(int32_t vocab_size, std::mt19937_64& generator);
// For the position that the row decides: likely to stand or not, one-hot or with candidates.
DraftToken random_draft(const std::vector<float>& row, std::mt19937_64& generator);

bool operator==(const TokenLogprobs& a, const TokenLogprobs& b);
bool same(const SequenceDecision& a, const SequenceDecision& b);

}  // namespace outrider
