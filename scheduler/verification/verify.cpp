// See verify.h. One round in at most four steps, each with one collective over the rows of all
// sequences:
//   1. MAX: the best token of every row, or that a logit is bad; rows that need nothing else are
//   drawn here
//   2. truncation (only rows with filters)
//   3. SUM: mass of every row that judges a draft token, and the target's values of that token
//   (standard rule) or of all the draft's candidates (block rule)
//   4. MAX: the draws that had to wait for 2 or 3
#include "scheduler/verification/verify.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "scheduler/rows/host_row_scanner.h"
#include "scheduler/rows/row_kernels.h"
#include "scheduler/sampling/truncation.h"
#include "scheduler/verification/listed_tokens.h"
#include "scheduler/verification/logprobs.h"
#include "scheduler/verification/residual.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

enum class RowTask : uint8_t {
  kArgmax,  // greedy
  kDraw,    // coupled, or nothing proposed: one sample of the row
  kJudge,   // standard or block with draft or bonus draft token: weighed first, drawn from only if
            // it ends the block
};

// In place of a row's best key when one of its logits is bad; above every key of a finite value.
constexpr uint64_t kBadRow = ~uint64_t{0};

struct Row {
  size_t input = 0;
  size_t index = 0;  // in its block
  RowTask task = RowTask::kArgmax;
  NoiseKey noise;
  bool filtered = false;
  float max = kMasked;
  float cut = kMasked;
  float ceiling = kNoCeiling;
  int32_t chosen = -1;
  bool judges = false;  // a draft token, or a bonus draft token
  size_t place = 0;     // in judged_ and listed_, of rows that may judge
  bool drawn_at_once() const { return task == RowTask::kDraw && !filtered; }
};

}  // namespace

class Verification::Round {
 public:
  Round(std::span<const VerifyInput> inputs,
        const VocabShard& shard,
        RowScanner& scanner,
        ShardExchange& exchange)
      : inputs_(inputs),
        shard_(shard),
        scanner_(scanner),
        exchange_(exchange),
        decisions_(inputs.size()) {
    OUTRIDER_CHECK(shard.vocab_size <= kMaxVocabSize);
    size_t num_rows = 0;
    for (const VerifyInput& input : inputs) num_rows += input.draft.size() + 1;
    rows_.reserve(num_rows);
    judged_.reserve(num_rows);
    listed_.reserve(num_rows);
    first_row_.reserve(inputs.size());
    for (size_t n = 0; n < inputs.size(); ++n) add_rows(n);
  }

  void take_bonus_drafts() {
    for (size_t n = 0; n < inputs_.size(); ++n) take_bonus_draft(n);
  }

  std::vector<SequenceDecision> run() {
    if (inputs_.empty()) return {};
    process_rows();
    find_best();
    truncate_rows();
    weigh_drafts();
    judge_drafts();
    draw_rest();
    decide_the_others();
    fail_dead_ends();
    add_logprobs();
    return std::move(decisions_);
  }

 private:
  void add_rows(size_t n) {
    const VerifyInput& input = inputs_[n];
    first_row_.push_back(rows_.size());
    decisions_[n].sequence_id = input.sequence_id;
    const VerifyRule rule = resolve_rule(*input.params);
    const bool filtered = rule != VerifyRule::kGreedy && filters(*input.params, shard_.vocab_size);
    for (size_t i = 0; i <= input.draft.size(); ++i) {
      Row& row = rows_.emplace_back();
      row.input = n;
      row.index = i;
      row.filtered = filtered;
      const auto position = static_cast<uint32_t>(input.tokens.size() + row.index);
      const uint64_t seed = input.params->noise_seed;
      if (rule == VerifyRule::kCoupled) {
        row.task = RowTask::kDraw;
        row.noise = {seed, position, Stream::kCoupled, 0};
      } else if (rule != VerifyRule::kGreedy) {
        row.task = input.draft.empty() ? RowTask::kDraw : RowTask::kJudge;
        row.noise = {seed, position, Stream::kResidual, input.round};
        // The last one's place is for a bonus draft token.
        row.place = judged_.size();
        listed_.emplace_back();
        judged_.emplace_back();
        if (i < input.draft.size()) list(row, input.draft[i]);
      }
    }
  }

  // The last row judges what has come meanwhile, if its rule judges.
  void take_bonus_draft(size_t n) {
    const VerifyInput& input = inputs_[n];
    if (input.bonus_draft == nullptr || !judges_bonus_drafts(*input.params)) return;
    Row& row = rows_[first_row_[n] + input.draft.size()];
    row.task = RowTask::kJudge;
    list(row, *input.bonus_draft);
  }

  void list(Row& row, const DraftToken& token) {
    const bool whole = resolve_rule(*inputs_[row.input].params) == VerifyRule::kBlock;
    row.judges = true;
    listed_[row.place] = ListedTokens(token, shard_);
    judged_[row.place] = judged_row(listed_[row.place], whole);
  }

  // Draft tokens, and the bonus draft token behind them. Only of the rules that judge.
  size_t num_judged(size_t n) const {
    return inputs_[n].draft.size() + (inputs_[n].bonus_draft == nullptr ? 0 : 1);
  }

  // Under the standard rule only the drawn token's own weight is needed.
  static JudgedRow judged_row(const ListedTokens& listed, bool whole) {
    JudgedRow judged;
    if (whole) {
      judged.draft = DraftCandidates(listed.draft());
      judged.drawn = listed.drawn();
    } else {
      judged.draft = {listed.draft()[listed.drawn()]};
    }
    judged.weights.resize(judged.draft.size());
    return judged;
  }

  // The raw values that bias, penalties and min_tokens change.
  void process_rows() {
    RowQuestions questions;
    questions.reads.reserve(inputs_.size());
    views_.reserve(rows_.size());
    for (size_t n = 0; n < inputs_.size(); ++n) {
      const VerifyInput& input = inputs_[n];
      processed(n).begin({.params = input.params,
                          .tokens = input.tokens,
                          .num_prompt_tokens = input.num_prompt_tokens,
                          .draft = input.draft,
                          .first_row = 0,
                          .num_rows = static_cast<int32_t>(input.draft.size()) + 1,
                          .logits = input.logits,
                          .row_stride = shard_.size(),
                          .mask = input.mask},
                         shard_);
      processed(n).ask(questions);
    }
    scanner_.answer(questions);
    for (size_t n = 0; n < inputs_.size(); ++n) processed(n).process();
    for (const Row& row : rows_) {
      views_.push_back(processed(row.input).row(static_cast<int32_t>(row.index)));
    }
    scanner_.hold(views_);
  }

  ProcessedRows& processed(size_t n) {
    return kept_or_made(inputs_[n].processed, made_, n, inputs_.size());
  }

  void find_best() {
    RowQuestions questions;
    questions.scans.reserve(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      questions.scans.push_back(
          {.row = place_of(r), .draws = rows_[r].drawn_at_once(), .noise = rows_[r].noise});
    }
    scanner_.answer(questions);
    std::vector<uint64_t> keys;
    keys.reserve(rows_.size());
    for (const ScanQuestion& scan : questions.scans) keys.push_back(scan.bad ? kBadRow : scan.key);
    exchange_.max(keys);
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (keys[r] == kBadRow) decisions_[rows_[r].input].failed = true;
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      if (!failed(row)) row.max = key_score(keys[r]);
      row.chosen = key_token(keys[r]);
    }
  }

  // Among the rows that the scanner holds.
  static int32_t place_of(size_t row) { return static_cast<int32_t>(row); }

  bool failed(const Row& row) const { return decisions_[row.input].failed; }

  void truncate_rows() {
    std::vector<TruncationRow> filtered;
    filtered.reserve(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      if (!row.filtered || failed(row)) continue;
      filtered.push_back({place_of(r), inputs_[row.input].params, row.max});
    }
    truncate(filtered, shard_.vocab_size, scanner_, exchange_);
    for (const TruncationRow& truncated : filtered) {
      Row& row = rows_[static_cast<size_t>(truncated.row)];
      row.ceiling = truncated.ceiling;
      row.cut = truncated.cut;
    }
  }

  // The masses of the rows that judge, and there the logits of all tokens that the draft may have
  // proposed.
  void weigh_drafts() {
    std::vector<size_t> weighed;
    weighed.reserve(judged_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].judges && !failed(rows_[r])) weighed.push_back(r);
    }
    if (weighed.empty()) return;
    RowQuestions questions;
    questions.reads.reserve(weighed.size());
    questions.sums.reserve(weighed.size());
    for (const size_t r : weighed) {
      const Row& row = rows_[r];
      listed_[row.place].ask(views_[r], questions);
      questions.sums.push_back(
          {.row = place_of(r), .max = row.max, .cut = row.cut, .ceiling = row.ceiling});
    }
    scanner_.answer(questions);
    for (const size_t r : weighed) {
      listed_[rows_[r].place].scale(views_[r], rows_[r].ceiling);
    }
    exchange_weights(weighed, questions.sums);
  }

  // Per row: the mass, then the values of the draft's tokens, two to a word. Each value comes from
  // the one shard that holds the token, so adding the words up puts them together.
  void exchange_weights(std::span<const size_t> weighed, std::span<const SumQuestion> sums) {
    std::vector<uint64_t> words;
    words.reserve(weighed.size() * (1 + kUsualCandidates / 2));
    for (size_t i = 0; i < weighed.size(); ++i) {
      const Row& row = rows_[weighed[i]];
      // Of all listed tokens, or of the drawn one.
      const size_t num_values = judged_[row.place].draft.size();
      const size_t first = num_values == 1 ? listed_[row.place].drawn() : 0;
      words.push_back(sums[i].mass);
      for (size_t c = 0; c < num_values; c += 2) {
        uint64_t word = local_value(row, first + c);
        if (c + 1 < num_values) word |= local_value(row, first + c + 1) << 32;
        words.push_back(word);
      }
    }
    exchange_.sum(words);
    size_t next = 0;
    std::vector<float> values;
    for (const size_t r : weighed) {
      JudgedRow& judged = judged_[rows_[r].place];
      judged.mass = words[next++];
      values.clear();
      for (size_t c = 0; c < judged.weights.size(); ++c) {
        const auto value = static_cast<uint32_t>(words[next + c / 2] >> 32 * (c % 2));
        values.push_back(value == 0 ? kMasked : from_ordered_bits(value));
      }
      next += (values.size() + 1) / 2;
      row_kernels().weights(values.data(),
                            static_cast<int32_t>(values.size()),
                            {1.0f, static_cast<double>(rows_[r].max), kMasked},
                            judged.weights.data());
    }
  }

  // The scaled value of one of the listed tokens as ordered bits; 0 when it is cut or lies on
  // another shard.
  uint64_t local_value(const Row& row, size_t candidate) const {
    const float scaled = listed_[row.place].scaled_of(candidate);
    return scaled < row.cut || scaled == kMasked ? 0 : ordered_bits(scaled);
  }

  void judge_drafts() {
    kept_prob_.assign(inputs_.size(), 1.0);
    std::vector<double> uniforms;
    for (size_t n = 0; n < inputs_.size(); ++n) {
      if (decisions_[n].failed || rows_[first_row_[n]].task != RowTask::kJudge) continue;
      const auto rows = std::span(judged_).subspan(rows_[first_row_[n]].place, num_judged(n));
      uniforms.clear();
      for (size_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows_[first_row_[n] + i];
        uniforms.push_back(
            uniform_of({row.noise.seed, row.noise.position, Stream::kAccept, inputs_[n].round}));
      }
      if (resolve_rule(*inputs_[n].params) == VerifyRule::kStandard) {
        settle(n, judge_standard(rows, uniforms));
        continue;
      }
      const BlockVerdict verdict = judge_block(rows, uniforms);
      settle(n, verdict.num_accepted);
      kept_prob_[n] = verdict.kept_prob;
    }
  }

  // num_standing: of the draft tokens and the bonus draft token.
  void settle(size_t n, int32_t num_standing) {
    const auto draft_len = static_cast<int32_t>(inputs_[n].draft.size());
    decisions_[n].num_accepted = std::min(num_standing, draft_len);
    if (num_standing > draft_len) decisions_[n].next_token = inputs_[n].bonus_draft->token;
  }

  // What the draws have to beat, for rows whose draft token was rejected.
  ListedKeys keys_listed(const Row& row) const {
    if (!row.judges) return {};
    return listed_keys({.listed = &listed_[row.place],
                        .max = row.max,
                        .cut = row.cut,
                        .mass = judged_[row.place].mass,
                        .kept_prob = kept_prob_[row.input],
                        .noise = row.noise});
  }

  std::vector<size_t> rows_to_draw() const {
    std::vector<size_t> waiting;
    waiting.reserve(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      if (failed(row)) continue;
      const SequenceDecision& decision = decisions_[row.input];
      const bool ends_block = row.task == RowTask::kJudge && decision.next_token < 0 &&
                              static_cast<int32_t>(row.index) == decision.num_accepted;
      if (ends_block || (row.task == RowTask::kDraw && row.filtered)) waiting.push_back(r);
    }
    return waiting;
  }

  void draw_rest() {
    const std::vector<size_t> waiting = rows_to_draw();
    if (waiting.empty()) return;
    RowQuestions questions;
    questions.draws.reserve(waiting.size());
    std::vector<ListedKeys> listed;
    listed.reserve(waiting.size());
    for (const size_t r : waiting) {
      const Row& row = rows_[r];
      listed.push_back(keys_listed(row));
      DrawQuestion& draw = questions.draws.emplace_back();
      draw = {.row = place_of(r), .cut = row.cut, .ceiling = row.ceiling, .noise = row.noise};
      if (!row.judges) continue;
      draw.without = listed_[row.place].index();
      draw.key_to_beat = listed.back().residual;
    }
    scanner_.answer(questions);
    std::vector<uint64_t> choices;
    choices.reserve(waiting.size());
    for (size_t i = 0; i < waiting.size(); ++i) {
      const uint64_t key = questions.draws[i].key;
      const bool judges = rows_[waiting[i]].judges;
      choices.push_back(judges ? residual_choice(listed[i], key) : target_choice(key));
    }
    exchange_.max(choices);
    for (size_t i = 0; i < waiting.size(); ++i) {
      Row& row = rows_[waiting[i]];
      row.chosen = chosen_token(choices[i]);
      if (row.task == RowTask::kJudge) decisions_[row.input].next_token = row.chosen;
    }
  }

  // Greedy, coupled and plain sequences: the target's choice in every row is known, and its own are
  // emitted while they equal the draft's.
  void decide_the_others() {
    for (size_t n = 0; n < inputs_.size(); ++n) {
      SequenceDecision& decision = decisions_[n];
      if (decision.failed || rows_[first_row_[n]].task == RowTask::kJudge) continue;
      const std::span<const DraftToken> draft = inputs_[n].draft;
      for (size_t i = 0; i <= draft.size(); ++i) {
        const Row& row = rows_[first_row_[n] + i];
        decision.next_token = row.max == kMasked ? -1 : row.chosen;
        if (i == draft.size() || decision.next_token != draft[i].token) break;
        ++decision.num_accepted;
      }
    }
  }

  // Masks may leave nothing to draw (rows whose maximum is kMasked). Behind a rejected draft token
  // that does not matter.
  void fail_dead_ends() {
    for (size_t n = 0; n < inputs_.size(); ++n) {
      SequenceDecision& decision = decisions_[n];
      if (decision.failed) continue;
      const Row& last = rows_[first_row_[n] + static_cast<size_t>(decision.num_accepted)];
      if (last.max != kMasked) continue;
      decision.failed = decision.no_token_allowed = true;
      decision.num_accepted = 0;
      decision.next_token = -1;
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
        wanted.push_back({views_[first_row_[n] + i].logits,
                          last ? decision.next_token : inputs_[n].draft[i].token,
                          inputs_[n].params->num_logprobs});
        owner.push_back(n);
      }
    }
    std::vector<LogprobResult> results = token_logprobs(wanted, shard_, scanner_, exchange_);
    for (size_t i = 0; i < results.size(); ++i) {
      decisions_[owner[i]].logprobs.push_back(std::move(results[i].logprobs));
    }
  }

  std::span<const VerifyInput> inputs_;
  const VocabShard& shard_;
  RowScanner& scanner_;
  ShardExchange& exchange_;
  std::vector<ProcessedRows> made_;  // where none is kept
  std::vector<Row> rows_;
  std::vector<RowView> views_;        // of the rows
  std::vector<JudgedRow> judged_;     // of an input one after the other
  std::vector<ListedTokens> listed_;  // of the same
  std::vector<size_t> first_row_;     // of each input
  std::vector<double> kept_prob_;     // of each input, below 1 only under the block rule
  std::vector<SequenceDecision> decisions_;
};

Verification::Verification(std::span<const VerifyInput> inputs,
                           const VocabShard& shard,
                           RowScanner& scanner,
                           ShardExchange& exchange)
    : round_(std::make_unique<Round>(inputs, shard, scanner, exchange)) {}
Verification::~Verification() = default;

void Verification::take_bonus_drafts() { round_->take_bonus_drafts(); }

std::vector<SequenceDecision> Verification::run() { return round_->run(); }

std::vector<SequenceDecision> verify(std::span<const VerifyInput> inputs,
                                     const VocabShard& shard,
                                     RowScanner& scanner,
                                     ShardExchange& exchange) {
  Verification verification(inputs, shard, scanner, exchange);
  verification.take_bonus_drafts();
  return verification.run();
}

std::vector<SequenceDecision> verify(std::span<const VerifyInput> inputs,
                                     const VocabShard& shard,
                                     ShardExchange& exchange) {
  HostRowScanner scanner;
  return verify(inputs, shard, scanner, exchange);
}

}  // namespace outrider
