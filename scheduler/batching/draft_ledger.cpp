// See draft_ledger.h.
#include "scheduler/batching/draft_ledger.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "scheduler/verification/rules.h"

namespace outrider {

namespace {

// Of the draft model's block for the next round, at most; -1 = as the server's for all.
int32_t verify_len_of(const DraftView& view) { return view.uses_backup ? -1 : view.verify_len; }

}  // namespace

DraftLedger::DraftLedger(const PlannerConfig& config, const SequencePool& pool)
    : config_(config), pool_(pool), draft_len_(config.num_speculative_tokens), own_(config) {}

bool DraftLedger::uses_model() const {
  return available_ && config_.draft_method == DraftMethod::kDraftModel;
}

// Resolved when the request was taken; whoever left it open drafts with nobody.
bool DraftLedger::drafts_async(const Sequence& sequence) const {
  const AsyncDrafting mode = sequence.params().async_drafting;
  return mode == AsyncDrafting::kChain || mode == AsyncDrafting::kCache;
}

int32_t DraftLedger::limit(const Sequence& sequence, int32_t num_tokens, int32_t chosen) const {
  const int32_t draft_len =
      sequence.params().fixed_draft_len ? config_.num_speculative_tokens : chosen;
  return sequence.draft_len_limit(num_tokens, draft_len, config_.max_model_len);
}

// Of the block for the next sampling round: what is asked for.
int32_t DraftLedger::limit_now(const Sequence& sequence) const {
  const DraftView& view = sequence.draft_view;
  const int32_t wanted = view.wanted_len < 0 ? draft_len_ : view.wanted_len;
  return limit(sequence, sequence.num_tokens(), std::max(verify_len_of(view), wanted));
}

// Of the block for the round after it, which stands behind one more token at least.
int32_t DraftLedger::limit_next(const Sequence& sequence) const {
  const int32_t wanted = sequence.draft_view.wanted_len;
  return limit(sequence, sequence.num_tokens() + 1, wanted < 0 ? draft_len_ : wanted);
}

DraftRequest DraftLedger::take_request(bool asks) {
  DraftRequest request;
  if (!uses_model()) return request;
  request.closes = std::exchange(closes_, {});
  request.commits.reserve(pool_.running().size());
  for (const auto& [order, sequence] : pool_.running()) describe(*sequence, asks, request);
  for (const auto& [order, sequence] : pool_.waiting()) {
    if (sequence->scheduled_at) describe(*sequence, asks, request);
  }
  return request;
}

void DraftLedger::describe(Sequence& sequence, bool asks, DraftRequest& request) const {
  DraftView& view = sequence.draft_view;
  const bool rests = view.wanted_len == 0 || (view.wanted_len < 0 && draft_len_ == 0);
  if (rests && verify_len_of(view) <= 0 && !sequence.params().fixed_draft_len) return;
  if (!open(sequence, request)) return;
  const bool async = drafts_async(sequence);
  if (async && view.num_in_flight >= 0) {
    const int32_t draft_len = limit_next(sequence);
    if (view.num_told_rounds > sequence.round() || draft_len == 0) return;
    view.num_told_rounds = sequence.round() + 1;
    commit(sequence, draft_len, request);
    return;
  }
  if (view.asked_round == sequence.round()) return;
  if (!async && view.uses_backup) return;  // its block would come too late
  const int32_t draft_len = limit_now(sequence);
  if (async && (!asks || draft_len == 0 || sequence.num_uncomputed() > 1)) return;
  view.asked_round = sequence.round();
  view.asked_len = draft_len;
  commit(sequence, draft_len, request);
}

// A sequence is opened when it first runs, so that the draft reads the prompt while the target
// does, unless it is too short ever to take a draft after its first token.
bool DraftLedger::open(Sequence& sequence, DraftRequest& request) const {
  DraftView& view = sequence.draft_view;
  if (view.num_known_tokens > 0) return true;
  const int32_t limit_after_first = sequence.draft_len_limit(
      sequence.num_prompt_tokens() + 1, config_.num_speculative_tokens, config_.max_model_len);
  if (limit_after_first == 0) return false;
  request.opens.push_back(sequence.start());
  view.num_known_tokens = sequence.num_tokens();
  return true;
}

void DraftLedger::commit(Sequence& sequence, int32_t draft_len, DraftRequest& request) const {
  DraftView& view = sequence.draft_view;
  request.commits.push_back(
      {.sequence_id = sequence.id(),
       .round = sequence.round(),
       .num_tokens_before = view.num_known_tokens,
       .tokens = {sequence.tokens().begin() + view.num_known_tokens, sequence.tokens().end()},
       .draft_len = draft_len,
       .in_flight = drafts_async(sequence) ? view.num_in_flight : -1});
  view.num_known_tokens = sequence.num_tokens();
}

// Of a block, which may have been asked for when the length was another. Asynchronous drafting goes
// on by the bonus draft token.
size_t DraftLedger::most_tokens(const Sequence& sequence) const {
  const int32_t longest = config_.num_speculative_tokens;
  if (drafts_async(sequence)) return static_cast<size_t>(longest) + 1;
  return static_cast<size_t>(
      sequence.draft_len_limit(sequence.num_tokens(), longest, config_.max_model_len));
}

// How many tokens can be used of those at hand from index `first` on. The worker's word is not
// trusted: the accept rule divides by its numbers.
size_t DraftLedger::num_well_formed(const Sequence& sequence, size_t first) const {
  const int32_t vocab_size =
      config_.vocab_size > 0 ? config_.vocab_size : std::numeric_limits<int32_t>::max();
  const std::span<const DraftToken> block = sequence.draft_view.block;
  const size_t end = std::min(block.size(), most_tokens(sequence));
  size_t good = first;
  while (good < end && valid_draft(block[good], vocab_size)) ++good;
  return good - first;
}

bool DraftLedger::offer(const PackedBlock& block) {
  if (!uses_model()) return false;
  Sequence* sequence = pool_.find(block.sequence_id);
  bool taken = false;
  if (sequence != nullptr && block.round == sequence->round()) {
    taken = take_block(*sequence, block);
  } else if (sequence != nullptr && block.round == sequence->round() + 1) {
    taken = take_prepared(*sequence, block);
  }
  if (!taken) ++counters_.num_stale_blocks;
  return taken;
}

bool DraftLedger::awaits_tokens(uint64_t sequence_id) const {
  const Sequence* const sequence = pool_.find(sequence_id);
  if (sequence == nullptr) return false;
  const DraftView& view = sequence->draft_view;
  const int32_t useful_len = std::max(verify_len_of(view), view.wanted_len);
  return useful_len < 0 || std::ssize(view.block) < useful_len;
}

// Tokens for the next round or, while it is in flight, behind those that are being verified.
bool DraftLedger::take_block(Sequence& sequence, const PackedBlock& block) {
  DraftView& view = sequence.draft_view;
  if (block.base_len != sequence.num_tokens() || view.is_complete) return false;
  if (block.first < 0 || static_cast<size_t>(block.first) != view.block.size()) return false;
  const bool async = drafts_async(sequence);
  // What was prepared for the outcome that came is a block like any other.
  const bool guessed = async && block.guess == sequence.tokens().back();
  if (block.guess != -1 && !guessed) return false;
  const size_t num_before = view.block.size();
  // Not even unpacked: it may be of any length.
  const bool too_long = num_before + block.tokens.size() > most_tokens(sequence);
  if (too_long && block.tokens.size() > 0) return false;
  if (!block.tokens.unpack(view.block) ||
      num_well_formed(sequence, num_before) < block.tokens.size()) {
    view.block.resize(num_before);
    return false;
  }
  view.is_complete = !async || block.tokens.size() == 0;
  return true;
}

// Tokens for the round after the one in flight, behind one of its possible outcomes.
bool DraftLedger::take_prepared(Sequence& sequence, const PackedBlock& block) {
  DraftView& view = sequence.draft_view;
  if (!drafts_async(sequence) || view.num_in_flight < 0 || block.guess < 0) return false;
  const int64_t num_accepted = int64_t{block.base_len} - sequence.num_tokens() - 1;
  if (num_accepted < 0 || num_accepted > view.num_in_flight) return false;
  if (!view.outcomes.store(block.base_len, block.guess, block.first, block.tokens)) return false;
  counters_.num_prepared_tokens += block.tokens.size();
  return true;
}

bool DraftLedger::lacks_tokens() const {
  if (!uses_model()) return false;
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() > 1 || sequence->round() == 0) continue;
    const DraftView& view = sequence->draft_view;
    if (!view.is_complete && std::ssize(view.block) < limit_now(*sequence)) return true;
  }
  return false;
}

// Drafts that are made by counting are at hand as soon as they are wanted.
RoundState DraftLedger::state() const {
  const bool has_worker = config_.draft_method == DraftMethod::kDraftModel;
  RoundState state;
  state.max_rows = config_.max_num_batched_tokens;
  state.sequences.reserve(pool_.running().size());
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() > 1) continue;
    SequenceState& one = state.sequences.emplace_back();
    one.sequence_id = sequence->id();
    one.num_context = sequence->num_tokens();
    one.limit = limit(*sequence, sequence->num_tokens(), config_.num_speculative_tokens);
    one.fixed = sequence->params().fixed_draft_len;
    const DraftView& view = sequence->draft_view;
    const auto num_drafted = static_cast<int32_t>(view.block.size());
    one.num_at_hand = has_worker ? std::min(num_drafted, one.limit) : one.limit;
    if (has_worker && sequence->round() > 0) offer_backup(*sequence, one);
    one.in_one_piece = !drafts_async(*sequence);
    if (one.in_one_piece && view.asked_round == sequence->round()) one.asked_len = view.asked_len;
    one.more_coming = uses_model() && sequence->round() > 0 && !view.is_complete;
  }
  add_prompts(&state);
  return state;
}

// Drafts may take half of the rows from them (RoundBuilder).
void DraftLedger::add_prompts(RoundState* state) const {
  const auto num_decodes = static_cast<int32_t>(state->sequences.size());
  int32_t rows_left = (std::max(0, state->max_rows - num_decodes) + 1) / 2;
  for (const auto& [order, sequence] : pool_.running()) {
    if (sequence->num_uncomputed() <= 1) continue;
    const int32_t num_rows = std::min(sequence->num_uncomputed(), rows_left);
    if (num_rows == 0) return;
    const int64_t num_before = sequence->num_computed();
    rows_left -= num_rows;
    state->num_prompt_rows += num_rows;
    state->num_prompt_kv_positions += num_before + num_rows;
    state->num_prompt_positions +=
        num_rows * num_before + static_cast<int64_t>(num_rows) * (num_rows + 1) / 2;
  }
}

// Proposed once for each length of the text: choices are made anew while the round waits.
void DraftLedger::offer_backup(Sequence& sequence, SequenceState& state) const {
  if (!own_.any() || state.limit == 0) return;
  DraftView& view = sequence.draft_view;
  if (!view.backup) view.backup = own_.propose(sequence, state.limit, state.limit);
  state.backup_source = view.backup->source;
  state.backup_len = std::min(state.limit, static_cast<int32_t>(view.backup->tokens.size()));
  state.match_len = view.backup->match_len;
}

DraftProposal DraftLedger::draft_for(const Sequence& sequence) {
  const DraftView& view = sequence.draft_view;
  const int32_t draft_len =
      limit(sequence, sequence.num_tokens(), view.verify_len < 0 ? draft_len_ : view.verify_len);
  if (config_.draft_method != DraftMethod::kDraftModel) {
    // What a grammar forces: as much as ever fits, whatever length was chosen, while it pays.
    const int32_t longest = own_.forced_tokens_pay() ? config_.num_speculative_tokens : draft_len;
    return own_.propose(sequence, draft_len, limit(sequence, sequence.num_tokens(), longest));
  }
  const std::vector<DraftToken>& tokens = view.uses_backup ? view.backup->tokens : view.block;
  const auto num_used = std::min<ptrdiff_t>(draft_len, std::ssize(tokens));
  DraftProposal proposal;
  if (!spare_drafts_.empty()) {
    proposal.tokens = std::move(spare_drafts_.back());
    spare_drafts_.pop_back();
  }
  proposal.tokens.assign(tokens.begin(), tokens.begin() + num_used);
  proposal.source = view.uses_backup    ? view.backup->source
                    : view.was_prepared ? BlockSource::kSpeculationCache
                                        : BlockSource::kDraftModel;
  return proposal;
}

void DraftLedger::recycle(RoundPlan& plan) {
  if (config_.draft_method != DraftMethod::kDraftModel) return;  // others bring their own
  for (SequencePlan& planned : plan.sequences) {
    if (planned.draft.capacity() > 0) spare_drafts_.push_back(std::move(planned.draft));
  }
}

std::optional<DraftToken> DraftLedger::begin_round(Sequence& sequence, int32_t num_granted) {
  DraftView& view = sequence.draft_view;
  view.uses_backup = view.uses_backup && num_granted > 0;
  if (!uses_model() || !drafts_async(sequence)) return std::nullopt;
  // None of its own: behind a backup the draft prepares for the case that it is rejected at once.
  view.num_in_flight = view.uses_backup ? 0 : num_granted;
  return late_draft_token(sequence);
}

bool DraftLedger::awaits_bonus_draft(const Sequence& sequence) const {
  if (!uses_model() || !drafts_async(sequence)) return false;
  if (sequence.draft_view.uses_backup) return false;  // it stands behind other tokens
  if (limit_next(sequence) == 0) return false;        // not told of the round
  return judges_bonus_drafts(sequence.params());
}

std::optional<DraftToken> DraftLedger::late_draft_token(const Sequence& sequence) const {
  const DraftView& view = sequence.draft_view;
  if (view.num_in_flight < 0 || std::ssize(view.block) <= view.num_in_flight) return std::nullopt;
  if (!awaits_bonus_draft(sequence)) return std::nullopt;
  return view.block[static_cast<size_t>(view.num_in_flight)];
}

void DraftLedger::sequence_committed(Sequence& sequence,
                                     const SequencePlan& plan,
                                     const SequenceDecision& decision) {
  own_.learn(sequence, static_cast<int32_t>(plan.draft.size()), decision.num_accepted);
  DraftResult result = result_of(sequence, plan, decision);
  DraftView& view = sequence.draft_view;
  view.block.clear();
  view.is_complete = false;
  view.was_prepared = false;
  view.verify_len = -1;
  view.backup.reset();
  view.uses_backup = false;
  if (std::exchange(view.num_in_flight, -1) >= 0) result.num_prepared = look_up(sequence);
  if (!decision.failed) news_.results.push_back(result);
}

DraftResult DraftLedger::result_of(const Sequence& sequence,
                                   const SequencePlan& plan,
                                   const SequenceDecision& decision) const {
  const DraftView& view = sequence.draft_view;
  DraftResult result{.sequence_id = sequence.id(), .source = plan.source};
  result.num_drafted = static_cast<int32_t>(plan.draft.size());
  result.num_accepted = decision.num_accepted;
  result.all_accepted = result.num_accepted == result.num_drafted;
  const int32_t first = result.num_accepted > 0 ? plan.draft[0].token : decision.next_token;
  if (view.backup && !view.backup->tokens.empty()) {
    result.backup_source = view.backup->source;
    result.match_len = view.backup->match_len;
    if (!view.uses_backup) result.backup_counterfactual = view.backup->tokens[0].token == first;
  }
  const size_t behind = view.uses_backup ? 0 : plan.draft.size();
  if (result.all_accepted && plan.bonus_draft) {
    ++result.num_drafted;
    result.num_accepted += bonus_draft_accepted(plan, decision) ? 1 : 0;
  } else if ((result.all_accepted || view.uses_backup) && view.num_in_flight >= 0 &&
             view.block.size() > behind) {
    const int32_t came = view.uses_backup ? first : decision.next_token;
    result.counterfactual = view.block[behind].token == came;
  }
  return result;
}

// How much was prepared for the round's outcome; nothing when the draft could not prepare for it.
std::optional<int32_t> DraftLedger::look_up(Sequence& sequence) {
  DraftView& view = sequence.draft_view;
  const size_t num_prepared = view.outcomes.num_tokens();
  view.outcomes.take(sequence.num_tokens(), sequence.tokens().back(), view.block);
  counters_.num_prepared_dropped += num_prepared - view.block.size();
  const bool was_told = view.num_told_rounds == sequence.round();
  if (!was_told || limit_now(sequence) == 0) {
    view.block.clear();
    return std::nullopt;
  }
  ++counters_.num_lookups;
  view.block.resize(num_well_formed(sequence, 0));
  view.was_prepared = !view.block.empty();
  if (view.was_prepared) ++counters_.num_hits;
  return static_cast<int32_t>(view.block.size());
}

void DraftLedger::sequence_ended(const Sequence& sequence) {
  counters_.num_prepared_dropped += sequence.draft_view.outcomes.num_tokens();
  if (sequence.draft_view.num_known_tokens > 0) closes_.push_back(sequence.id());
  news_.ended.push_back(sequence.id());
}

void DraftLedger::set_available(bool available) {
  if (available == available_) return;
  available_ = available;
  closes_.clear();
  for (const auto& [order, sequence] : pool_.running()) sequence->draft_view = {};
  for (const auto& [order, sequence] : pool_.waiting()) sequence->draft_view = {};
}

}  // namespace outrider
