// See logprobs.h, and verify.h for score().
#include "scheduler/logprobs.h"

#include <algorithm>
#include <functional>

#include "scheduler/statistics.h"
#include "scheduler/verify.h"

namespace outrider {
namespace {

RowView raw_view(const LogprobRow& row, const VocabShard& shard) {
  RowView view;
  view.logits = row.logits;
  view.size = shard.size();
  view.first_token = shard.begin;
  return view;
}

// Tokens of this shard that come before (value, token) in the order of rank: higher value, then
// lower id.
uint64_t count_before(const RowView& view, float value, int32_t token) {
  const int32_t split = std::clamp(token - view.first_token, 0, view.size);
  uint64_t count = 0;
  for (int32_t i = 0; i < split; ++i) count += view.logits[i] >= value ? 1 : 0;
  for (int32_t i = split; i < view.size; ++i) count += view.logits[i] > value ? 1 : 0;
  return count;
}

class LogprobPass {
 public:
  LogprobPass(std::span<const LogprobRow> rows, const VocabShard& shard, ShardExchange& exchange)
      : rows_(rows), shard_(shard), exchange_(exchange), results_(rows.size()) {}

  std::vector<LogprobResult> run() {
    if (rows_.empty()) return {};
    find_maxima();
    find_logprobs();
    find_ranks();
    find_top();
    return std::move(results_);
  }

 private:
  // Two words per row: the maximum, and whether the row is bad.
  void find_maxima() {
    std::vector<uint64_t> words(2 * rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const RowScan scan = scan_row(raw_view(rows_[i], shard_));
      words[2 * i] = scan.key;
      words[2 * i + 1] = scan.bad ? 1 : 0;
    }
    exchange_.max(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      max_.push_back(key_score(words[2 * i]));
      results_[i].bad = words[2 * i + 1] != 0;
    }
  }

  // Two words per row: the mass, and the logit of the token from the shard that has it.
  void find_logprobs() {
    std::vector<uint64_t> words(2 * rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const LogprobRow& row = rows_[i];
      if (results_[i].bad) continue;
      words[2 * i] = row_mass(raw_view(row, shard_), max_[i], kMasked);
      if (shard_.contains(row.token)) {
        words[2 * i + 1] = ordered_bits(row.logits[row.token - shard_.begin]);
      }
    }
    exchange_.sum(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      logit_.push_back(from_ordered_bits(static_cast<uint32_t>(words[2 * i + 1])));
      log_mass_.push_back(exact_log(static_cast<double>(words[2 * i]) / kWeightOne));
      if (!results_[i].bad) results_[i].logprobs.logprob = logprob(i, logit_[i]);
    }
  }

  void find_ranks() {
    std::vector<uint64_t> words(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (results_[i].bad) continue;
      words[i] = count_before(raw_view(rows_[i], shard_), logit_[i], rows_[i].token);
    }
    exchange_.sum(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      results_[i].logprobs.rank = static_cast<int32_t>(words[i]) + 1;
    }
  }

  int32_t num_top(size_t i) const { return std::clamp(rows_[i].num_top, 0, shard_.vocab_size); }

  void find_top() {
    size_t size = 0;
    for (size_t i = 0; i < rows_.size(); ++i) size += static_cast<size_t>(num_top(i));
    if (size == 0) return;
    std::vector<uint64_t> mine(size);
    size_t offset = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!results_[i].bad) {
        const std::vector<uint64_t> keys = top_keys(raw_view(rows_[i], shard_), num_top(i));
        std::copy(keys.begin(), keys.end(), mine.begin() + static_cast<ptrdiff_t>(offset));
      }
      offset += static_cast<size_t>(num_top(i));
    }
    std::vector<uint64_t> all(size * static_cast<size_t>(exchange_.num_shards()));
    exchange_.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    offset = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      merge_top(i, all, offset, size);
      offset += static_cast<size_t>(num_top(i));
    }
  }

  void merge_top(size_t i, const std::vector<uint64_t>& all, size_t offset, size_t stride) {
    const auto wanted = static_cast<size_t>(num_top(i));
    if (results_[i].bad || wanted == 0) return;
    std::vector<uint64_t> keys;
    for (size_t at = offset; at < all.size(); at += stride) {
      keys.insert(keys.end(),
                  all.begin() + static_cast<ptrdiff_t>(at),
                  all.begin() + static_cast<ptrdiff_t>(at + wanted));
    }
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    for (size_t n = 0; n < wanted && keys[n] != 0; ++n) {
      results_[i].logprobs.top.emplace_back(key_token(keys[n]), logprob(i, key_score(keys[n])));
    }
  }

  float logprob(size_t i, float logit) const {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_[i]) -
                              log_mass_[i]);
  }

  std::span<const LogprobRow> rows_;
  const VocabShard& shard_;
  ShardExchange& exchange_;
  std::vector<LogprobResult> results_;
  std::vector<float> max_;
  std::vector<float> logit_;
  std::vector<double> log_mass_;
};

}  // namespace

std::vector<LogprobResult> token_logprobs(std::span<const LogprobRow> rows,
                                          const VocabShard& shard,
                                          ShardExchange& exchange) {
  return LogprobPass(rows, shard, exchange).run();
}

std::vector<std::vector<TokenLogprobs>> score(std::span<const ScoreInput> inputs,
                                              const VocabShard& shard,
                                              ShardExchange& exchange) {
  std::vector<LogprobRow> rows;
  for (const ScoreInput& input : inputs) {
    for (size_t i = 0; i < input.next_tokens.size(); ++i) {
      const float* logits = input.logits + i * static_cast<size_t>(shard.size());
      rows.push_back({logits, input.next_tokens[i], input.num_top});
    }
  }
  std::vector<LogprobResult> results = token_logprobs(rows, shard, exchange);
  std::vector<std::vector<TokenLogprobs>> scores(inputs.size());
  size_t next = 0;
  for (size_t n = 0; n < inputs.size(); ++n) {
    bool bad = false;
    for (size_t i = 0; i < inputs[n].next_tokens.size(); ++i, ++next) {
      bad = bad || results[next].bad;
      scores[n].push_back(std::move(results[next].logprobs));
    }
    if (bad) scores[n].clear();
  }
  return scores;
}

}  // namespace outrider
