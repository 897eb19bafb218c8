// See verify.h. One round in at most four steps, each with one collective over the rows of all
// sequences:
//   1. MAX: the best token of every row and whether any logit is bad; rows that need nothing else
//   are drawn here
//   2. truncation (only rows with top-k, top-p or min-p)
//   3. SUM: mass and draft token's weight of every row judged by the standard rule
//   4. MAX: the draws that had to wait for 2 or 3
#include "scheduler/verify.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "scheduler/logits_processor.h"
#include "scheduler/logprobs.h"
#include "scheduler/residual.h"
#include "scheduler/rules.h"
#include "scheduler/statistics.h"
#include "scheduler/truncation.h"

namespace outrider {
namespace {

enum class RowTask : uint8_t {
  kArgmax,  // greedy
  kDraw,    // coupled, or standard without a draft: one sample of the row
  kJudge,   // standard with a draft: weighed first, drawn from only if it ends the block
};

struct Row {
  size_t input = 0;
  size_t index = 0;  // in its block
  RowView view;
  RowTask task = RowTask::kArgmax;
  NoiseKey noise;
  bool filtered = false;
  float max = kMasked;
  float cut = kMasked;
  int32_t chosen = -1;
  uint64_t mass = 0;          // of the kept tokens
  uint64_t draft_weight = 0;  // of the draft token, 0 when it was cut
  bool drawn_at_once() const { return task == RowTask::kDraw && !filtered; }
};

class RoundVerifier {
 public:
  RoundVerifier(std::span<const VerifyInput> inputs,
                const VocabShard& shard,
                ShardExchange& exchange)
      : inputs_(inputs), shard_(shard), exchange_(exchange), decisions_(inputs.size()) {
    OUTRIDER_CHECK(shard.vocab_size <= kMaxVocabSize);
    processed_.reserve(inputs.size());
    for (size_t n = 0; n < inputs.size(); ++n) add_rows(n);
  }

  std::vector<SequenceDecision> run() {
    if (inputs_.empty()) return {};
    find_best();
    truncate_rows();
    weigh_drafts();
    judge_drafts();
    draw_rest();
    decide_the_others();
    add_logprobs();
    return std::move(decisions_);
  }

 private:
  void add_rows(size_t n) {
    const VerifyInput& input = inputs_[n];
    const auto num_rows = static_cast<int32_t>(input.draft.size()) + 1;
    processed_.emplace_back(ProcessorInput{.params = input.params,
                                           .tokens = input.tokens,
                                           .num_prompt_tokens = input.num_prompt_tokens,
                                           .draft = input.draft,
                                           .first_row = 0,
                                           .num_rows = num_rows,
                                           .logits = input.logits,
                                           .row_stride = shard_.size()},
                            shard_);
    first_row_.push_back(rows_.size());
    decisions_[n].sequence_id = input.sequence_id;
    const VerifyRule rule = resolve_rule(*input.params);
    for (int32_t i = 0; i < num_rows; ++i) {
      Row row;
      row.input = n;
      row.index = static_cast<size_t>(i);
      row.view = processed_[n].row(i);
      row.filtered = rule != VerifyRule::kGreedy && filters(*input.params, shard_.vocab_size);
      const auto position = static_cast<uint32_t>(input.tokens.size() + row.index);
      const uint64_t seed = input.params->noise_seed;
      if (rule == VerifyRule::kCoupled) {
        row.task = RowTask::kDraw;
        row.noise = {seed, position, Stream::kCoupled, 0};
      } else if (rule == VerifyRule::kStandard) {
        row.task = input.draft.empty() ? RowTask::kDraw : RowTask::kJudge;
        row.noise = {seed, position, Stream::kResidual, input.round};
      }
      rows_.push_back(row);
    }
  }

  void find_best() {
    std::vector<uint64_t> words(inputs_.size() + rows_.size());
    const std::span<uint64_t> bad = std::span(words).first(inputs_.size());
    const std::span<uint64_t> keys = std::span(words).subspan(inputs_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      const RowScan scan = scan_row(row.view);
      if (scan.bad) bad[row.input] = 1;
      const bool draw = row.drawn_at_once() && !scan.bad;
      keys[r] = draw ? draw_key(row.view, row.cut, row.noise) : scan.key;
    }
    exchange_.max(words);
    for (size_t n = 0; n < inputs_.size(); ++n) decisions_[n].failed = bad[n] != 0;
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      if (!decisions_[row.input].failed) row.max = key_score(keys[r]);
      row.chosen = key_token(keys[r]);
    }
  }

  bool failed(const Row& row) const { return decisions_[row.input].failed; }

  void truncate_rows() {
    std::vector<TruncationRow> filtered;
    for (const Row& row : rows_) {
      if (!row.filtered || failed(row)) continue;
      filtered.push_back({row.view, inputs_[row.input].params, row.max, kMasked});
    }
    truncate(filtered, shard_, exchange_);
    size_t next = 0;
    for (Row& row : rows_) {
      if (row.filtered && !failed(row)) row.cut = filtered[next++].cut;
    }
  }

  bool is_weighed(const Row& row) const {
    return row.task == RowTask::kJudge && row.index < inputs_[row.input].draft.size() &&
           !failed(row);
  }

  void weigh_drafts() {
    std::vector<uint64_t> words;
    for (const Row& row : rows_) {
      if (!is_weighed(row)) continue;
      words.push_back(row_mass(row.view, row.max, row.cut));
      words.push_back(local_draft_weight(row));
    }
    if (words.empty()) return;
    exchange_.sum(words);
    size_t next = 0;
    for (Row& row : rows_) {
      if (!is_weighed(row)) continue;
      row.mass = words[next++];
      row.draft_weight = words[next++];
    }
  }

  uint64_t local_draft_weight(const Row& row) const {
    const int32_t token = inputs_[row.input].draft[row.index].token;
    if (!shard_.contains(token)) return 0;
    const float scaled = row.view.scaled(token - shard_.begin);
    if (scaled < row.cut) return 0;
    return fixed_weight(static_cast<double>(scaled) - static_cast<double>(row.max));
  }

  void judge_drafts() {
    for (size_t n = 0; n < inputs_.size(); ++n) {
      const VerifyInput& input = inputs_[n];
      if (decisions_[n].failed || rows_[first_row_[n]].task != RowTask::kJudge) continue;
      int32_t& accepted = decisions_[n].num_accepted;
      for (const DraftToken& draft : input.draft) {
        const Row& row = rows_[first_row_[n] + static_cast<size_t>(accepted)];
        const NoiseKey key{row.noise.seed, row.noise.position, Stream::kAccept, input.round};
        const float draft_prob = draft_prob_of(draft);
        if (!standard_accepts(uniform_of(key), draft_prob, row.draft_weight, row.mass)) break;
        ++accepted;
      }
    }
  }

  // Two keys per draw: of the residual, and of the target for when the residual is numerically
  // empty.
  ResidualKeys draw(const Row& row) const {
    const VerifyInput& input = inputs_[row.input];
    if (row.task == RowTask::kDraw || row.index == input.draft.size()) {
      return {0, draw_key(row.view, row.cut, row.noise)};
    }
    return residual_keys({.row = row.view,
                          .max = row.max,
                          .cut = row.cut,
                          .mass = row.mass,
                          .draft = &input.draft[row.index],
                          .noise = row.noise});
  }

  void draw_rest() {
    std::vector<Row*> waiting;
    for (Row& row : rows_) {
      if (failed(row)) continue;
      const bool ends_block = row.task == RowTask::kJudge &&
                              static_cast<int32_t>(row.index) == decisions_[row.input].num_accepted;
      if (ends_block || (row.task == RowTask::kDraw && row.filtered)) waiting.push_back(&row);
    }
    if (waiting.empty()) return;
    std::vector<uint64_t> words;
    for (const Row* row : waiting) {
      const ResidualKeys keys = draw(*row);
      words.push_back(keys.residual);
      words.push_back(keys.target);
    }
    exchange_.max(words);
    for (size_t i = 0; i < waiting.size(); ++i) {
      Row& row = *waiting[i];
      row.chosen = chosen_token({words[2 * i], words[2 * i + 1]});
      if (row.task == RowTask::kJudge) decisions_[row.input].next_token = row.chosen;
    }
  }

  // Greedy, coupled and plain sequences: the target's choice in every row is known.
  void decide_the_others() {
    for (size_t n = 0; n < inputs_.size(); ++n) {
      SequenceDecision& decision = decisions_[n];
      if (decision.failed || rows_[first_row_[n]].task == RowTask::kJudge) continue;
      std::vector<int32_t> chosen;
      for (size_t i = 0; i <= inputs_[n].draft.size(); ++i) {
        chosen.push_back(rows_[first_row_[n] + i].chosen);
      }
      decision.num_accepted = count_agreements(chosen, inputs_[n].draft);
      decision.next_token = chosen[static_cast<size_t>(decision.num_accepted)];
    }
  }

  void add_logprobs() {
    std::vector<LogprobRow> wanted;
    std::vector<size_t> owner;
    for (size_t n = 0; n < inputs_.size(); ++n) {
      const SequenceDecision& decision = decisions_[n];
      if (decision.failed || inputs_[n].params->num_logprobs < 0) continue;
      for (size_t i = 0; i <= static_cast<size_t>(decision.num_accepted); ++i) {
        const bool last = i == static_cast<size_t>(decision.num_accepted);
        wanted.push_back({rows_[first_row_[n] + i].view.logits,
                          last ? decision.next_token : inputs_[n].draft[i].token,
                          inputs_[n].params->num_logprobs});
        owner.push_back(n);
      }
    }
    std::vector<LogprobResult> results = token_logprobs(wanted, shard_, exchange_);
    for (size_t i = 0; i < results.size(); ++i) {
      decisions_[owner[i]].logprobs.push_back(std::move(results[i].logprobs));
    }
  }

  std::span<const VerifyInput> inputs_;
  const VocabShard& shard_;
  ShardExchange& exchange_;
  std::vector<ProcessedRows> processed_;
  std::vector<Row> rows_;
  std::vector<size_t> first_row_;  // of each input
  std::vector<SequenceDecision> decisions_;
};

}  // namespace

std::vector<SequenceDecision> verify(std::span<const VerifyInput> inputs,
                                     const VocabShard& shard,
                                     ShardExchange& exchange) {
  return RoundVerifier(inputs, shard, exchange).run();
}

}  // namespace outrider
