// See draft_ledger.h.
#include "scheduler/batching/draft_ledger.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/base/numbers/exact_math.h"
#include "scheduler/drafting/ngram.h"
#include "scheduler/verification/rules.h"

namespace outrider {

DraftLedger::DraftLedger(const PlannerConfig& config)
    : config_(config), draft_len_(config.num_speculative_tokens) {
  const bool counts =
      config.draft_method == DraftMethod::kUnigram || config.draft_method == DraftMethod::kBigram;
  if (!counts || config.draft_corpus != nullptr) return;
  served_.emplace(config.draft_method == DraftMethod::kBigram ? CountingOrder::kBigram
                                                              : CountingOrder::kUnigram,
                  config.vocab_size > 0 ? config.vocab_size : kMaxVocabSize);
}

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
  return limit(sequence, sequence.num_tokens(), std::max(view.verify_len, wanted));
}

// Of the block for the round after it, which stands behind one more token at least.
int32_t DraftLedger::limit_next(const Sequence& sequence) const {
  const int32_t wanted = sequence.draft_view.wanted_len;
  return limit(sequence, sequence.num_tokens() + 1, wanted < 0 ? draft_len_ : wanted);
}

DraftRequest DraftLedger::take_request(const SequencePool& pool, bool asks) {
  DraftRequest request;
  if (!uses_model()) return request;
  request.closes = std::exchange(closes_, {});
  for (const auto& [order, sequence] : pool.running()) describe(*sequence, asks, request);
  for (const auto& [order, sequence] : pool.waiting()) {
    if (sequence->scheduled_at) describe(*sequence, asks, request);
  }
  return request;
}

void DraftLedger::describe(Sequence& sequence, bool asks, DraftRequest& request) const {
  DraftView& view = sequence.draft_view;
  const bool rests = view.wanted_len == 0 || (view.wanted_len < 0 && draft_len_ == 0);
  if (rests && view.verify_len <= 0 && !sequence.params().fixed_draft_len) return;
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
  DraftCommit commit;
  commit.sequence_id = sequence.id();
  commit.round = sequence.round();
  commit.num_tokens_before = view.num_known_tokens;
  commit.tokens.assign(sequence.tokens().begin() + view.num_known_tokens, sequence.tokens().end());
  commit.draft_len = draft_len;
  commit.in_flight = drafts_async(sequence) ? view.num_in_flight : -1;
  request.commits.push_back(std::move(commit));
  view.num_known_tokens = sequence.num_tokens();
}

// How many tokens can be used of those that begin at index `first` of a block. The worker's word is
// not trusted: the accept rule divides by its numbers.
size_t DraftLedger::num_well_formed(const Sequence& sequence,
                                    size_t first,
                                    const std::vector<DraftToken>& tokens) const {
  // Asked for when the length was another, maybe. Who drafts asynchronously goes on by the bonus
  // draft token.
  int32_t most = config_.num_speculative_tokens + 1;
  if (!drafts_async(sequence)) {
    most = sequence.draft_len_limit(
        sequence.num_tokens(), config_.num_speculative_tokens, config_.max_model_len);
  }
  const int32_t vocab_size =
      config_.vocab_size > 0 ? config_.vocab_size : std::numeric_limits<int32_t>::max();
  const ptrdiff_t room = std::max<ptrdiff_t>(most - static_cast<ptrdiff_t>(first), 0);
  const auto end = tokens.begin() + std::min(room, std::ssize(tokens));
  const auto bad = std::find_if(tokens.begin(), end, [&](const DraftToken& token) {
    return !valid_draft(token, vocab_size);
  });
  return static_cast<size_t>(bad - tokens.begin());
}

bool DraftLedger::offer(const SequencePool& pool, PackedBlock block) {
  if (!uses_model()) return false;
  Sequence* sequence = pool.find(block.sequence_id);
  bool taken = false;
  if (sequence != nullptr && block.round == sequence->round()) {
    taken = take_block(*sequence, std::move(block));
  } else if (sequence != nullptr && block.round == sequence->round() + 1) {
    taken = take_prepared(*sequence, std::move(block));
  }
  if (!taken) ++counters_.num_stale_blocks;
  return taken;
}

bool DraftLedger::awaits_tokens(const SequencePool& pool, uint64_t sequence_id) const {
  const Sequence* const sequence = pool.find(sequence_id);
  if (sequence == nullptr) return false;
  const DraftView& view = sequence->draft_view;
  const int32_t useful_len = std::max(view.verify_len, view.wanted_len);
  return useful_len < 0 || std::ssize(view.block) < useful_len;
}

// Tokens for the next round or, while it is in flight, behind those that are being verified.
bool DraftLedger::take_block(Sequence& sequence, PackedBlock block) {
  DraftView& view = sequence.draft_view;
  if (block.base_len != sequence.num_tokens() || view.is_complete) return false;
  if (block.first < 0 || static_cast<size_t>(block.first) != view.block.size()) return false;
  const bool async = drafts_async(sequence);
  // What was prepared for the outcome that came is a block like any other.
  const bool guessed = async && block.guess == sequence.tokens().back();
  if (block.guess != -1 && !guessed) return false;
  auto tokens = block.tokens.unpack();
  if (!tokens || num_well_formed(sequence, view.block.size(), *tokens) < tokens->size()) {
    return false;
  }
  view.is_complete = !async || tokens->empty();
  view.block.insert(view.block.end(),
                    std::make_move_iterator(tokens->begin()),
                    std::make_move_iterator(tokens->end()));
  return true;
}

// Tokens for the round after the one in flight, behind one of its possible outcomes.
bool DraftLedger::take_prepared(Sequence& sequence, PackedBlock block) {
  DraftView& view = sequence.draft_view;
  if (!drafts_async(sequence) || view.num_in_flight < 0 || block.guess < 0) return false;
  const int64_t num_accepted = int64_t{block.base_len} - sequence.num_tokens() - 1;
  if (num_accepted < 0 || num_accepted > view.num_in_flight) return false;
  const size_t num_tokens = block.tokens.size();
  if (!view.outcomes.store(block.base_len, block.guess, block.first, std::move(block.tokens))) {
    return false;
  }
  counters_.num_prepared_tokens += num_tokens;
  return true;
}

bool DraftLedger::lacks_tokens(const SequencePool& pool) const {
  if (!uses_model()) return false;
  for (const auto& [order, sequence] : pool.running()) {
    if (sequence->num_uncomputed() > 1 || sequence->round() == 0) continue;
    const DraftView& view = sequence->draft_view;
    if (!view.is_complete && std::ssize(view.block) < limit_now(*sequence)) return true;
  }
  return false;
}

// Drafts that are made by counting are at hand as soon as they are wanted.
RoundState DraftLedger::state(const SequencePool& pool) const {
  const bool has_worker = config_.draft_method == DraftMethod::kDraftModel;
  RoundState state;
  state.max_rows = config_.max_num_batched_tokens;
  for (const auto& [order, sequence] : pool.running()) {
    if (sequence->num_uncomputed() > 1) continue;
    SequenceState& one = state.sequences.emplace_back();
    one.sequence_id = sequence->id();
    one.num_context = sequence->num_tokens();
    one.limit = limit(*sequence, sequence->num_tokens(), config_.num_speculative_tokens);
    one.fixed = sequence->params().fixed_draft_len;
    const DraftView& view = sequence->draft_view;
    const auto num_drafted = static_cast<int32_t>(view.block.size());
    one.num_at_hand = has_worker ? std::min(num_drafted, one.limit) : one.limit;
    one.in_one_piece = !drafts_async(*sequence);
    if (one.in_one_piece && view.asked_round == sequence->round()) one.asked_len = view.asked_len;
    one.more_coming = uses_model() && sequence->round() > 0 && !view.is_complete;
  }
  add_prompts(pool, &state);
  return state;
}

// Drafts may take half of the rows from them (RoundBuilder).
void DraftLedger::add_prompts(const SequencePool& pool, RoundState* state) const {
  const auto num_decodes = static_cast<int32_t>(state->sequences.size());
  int32_t rows_left = (std::max(0, state->max_rows - num_decodes) + 1) / 2;
  for (const auto& [order, sequence] : pool.running()) {
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

std::vector<DraftToken> DraftLedger::draft_for(const Sequence& sequence) const {
  const int32_t chosen = sequence.draft_view.verify_len;
  const int32_t draft_len =
      limit(sequence, sequence.num_tokens(), chosen < 0 ? draft_len_ : chosen);
  std::vector<DraftToken> draft;
  if (config_.draft_method == DraftMethod::kDraftModel) {
    const std::vector<DraftToken>& block = sequence.draft_view.block;
    const auto num_used = std::min<ptrdiff_t>(draft_len, std::ssize(block));
    draft.assign(block.begin(), block.begin() + num_used);
  } else if (config_.draft_method == DraftMethod::kNgram) {
    const NgramConfig ngram = {config_.prompt_lookup_max, config_.prompt_lookup_min};
    for (int32_t token : propose_ngram(sequence.tokens(), ngram, draft_len))
      draft.push_back({token, {}});
  } else if (served_ || config_.draft_corpus) {
    draft = counted_draft(sequence, draft_len);
  }
  if (static_cast<int64_t>(draft.size()) > draft_len) draft.resize(static_cast<size_t>(draft_len));
  if (sequence.grammar) shape_by_grammar(sequence, draft_len, draft);
  return draft;
}

// Cuts the draft where the grammar forbids it, and adds what the grammar forces behind it: as much
// as ever fits, whatever length was chosen, while most of it is accepted. The text is certain, not
// how the target cuts it into tokens. A draft model needs neither: it masks its rows, and then
// proposes a token that is forced with certainty.
void DraftLedger::shape_by_grammar(const Sequence& sequence,
                                   int32_t draft_len,
                                   std::vector<DraftToken>& draft) const {
  std::vector<int32_t> tokens;
  for (const DraftToken& token : draft) tokens.push_back(token.token);
  TokenHistory history{.committed = sequence.tokens(),
                       .num_prompt_tokens = sequence.num_prompt_tokens(),
                       .drafted = {}};
  tokens.resize(sequence.grammar->num_allowed(history, tokens));
  draft.resize(tokens.size());
  const int32_t longest = shaped_.pays() ? config_.num_speculative_tokens : draft_len;
  const int32_t most = limit(sequence, sequence.num_tokens(), longest);
  if (std::ssize(draft) >= most) return;
  history.drafted = tokens;
  const size_t room = static_cast<size_t>(most) - draft.size();
  for (int32_t token : sequence.grammar->forced_tokens(history, room)) draft.push_back({token, {}});
}

std::vector<DraftToken> DraftLedger::counted_draft(const Sequence& sequence,
                                                   int32_t draft_len) const {
  return propose_bigram(served_ ? *served_ : *config_.draft_corpus,
                        {.params = &sequence.params(),
                         .tokens = sequence.tokens(),
                         .round = sequence.round(),
                         .draft_len = draft_len,
                         .num_candidates = config_.num_draft_candidates});
}

void DraftLedger::ShapedDrafts::count(int64_t num_drafted, int64_t num_accepted) {
  num_judged_ += std::min(num_drafted, num_accepted + 1);
  num_accepted_ += num_accepted;
  if (num_judged_ < kMostJudged) return;
  num_judged_ /= 2;
  num_accepted_ /= 2;
}

BlockSource DraftLedger::source_of(const Sequence& sequence, size_t num_tokens) const {
  if (num_tokens == 0) return BlockSource::kNone;
  if (!uses_model()) return BlockSource::kOwn;
  return sequence.draft_view.was_prepared ? BlockSource::kAtHand : BlockSource::kWaitedFor;
}

std::optional<DraftToken> DraftLedger::begin_round(Sequence& sequence, int32_t num_granted) {
  if (!uses_model() || !drafts_async(sequence)) return std::nullopt;
  sequence.draft_view.num_in_flight = num_granted;
  return late_draft_token(sequence);
}

bool DraftLedger::awaits_bonus_draft(const Sequence& sequence) const {
  if (!uses_model() || !drafts_async(sequence)) return false;
  if (limit_next(sequence) == 0) return false;  // not told of the round
  const VerifyRule rule = resolve_rule(sequence.params());
  return rule == VerifyRule::kStandard || rule == VerifyRule::kBlock;
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
  if (served_) {
    served_->learn(sequence.tokens(), static_cast<size_t>(sequence.num_learned_tokens));
    sequence.num_learned_tokens = sequence.num_tokens();
  }
  if (sequence.grammar) shaped_.count(std::ssize(plan.draft), decision.num_accepted);
  DraftView& view = sequence.draft_view;
  DraftResult result{.sequence_id = sequence.id()};
  result.num_drafted = static_cast<int32_t>(plan.draft.size());
  result.num_accepted = decision.num_accepted;
  result.all_accepted = result.num_accepted == result.num_drafted;
  const size_t behind = plan.draft.size();
  if (result.all_accepted && plan.bonus_draft) {
    ++result.num_drafted;
    result.num_accepted += bonus_draft_accepted(plan, decision) ? 1 : 0;
  } else if (result.all_accepted && view.num_in_flight >= 0 && view.block.size() > behind) {
    result.counterfactual = view.block[behind].token == decision.next_token;
  }
  view.block.clear();
  view.is_complete = false;
  view.was_prepared = false;
  view.verify_len = -1;
  if (std::exchange(view.num_in_flight, -1) >= 0) result.num_prepared = look_up(sequence);
  if (!decision.failed) news_.results.push_back(result);
}

// How much was prepared for the round's outcome; nothing when the draft could not prepare for it.
std::optional<int32_t> DraftLedger::look_up(Sequence& sequence) {
  DraftView& view = sequence.draft_view;
  const size_t num_prepared = view.outcomes.num_tokens();
  auto prepared = view.outcomes.take(sequence.num_tokens(), sequence.tokens().back());
  counters_.num_prepared_dropped += num_prepared - (prepared ? prepared->size() : 0);
  const bool was_told = view.num_told_rounds == sequence.round();
  if (!was_told || limit_now(sequence) == 0) return std::nullopt;
  ++counters_.num_lookups;
  if (!prepared) return 0;
  prepared->resize(num_well_formed(sequence, 0, *prepared));
  view.block = std::move(*prepared);
  view.was_prepared = !view.block.empty();
  if (view.was_prepared) ++counters_.num_hits;
  return static_cast<int32_t>(view.block.size());
}

void DraftLedger::sequence_ended(const Sequence& sequence) {
  counters_.num_prepared_dropped += sequence.draft_view.outcomes.num_tokens();
  if (sequence.draft_view.num_known_tokens > 0) closes_.push_back(sequence.id());
  news_.ended.push_back(sequence.id());
}

void DraftLedger::set_available(const SequencePool& pool, bool available) {
  if (available == available_) return;
  available_ = available;
  closes_.clear();
  for (const auto& [order, sequence] : pool.running()) sequence->draft_view = {};
  for (const auto& [order, sequence] : pool.waiting()) sequence->draft_view = {};
}

}  // namespace outrider
