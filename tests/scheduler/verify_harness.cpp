// See verify_harness.h.
#include "tests/scheduler/verify_harness.h"

#include <algorithm>

#include "scheduler/verification/verify.h"

namespace outrider {
namespace {

std::vector<SequenceDecision> verify_shard(const TestRound& round,
                                           const VocabShard& shard,
                                           ShardExchange& exchange) {
  std::vector<std::vector<float>> logits;
  std::vector<VerifyInput> inputs;
  for (const TestSequence& sequence : round.sequences) {
    std::vector<float> rows;
    for (const std::vector<float>& row : sequence.rows) {
      rows.insert(rows.end(), row.begin() + shard.begin, row.begin() + shard.end);
    }
    logits.push_back(std::move(rows));
    VerifyInput input;
    input.sequence_id = inputs.size() + 1;
    input.params = &sequence.params;
    input.tokens = sequence.tokens;
    input.num_prompt_tokens = sequence.num_prompt_tokens;
    input.round = sequence.round;
    input.draft = sequence.draft;
    if (sequence.bonus_draft) input.bonus_draft = &*sequence.bonus_draft;
    input.logits = logits.back().data();
    inputs.push_back(input);
  }
  return verify(inputs, shard, exchange);
}

int32_t random_token(int32_t vocab_size, std::mt19937_64& generator) {
  return std::uniform_int_distribution<int32_t>(0, vocab_size - 1)(generator);
}

bool chance(double probability, std::mt19937_64& generator) {
  return std::uniform_real_distribution<double>(0.0, 1.0)(generator) < probability;
}

}  // namespace

std::vector<ShardRun> verify_on_shards(const TestRound& round, const std::vector<int32_t>& cuts) {
  return run_on_shards<ShardRun>(
      static_cast<int>(cuts.size()), [&](int rank, ThreadExchangeHub::Member& exchange) {
        const int32_t begin = rank == 0 ? 0 : cuts[static_cast<size_t>(rank) - 1];
        const VocabShard shard{begin, cuts[static_cast<size_t>(rank)], round.vocab_size};
        ShardRun run;
        run.decisions = verify_shard(round, shard, exchange);
        run.num_collectives = exchange.num_calls;
        run.num_bytes = exchange.num_bytes;
        return run;
      });
}

std::vector<SequenceDecision> verify_alone(const TestRound& round) {
  SoloExchange solo;
  return verify_shard(round, {0, round.vocab_size, round.vocab_size}, solo);
}

std::vector<int32_t> random_cuts(int32_t vocab_size, int num_shards, std::mt19937_64& generator) {
  std::vector<int32_t> cuts;
  for (int i = 0; i + 1 < num_shards; ++i) {
    cuts.push_back(std::uniform_int_distribution<int32_t>(0, vocab_size)(generator));
  }
  cuts.push_back(vocab_size);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

std::vector<int32_t> even_cuts(int32_t vocab_size, int num_shards) {
  std::vector<int32_t> cuts;
  for (int i = 1; i <= num_shards; ++i) cuts.push_back(vocab_size * i / num_shards);
  return cuts;
}

std::vector<float> random_logits(int32_t vocab_size, bool ties, std::mt19937_64& generator) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> row(static_cast<size_t>(vocab_size));
  for (float& logit : row) {
    logit = normal(generator);
    if (ties) logit = static_cast<float>(static_cast<int>(logit));
  }
  for (int i = 0; i < 3; ++i) {
    row[static_cast<size_t>(random_token(vocab_size, generator))] += ties ? 6.0f : 5.5f;
  }
  return row;
}

SamplingParams random_params(int32_t vocab_size, std::mt19937_64& generator) {
  SamplingParams params;
  params.noise_seed = generator();
  const VerifyMode modes[] = {VerifyMode::kStandard, VerifyMode::kBlock, VerifyMode::kCoupled};
  params.verify_mode = modes[generator() % 3];
  const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 1.7f};
  params.temperature = temperatures[generator() % 5];
  if (chance(0.3, generator)) params.top_k = 1 + static_cast<int32_t>(generator() % 200);
  if (chance(0.3, generator)) params.top_p = chance(0.5, generator) ? 0.9f : 0.4f;
  if (chance(0.2, generator)) params.min_p = 0.07f;
  if (chance(0.3, generator)) params.typical_p = chance(0.5, generator) ? 0.9f : 0.3f;
  if (chance(0.2, generator)) params.repetition_penalty = 1.3f;
  if (chance(0.2, generator)) params.presence_penalty = 0.6f;
  if (chance(0.2, generator)) params.frequency_penalty = -0.4f;
  if (chance(0.3, generator)) {
    const int32_t token = random_token(vocab_size, generator);
    params.logit_bias = {{token, 4.0f}};
    if (token + 1 < vocab_size) params.logit_bias.emplace_back(token + 1, -100.0f);
  }
  if (chance(0.3, generator)) {
    params.stop_token_ids = {random_token(vocab_size, generator)};
    params.min_tokens = 4;
  }
  if (chance(0.2, generator)) {
    for (int32_t id = 0; id < vocab_size; ++id) {
      if (chance(0.5, generator)) params.allowed_token_ids.push_back(id);
    }
  }
  if (chance(0.2, generator)) {
    params.bad_words = {{random_token(vocab_size, generator)},
                        {random_token(vocab_size, generator), random_token(vocab_size, generator)}};
  }
  if (chance(0.3, generator)) params.num_logprobs = static_cast<int32_t>(generator() % 6);
  return params;
}

DraftToken random_draft(const std::vector<float>& row, std::mt19937_64& generator) {
  const auto vocab_size = static_cast<int32_t>(row.size());
  DraftToken token;
  const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  token.token = chance(0.7, generator) ? best : random_token(vocab_size, generator);
  if (chance(0.4, generator)) return token;
  token.candidates.push_back({token.token, 0.5f});
  float left = 0.5f;
  for (int i = 0; i < 6 && left > 0.0f; ++i) {
    const int32_t other = random_token(vocab_size, generator);
    const bool known = std::any_of(token.candidates.begin(), token.candidates.end(), [&](auto& c) {
      return c.token == other;
    });
    if (known) continue;
    token.candidates.push_back({other, left / 2});
    left /= 2;
  }
  token.candidates[0].draft_prob += left;
  return token;
}

TestSequence random_sequence(int32_t vocab_size, std::mt19937_64& generator) {
  TestSequence sequence;
  sequence.params = random_params(vocab_size, generator);
  const bool ties = chance(0.4, generator);
  const size_t num_tokens = 1 + generator() % 12;
  for (size_t i = 0; i < num_tokens; ++i) {
    sequence.tokens.push_back(random_token(vocab_size, generator));
  }
  sequence.num_prompt_tokens = 1 + static_cast<int32_t>(generator() % num_tokens);
  sequence.round = static_cast<uint32_t>(generator() % 9);
  const size_t draft_len = generator() % 5;
  for (size_t i = 0; i <= draft_len; ++i) {
    sequence.rows.push_back(random_logits(vocab_size, ties, generator));
    if (i < draft_len) sequence.draft.push_back(random_draft(sequence.rows.back(), generator));
  }
  return sequence;
}

bool operator==(const TokenLogprobs& a, const TokenLogprobs& b) {
  return a.logprob == b.logprob && a.rank == b.rank && a.top == b.top;
}

bool same(const SequenceDecision& a, const SequenceDecision& b) {
  return a.sequence_id == b.sequence_id && a.num_accepted == b.num_accepted &&
         a.next_token == b.next_token && a.failed == b.failed &&
         a.no_token_allowed == b.no_token_allowed && a.logprobs == b.logprobs;
}

}  // namespace outrider
