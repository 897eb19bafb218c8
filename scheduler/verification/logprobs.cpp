// See logprobs.h.
#include "scheduler/verification/logprobs.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace outrider {
namespace {

class LogprobPass {
 public:
  LogprobPass(std::span<const LogprobRow> rows,
              const VocabShard& shard,
              RowScanner& scanner,
              ShardExchange& exchange)
      : rows_(rows),
        shard_(shard),
        scanner_(scanner),
        exchange_(exchange),
        results_(rows.size()),
        index_(rows.size()),
        local_logit_(rows.size()) {}

  std::vector<LogprobResult> run() {
    if (rows_.empty()) return {};
    for (const LogprobRow& row : rows_)
      views_.push_back({.logits = row.logits, .size = shard_.size(), .first_token = shard_.begin});
    scanner_.hold(views_);
    find_maxima();
    find_logprobs();
    find_ranks();
    find_top();
    return std::move(results_);
  }

 private:
  // Two words per row: the maximum, and whether the row is bad.
  void find_maxima() {
    RowQuestions questions;
    for (size_t i = 0; i < rows_.size(); ++i) {
      questions.scans.push_back({.row = static_cast<int32_t>(i)});
      if (!shard_.contains(rows_[i].token)) continue;
      index_[i] = rows_[i].token - shard_.begin;
      questions.reads.push_back({.logits = rows_[i].logits,
                                 .index = std::span(index_).subspan(i, 1),
                                 .values = std::span(local_logit_).subspan(i, 1)});
    }
    scanner_.answer(questions);
    std::vector<uint64_t> words;
    for (const ScanQuestion& scan : questions.scans) {
      words.push_back(scan.bad ? 0 : scan.key);
      words.push_back(scan.bad ? 1 : 0);
    }
    exchange_.max(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      max_.push_back(key_score(words[2 * i]));
      results_[i].bad = words[2 * i + 1] != 0;
    }
  }

  // Two words per row: the mass, and the logit of the token from the shard that has it.
  void find_logprobs() {
    RowQuestions questions;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!results_[i].bad)
        questions.sums.push_back({.row = static_cast<int32_t>(i), .max = max_[i]});
    }
    scanner_.answer(questions);
    std::vector<uint64_t> words(2 * rows_.size());
    for (const SumQuestion& sum : questions.sums) {
      const auto i = static_cast<size_t>(sum.row);
      words[2 * i] = sum.mass;
      if (shard_.contains(rows_[i].token)) words[2 * i + 1] = ordered_bits(local_logit_[i]);
    }
    exchange_.sum(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      logit_.push_back(from_ordered_bits(static_cast<uint32_t>(words[2 * i + 1])));
      log_mass_.push_back(exact_log(static_cast<double>(words[2 * i]) / kWeightOne));
      if (!results_[i].bad) results_[i].logprobs.logprob = logprob(i, logit_[i]);
    }
  }

  // The best tokens of this shard are found on the same trip.
  void find_ranks() {
    size_t num_keys = 0;
    for (size_t i = 0; i < rows_.size(); ++i) num_keys += num_top(i);
    best_.resize(num_keys);
    RowQuestions questions;
    std::span<uint64_t> left = best_;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::span<uint64_t> keys = left.first(num_top(i));
      left = left.subspan(num_top(i));
      if (results_[i].bad) continue;
      const auto row = static_cast<int32_t>(i);
      questions.ranks.push_back({.row = row, .value = logit_[i], .token = rows_[i].token});
      if (!keys.empty()) questions.tops.push_back({.row = row, .keys = keys});
    }
    scanner_.answer(questions);
    std::vector<uint64_t> words(rows_.size());
    for (const RankQuestion& rank : questions.ranks) {
      words[static_cast<size_t>(rank.row)] = rank.num_before;
    }
    exchange_.sum(words);
    for (size_t i = 0; i < rows_.size(); ++i) {
      results_[i].logprobs.rank = static_cast<int32_t>(words[i]) + 1;
    }
  }

  size_t num_top(size_t i) const {
    return static_cast<size_t>(std::clamp(rows_[i].num_top, 0, shard_.vocab_size));
  }

  void find_top() {
    if (best_.empty()) return;
    std::vector<uint64_t> all(best_.size() * static_cast<size_t>(exchange_.num_shards()));
    exchange_.gather(std::as_bytes(std::span(best_)), std::as_writable_bytes(std::span(all)));
    size_t offset = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      merge_top(i, all, offset);
      offset += num_top(i);
    }
  }

  void merge_top(size_t i, const std::vector<uint64_t>& all, size_t offset) {
    const size_t wanted = num_top(i);
    if (results_[i].bad || wanted == 0) return;
    std::vector<uint64_t>& keys = merged_;
    keys.clear();
    for (size_t at = offset; at < all.size(); at += best_.size()) {
      keys.insert(keys.end(),
                  all.begin() + static_cast<ptrdiff_t>(at),
                  all.begin() + static_cast<ptrdiff_t>(at + wanted));
    }
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    results_[i].logprobs.top.reserve(wanted);
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
  RowScanner& scanner_;
  ShardExchange& exchange_;
  std::vector<LogprobResult> results_;
  std::vector<RowView> views_;
  std::vector<int32_t> index_;      // of the rows' tokens, when they are on this shard
  std::vector<float> local_logit_;  // and what it says of them
  std::vector<uint64_t> best_;      // the best keys of this shard, of the rows one after the other
  std::vector<uint64_t> merged_;    // those of a row, of all shards
  std::vector<float> max_;
  std::vector<float> logit_;
  std::vector<double> log_mass_;
};

}  // namespace

std::vector<LogprobResult> token_logprobs(std::span<const LogprobRow> rows,
                                          const VocabShard& shard,
                                          RowScanner& scanner,
                                          ShardExchange& exchange) {
  return LogprobPass(rows, shard, scanner, exchange).run();
}

std::vector<std::vector<TokenLogprobs>> score(std::span<const ScoreInput> inputs,
                                              const VocabShard& shard,
                                              RowScanner& scanner,
                                              ShardExchange& exchange) {
  std::vector<LogprobRow> rows;
  for (const ScoreInput& input : inputs) {
    for (size_t i = 0; i < input.next_tokens.size(); ++i) {
      const auto offset = static_cast<int64_t>(i) * shard.size();
      rows.push_back({input.logits + offset, input.next_tokens[i], input.num_top});
    }
  }
  std::vector<LogprobResult> results = token_logprobs(rows, shard, scanner, exchange);
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
