// See target.h.
#include "runtime/ranks/target/target.h"

#include <fmt/format.h>

#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/ranks/checks.h"
#include "runtime/ranks/messages/round_wire.h"
#include "runtime/ranks/target/agreement.h"
#include "runtime/ranks/target/logit_scanner.h"
#include "runtime/ranks/target/step_probe.h"
#include "scheduler/verification/logprobs.h"
#include "scheduler/verification/rules.h"

namespace outrider {
namespace {

// The sampling code's collectives over the target group.
class GroupExchange final : public ShardExchange {
 public:
  GroupExchange(TargetGroup& group, ExchangeTraffic& traffic) : group_(group), traffic_(traffic) {}
  int num_shards() const override { return group_.size(); }
  void max(std::span<uint64_t> values) override {
    count(values.size_bytes());
    group_.all_reduce_max(values);
  }
  void sum(std::span<uint64_t> values) override {
    count(values.size_bytes());
    group_.all_reduce_sum(values);
  }
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    count(mine.size());
    group_.all_gather(mine, all);
  }

 private:
  void count(size_t num_bytes) {
    if (group_.size() == 1) return;  // nothing crosses a link
    ++traffic_.num_collectives;
    traffic_.num_bytes += num_bytes;
  }

  TargetGroup& group_;
  ExchangeTraffic& traffic_;
};

}  // namespace

TargetRank::TargetRank(Model& model,
                       TargetGroup& group,
                       Faults faults,
                       const GrammarEngine* grammars)
    : model_(model),
      exchange_(std::make_unique<GroupExchange>(group, traffic_)),
      scanner_(make_logit_scanner(model, faults.any())),
      grammars_(grammars),
      faults_(std::move(faults)) {
  const Range& vocab = model.shard().vocab;
  vocab_ = {static_cast<int32_t>(vocab.begin),
            static_cast<int32_t>(vocab.end),
            model.config().vocab_size};
}

TargetRank::~TargetRank() = default;

void TargetRank::begin(RoundPlan plan) {
  plan_ = std::move(plan);
  update_copies();
  build_batch();
  awaits_bonus_drafts_ = plan_.awaits_bonus_drafts && !batch_.tokens.empty();
  if (batch_.tokens.empty()) return;
  forward_span_.emplace(
      TraceKind::kForward,
      std::initializer_list<int64_t>{std::ssize(batch_.tokens), std::ssize(batch_.block_tables)});
  model_.begin(batch_);
}

RoundDecision TargetRank::finish() {
  OUTRIDER_CHECK(!awaits_bonus_drafts_);
  RoundDecision decision;
  decision.sequences.resize(plan_.sequences.size());
  for (size_t i = 0; i < plan_.sequences.size(); ++i)
    decision.sequences[i].sequence_id = plan_.sequences[i].sequence_id;
  if (batch_.tokens.empty()) return decision;
  const std::span<const float> computed = model_.finish();
  forward_span_.reset();
  const float* logits = faults_.any() ? spoiled(computed) : computed.data();
  verify_rows(logits, &decision);
  score_prompts(logits, &decision);
  faults_.flip(plan_, &decision);
  commit(decision);
  return decision;
}

RoundDecision TargetRank::execute(RoundPlan plan) {
  begin(std::move(plan));
  prepare();
  if (awaits_bonus_drafts_) add_late_tokens({plan_.round, {}});
  return finish();
}

void TargetRank::probe(int32_t num_rows) {
  std::vector<int32_t> blocks;
  // Rows of one token would choose the same experts, and look cheaper than rows are.
  const ModelConfig& config = model_.config();
  const int32_t num_tokens = config.experts.count > 0 ? config.vocab_size : 1;
  model_.forward(probe_batch(num_rows, model_.options().block_size, num_tokens, &blocks));
}

void TargetRank::add_candidates(const Bytes& message) { decode_candidates(message, plan_); }

void TargetRank::update_copies() {
  if (!plan_.freed.empty()) model_.poison_blocks(plan_.freed);
  for (const auto& grammar : plan_.grammars) {
    if (grammars_ != nullptr) grammars_->prepare(*grammar);
  }
  for (uint64_t id : plan_.ends) copies_.erase(id);
  for (const SequenceStart& start : plan_.starts) {
    Copy copy;
    copy.params = start.params;
    copy.num_prompt_tokens = static_cast<int32_t>(start.tokens.size()) - start.num_output_tokens;
    copy.tokens = start.tokens;
    copy.mask = make_token_mask(start.params, grammars_);
    copies_[start.sequence_id] = std::move(copy);
  }
  fresh_blocks_.clear();
  for (const SequencePlan& planned : plan_.sequences) {
    Copy& copy = copies_.at(planned.sequence_id);
    if (planned.replace_blocks) copy.blocks.clear();
    const size_t num_kept = copy.blocks.size();
    copy.blocks.insert(copy.blocks.end(), planned.new_blocks.begin(), planned.new_blocks.end());
    add_fresh_blocks(planned, std::span(copy.blocks).subspan(num_kept), num_kept);
  }
  model_.clear_blocks(fresh_blocks_);  // in one call, which is a launch on a GPU
}

// Blocks of positions that are all still to be computed begin as zeros, whoever had them before:
// NaN that a failed, cancelled or preempted sequence left spreads even through masked positions.
// Blocks before first_position hold KV that is used, and may be others' too.
void TargetRank::add_fresh_blocks(const SequencePlan& planned,
                                  std::span<const int32_t> told,
                                  size_t num_before) {
  const auto block_size = static_cast<size_t>(model_.options().block_size);
  const size_t num_used =
      (static_cast<size_t>(planned.first_position) + block_size - 1) / block_size;
  const size_t num_skipped = num_used - std::min(num_used, num_before);
  const auto fresh = told.subspan(std::min(told.size(), num_skipped));
  fresh_blocks_.insert(fresh_blocks_.end(), fresh.begin(), fresh.end());
}

void TargetRank::build_batch() {
  batch_.clear();
  spans_.clear();
  for (const SequencePlan& planned : plan_.sequences) {
    const auto sequence_index = static_cast<int32_t>(batch_.block_tables.size());
    batch_.block_tables.emplace_back(copies_.at(planned.sequence_id).blocks);
    add_rows(planned, sequence_index);
  }
}

void TargetRank::add_rows(const SequencePlan& planned, int32_t sequence_index) {
  const Copy& copy = copies_.at(planned.sequence_id);
  const auto num_tokens = static_cast<int32_t>(copy.tokens.size());
  const int32_t end = planned.first_position + planned.num_committed_rows;
  OUTRIDER_CHECK(planned.first_position >= 0 && planned.num_committed_rows > 0 &&
                 end <= num_tokens);
  const bool samples = end == num_tokens;
  RowSpan span;
  span.first = static_cast<int32_t>(batch_.logit_rows.size());
  const auto add_row = [&](int32_t token, int32_t position, bool wants_logits) {
    if (wants_logits) batch_.logit_rows.push_back(static_cast<int32_t>(batch_.tokens.size()));
    batch_.tokens.push_back(token);
    batch_.positions.push_back(position);
    batch_.sequence_of_row.push_back(sequence_index);
  };
  for (int32_t position = planned.first_position; position < end; ++position) {
    const bool scored = copy.params.prompt_logprobs && position + 1 < copy.num_prompt_tokens;
    const bool sampled = samples && position + 1 == end;
    if (scored) ++span.num_scored;
    add_row(copy.tokens[static_cast<size_t>(position)], position, scored || sampled);
  }
  if (samples) {
    for (size_t i = 0; i < planned.draft.size(); ++i) {
      add_row(planned.draft[i].token, end + static_cast<int32_t>(i), true);
    }
    span.num_sampled = static_cast<int32_t>(planned.draft.size()) + 1;
  }
  spans_.push_back(span);
}

// Every rank settles the same, from the same two messages.
void TargetRank::settle_bonus_drafts(const LateDraftTokens& late_tokens) {
  if (late_tokens.round != plan_.round) {
    throw Error(fmt::format(
        "the late draft tokens of round {} came in round {}", late_tokens.round, plan_.round));
  }
  auto next = late_tokens.bonus_drafts.begin();
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    SequencePlan& planned = plan_.sequences[i];
    if (next != late_tokens.bonus_drafts.end() && next->sequence_id == planned.sequence_id) {
      if (!planned.bonus_draft) planned.bonus_draft = next->token;
      ++next;
    }
    const bool judged = planned.bonus_draft && spans_[i].num_sampled > 0 &&
                        judges_bonus_drafts(copies_.at(planned.sequence_id).params) &&
                        valid_draft(*planned.bonus_draft, vocab_.vocab_size);
    if (!judged) planned.bonus_draft.reset();
  }
}

void TargetRank::prepare() {
  verification_.reset();
  inputs_.clear();
  planned_index_.clear();
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    if (spans_[i].num_sampled == 0) continue;
    const SequencePlan& planned = plan_.sequences[i];
    Copy& copy = copies_.at(planned.sequence_id);
    inputs_.push_back({.sequence_id = planned.sequence_id,
                       .params = &copy.params,
                       .tokens = copy.tokens,
                       .num_prompt_tokens = copy.num_prompt_tokens,
                       .round = planned.round,
                       .draft = planned.draft,
                       .mask = copy.mask.get(),
                       .processed = &copy.processed});
    planned_index_.push_back(i);
  }
  if (batch_.tokens.empty()) return;
  verification_.emplace(inputs_, vocab_, *scanner_, *exchange_);
  if (!awaits_bonus_drafts_) add_late_tokens({plan_.round, {}});
}

void TargetRank::add_late_tokens(const LateDraftTokens& late_tokens) {
  settle_bonus_drafts(late_tokens);
  for (size_t n = 0; n < inputs_.size(); ++n) {
    const std::optional<DraftToken>& bonus_draft = plan_.sequences[planned_index_[n]].bonus_draft;
    inputs_[n].bonus_draft = bonus_draft ? &*bonus_draft : nullptr;
  }
  verification_->take_bonus_drafts();
  awaits_bonus_drafts_ = false;
}

void TargetRank::verify_rows(const float* logits, RoundDecision* decision) {
  if (inputs_.empty()) return;
  const TraceSpan span(TraceKind::kVerify, {std::ssize(inputs_)});
  for (size_t n = 0; n < inputs_.size(); ++n) {
    const RowSpan& rows = spans_[planned_index_[n]];
    inputs_[n].logits = logits_of_row(logits, rows.first + rows.num_scored);
  }
  std::vector<SequenceDecision> decided = verification_->run();
  for (size_t n = 0; n < decided.size(); ++n) {
    decision->sequences[planned_index_[n]] = std::move(decided[n]);
  }
}

void TargetRank::score_prompts(const float* logits, RoundDecision* decision) {
  std::vector<ScoreInput> inputs;
  std::vector<size_t> planned_index;
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    if (spans_[i].num_scored == 0) continue;
    const SequencePlan& planned = plan_.sequences[i];
    const Copy& copy = copies_.at(planned.sequence_id);
    const std::span<const int32_t> tokens = copy.tokens;
    inputs.push_back({.logits = logits_of_row(logits, spans_[i].first),
                      .next_tokens = tokens.subspan(static_cast<size_t>(planned.first_position) + 1,
                                                    static_cast<size_t>(spans_[i].num_scored)),
                      .num_top = std::max(0, copy.params.num_logprobs)});
    planned_index.push_back(i);
  }
  if (inputs.empty()) return;
  auto scored = score(inputs, vocab_, *scanner_, *exchange_);
  for (size_t i = 0; i < scored.size(); ++i) {
    SequenceDecision& decided = decision->sequences[planned_index[i]];
    if (scored[i].empty()) decided.failed = true;  // NaN or infinity in a prompt row
    decided.prompt_logprobs = std::move(scored[i]);
  }
}

void TargetRank::commit(const RoundDecision& decision) {
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    const SequencePlan& planned = plan_.sequences[i];
    const SequenceDecision& decided = decision.sequences[i];
    Copy& copy = copies_.at(planned.sequence_id);
    if (decided.failed || decided.next_token < 0) continue;
    for (int32_t j = 0; j < decided.num_accepted; ++j) {
      copy.tokens.push_back(planned.draft[static_cast<size_t>(j)].token);
    }
    copy.tokens.push_back(decided.next_token);
  }
}

const float* TargetRank::logits_of_row(const float* logits, int32_t logit_row) const {
  return logits + static_cast<int64_t>(logit_row) * vocab_.size();
}

// The step's results with the armed faults in them: KV now, logits as a copy.
const float* TargetRank::spoiled(std::span<const float> logits) {
  spoiled_logits_.assign(logits.begin(), logits.end());
  size_t logit_row = 0;
  for (size_t row = 0; row < batch_.tokens.size(); ++row) {
    const auto sequence = static_cast<size_t>(batch_.sequence_of_row[row]);
    const uint64_t id = plan_.sequences[sequence].sequence_id;
    const int32_t position = batch_.positions[row];
    if (faults_.spoils_kv(id, position)) spoil_kv(batch_.block_tables[sequence], position);
    if (logit_row == batch_.logit_rows.size() ||
        batch_.logit_rows[logit_row] != static_cast<int32_t>(row)) {
      continue;
    }
    if (faults_.spoils_logits(id, position + 1, copies_.at(id).num_prompt_tokens)) {
      spoiled_logits_[logit_row * static_cast<size_t>(vocab_.size())] =
          std::numeric_limits<float>::quiet_NaN();
      log_warning("{}: NaN in the logits of request {}", Faults::kVariable, id);
    }
    ++logit_row;
  }
  return spoiled_logits_.data();
}

void TargetRank::spoil_kv(std::span<const int32_t> blocks, int32_t position) {
  const int32_t block_size = model_.options().block_size;
  const int32_t block = blocks[static_cast<size_t>(position / block_size)];
  model_.poison_position(block, position % block_size);
  log_warning("{}: NaN in the KV of position {}", Faults::kVariable, position);
}

}  // namespace outrider
