// See witness.h.
#include "tests/simulation/witness.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "scheduler/drafting/ngram.h"
#include "scheduler/drafting/propose.h"
#include "scheduler/verification/rules.h"

namespace outrider::test {
namespace {

constexpr size_t kMostFaults = 20;

uint64_t hash_of(int32_t base_len, int32_t guess, int32_t index, const DraftToken& token) {
  uint64_t hash = mix_seed(static_cast<uint64_t>(base_len) << 32 | static_cast<uint32_t>(guess),
                           static_cast<uint64_t>(index) << 32 | static_cast<uint32_t>(token.token));
  for (const DraftCandidate& candidate : token.candidates)
    hash = mix_seed(hash,
                    static_cast<uint64_t>(candidate.token) << 32 |
                        std::bit_cast<uint32_t>(candidate.draft_prob));
  return hash;
}

bool is_stop(const SamplingParams& params, int32_t token) {
  return std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end();
}

}  // namespace

void Witness::fault(const std::string& what) {
  if (faults_.size() < kMostFaults)
    faults_.push_back(fmt::format("round {}: {}", num_rounds_, what));
}

void Witness::note_submitted(const Request& request) {
  Known known;
  known.params = request.params;
  const PlannerConfig& config = setting_.planner;
  known.order = {.priority = request.priority, .arrival = request.id};
  if (config.scheduling_policy == SchedulingPolicy::kPriority && config.priority_aging_rounds > 0)
    known.order.turn = static_cast<int64_t>(num_rounds_) +
                       int64_t{request.priority} * config.priority_aging_rounds;
  known.num_prompt = static_cast<int32_t>(request.prompt.size());
  known.tokens = request.prompt;
  known.tokens.insert(known.tokens.end(), request.resumed.begin(), request.resumed.end());
  known_.emplace(request.id, std::move(known));
}

void Witness::note_cancelled(uint64_t id) {
  if (const auto found = known_.find(id); found != known_.end()) found->second.is_cancelled = true;
}

void Witness::note_over(uint64_t id) {
  ended_.erase(id);
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  found->second.is_over = found->second.is_read = true;
  if (!found->second.is_started) known_.erase(found);
}

const std::vector<int32_t>* Witness::text_of(uint64_t id) const {
  if (const auto found = known_.find(id); found != known_.end()) return &found->second.tokens;
  const auto ended = ended_.find(id);
  return ended == ended_.end() ? nullptr : &ended->second;
}

std::optional<Witness::Place> Witness::place_of(uint64_t id) const {
  const auto found = known_.find(id);
  if (found == known_.end() || found->second.is_over) return std::nullopt;
  return Place{found->second.round, static_cast<int32_t>(found->second.tokens.size())};
}

void Witness::note_offered(const PackedReply& reply) {
  for (const PackedBlock& block : reply.blocks) {
    const auto found = known_.find(block.sequence_id);
    if (found == known_.end()) continue;
    std::vector<DraftToken> tokens;
    if (!block.tokens.unpack(tokens)) continue;
    Known& known = found->second;
    if (block.round - known.round >= kRoundsAhead) continue;
    for (size_t i = 0; i < tokens.size(); ++i)
      known.offered[block.round % kRoundsAhead].insert(
          hash_of(block.base_len, block.guess, block.first + static_cast<int32_t>(i), tokens[i]));
  }
}

// I8: none overtakes another.
void Witness::see_start(const RoundPlan& plan, const Known& started) {
  for (const auto& [id, known] : known_) {
    if (known.is_over || known.is_cancelled || known.order >= started.order) continue;
    if (std::ranges::find(plan.sequences, id, &SequencePlan::sequence_id) == plan.sequences.end())
      fault(fmt::format("I8: sequence {} is overtaken by {}", id, started.order.arrival));
  }
}

void Witness::see_plan(const RoundPlan& plan, bool knows_text) {
  if (plan.sequences.empty()) return;
  ++num_rounds_;
  for (const uint64_t id : plan.ends) {
    const auto found = known_.find(id);
    if (found == known_.end() || !found->second.is_started) {
      fault(fmt::format("I4: ends sequence {}, which the ranks do not know", id));
      continue;
    }
    const bool may_end = found->second.is_over || found->second.is_cancelled || !knows_text;
    if (!may_end) fault(fmt::format("sequence {} ends without a reason", id));
    if (!found->second.is_read) ended_.emplace(id, std::move(found->second.tokens));
    known_.erase(found);
  }
  for (const SequenceStart& start : plan.starts) {
    const auto found = known_.find(start.sequence_id);
    if (found == known_.end() || found->second.is_started) {
      fault(fmt::format("I4: starts sequence {} twice, or after its end", start.sequence_id));
      continue;
    }
    found->second.is_started = true;
    found->second.params = start.params;  // as the server completes them
    if (start.tokens != found->second.tokens)
      fault(fmt::format("sequence {} starts with another text", start.sequence_id));
    if (knows_text) see_start(plan, found->second);
  }
  int32_t num_rows = 0;
  for (const SequencePlan& rows : plan.sequences) {
    num_rows += num_rows_of(rows);
    see_rows(plan, rows, knows_text);
  }
  const int32_t most =
      std::max(setting_.planner.max_num_batched_tokens, setting_.planner.max_num_seqs);
  if (num_rows > most) fault(fmt::format("I7: {} rows", num_rows));
  if (std::ssize(plan.sequences) > setting_.planner.max_num_seqs) fault("more than max_num_seqs");
  if (knows_text) see_first(plan);
}

void Witness::go_on_to(uint32_t round, Known& known) {
  for (; known.round < round; ++known.round) known.offered[known.round % kRoundsAhead].clear();
}

void Witness::see_rows(const RoundPlan& plan, const SequencePlan& rows, bool knows_text) {
  const uint64_t id = rows.sequence_id;
  note(id);
  note(static_cast<uint64_t>(rows.first_position * 4096 + rows.num_committed_rows));
  const auto found = known_.find(id);
  if (found == known_.end() || !found->second.is_started)
    return fault(fmt::format("I4: sequence {} is planned and was not started", id));
  if (std::ranges::count(plan.sequences, id, &SequencePlan::sequence_id) != 1)
    fault(fmt::format("sequence {} stands twice in the plan", id));
  Known& known = found->second;
  if (!knows_text) go_on_to(rows.round, known);
  if (rows.draft.size() > static_cast<size_t>(setting_.planner.num_speculative_tokens))
    fault(fmt::format("sequence {} has {} draft tokens", id, rows.draft.size()));
  if (knows_text) {
    if (known.is_over) fault(fmt::format("sequence {} goes on after its end", id));
    if (rows.round != known.round) fault(fmt::format("sequence {} has a wrong round", id));
    const auto num_tokens = static_cast<int32_t>(known.tokens.size());
    const int32_t end = rows.first_position + rows.num_committed_rows;
    if (rows.num_committed_rows < 1 || rows.first_position < 0 || end > num_tokens)
      fault(fmt::format("I5: rows of sequence {} lie outside its text", id));
    const bool samples = end == num_tokens;
    if (!samples && (!rows.draft.empty() || rows.bonus_draft))
      fault(fmt::format("sequence {} has a draft and does not sample", id));
    const bool begins_anew = rows.first_position != known.num_computed;
    if (begins_anew && !rows.replace_blocks && known.num_computed > 0)
      fault(fmt::format("I5: sequence {} goes on at {} and not at {}",
                        id,
                        rows.first_position,
                        known.num_computed));
  }
  see_draft(rows, known, knows_text);
}

// I9 and I11: a block is for one round and one text. Verified elsewhere, its tokens would not be
// draws from their distribution with noise of their own.
void Witness::see_draft(const SequencePlan& rows, const Known& known, bool knows_text) {
  std::vector<DraftToken> judged = rows.draft;
  if (rows.bonus_draft) judged.push_back(*rows.bonus_draft);
  if (judged.empty()) return;
  if (is_backup(judged, known, knows_text)) return;
  const int32_t base_len = rows.first_position + rows.num_committed_rows;
  const auto& offered = known.offered[rows.round % kRoundsAhead];
  for (size_t i = 0; i < judged.size(); ++i) {
    note(static_cast<uint64_t>(judged[i].token));
    if (!valid_draft(judged[i], ToyLaw::kVocabSize))
      return fault(fmt::format("I9: sequence {} has a draft token that is none", rows.sequence_id));
    const auto came = [&](int32_t guess) {
      const uint64_t hash = hash_of(base_len, guess, static_cast<int32_t>(i), judged[i]);
      return rows.round == known.round && offered.contains(hash);
    };
    bool is_offered = came(-1);
    if (knows_text) is_offered = is_offered || came(known.tokens.back());
    for (int32_t guess = 0; !knows_text && !is_offered && guess < ToyLaw::kVocabSize; ++guess)
      is_offered = came(guess);
    if (is_offered) continue;
    return fault(fmt::format("I9: sequence {} verifies a draft made for another round or text",
                             rows.sequence_id));
  }
  if (knows_text && setting_.draft_faults.lies == 0) see_law(rows, known, judged);
  if (!rows.bonus_draft) return;
  const AsyncDrafting mode = known.params.async_drafting == AsyncDrafting::kAuto
                                 ? setting_.async_drafting
                                 : known.params.async_drafting;
  if (mode == AsyncDrafting::kOff || !judges_bonus_drafts(known.params))
    fault(fmt::format("sequence {} has a bonus draft that is not for it", rows.sequence_id));
}

// Whether it may be the n-gram source's.
bool Witness::is_backup(std::span<const DraftToken> judged,
                        const Known& known,
                        bool knows_text) const {
  const PlannerConfig& config = setting_.planner;
  if (config.backup_method != DraftMethod::kNgram) return false;
  const auto certain = [](const DraftToken& token) { return token.candidates.empty(); };
  if (!std::ranges::all_of(judged, certain)) return false;
  if (!knows_text) return true;
  const auto proposal = propose_ngram(known.tokens,
                                      {config.prompt_lookup_max, config.prompt_lookup_min},
                                      static_cast<int32_t>(judged.size()));
  return std::ranges::equal(proposal.tokens, judged, {}, {}, &DraftToken::token);
}

// I11: what an honest draft sends was drawn from its law with the noise of the round that verifies
// it, in whichever life, prepared for an outcome or asked for behind it.
void Witness::see_law(const SequencePlan& rows,
                      const Known& known,
                      std::span<const DraftToken> judged) {
  std::array<float, ToyLaw::kVocabSize> logits;
  uint64_t state = 0;
  for (const int32_t token : known.tokens) state = setting_.law.next(state, token);
  for (size_t i = 0; i < judged.size(); ++i) {
    toy_logits(setting_.law, true, state, logits);
    const DraftToken drawn = propose({.params = &known.params,
                                      .tokens = known.tokens,
                                      .num_prompt_tokens = known.num_prompt,
                                      .drafted = judged.first(i),
                                      .round = rows.round,
                                      .logits = logits.data(),
                                      .vocab_size = ToyLaw::kVocabSize,
                                      .target_vocab_size = ToyLaw::kVocabSize,
                                      .num_candidates = kNumCandidates});
    if (drawn != judged[i])
      return fault(
          fmt::format("I11: draft token {} of sequence {} was drawn for another round or text",
                      i,
                      rows.sequence_id));
    state = setting_.law.next(state, judged[i].token);
  }
}

// I8. Who waits with a better priority is not let in before there is room, so only where all are
// equal the first is known from outside.
void Witness::see_first(const RoundPlan& plan) {
  if (setting_.clients.priorities) return;
  for (const auto& [id, known] : known_) {
    if (known.is_over) continue;
    if (known.is_cancelled) return;
    if (std::ranges::find(plan.sequences, id, &SequencePlan::sequence_id) == plan.sequences.end())
      fault(fmt::format("I8: the first in order, {}, does not run", id));
    return;
  }
}

void Witness::see_decision(const RoundPlan& plan, const RoundDecision& decision) {
  if (decision.sequences.size() != plan.sequences.size())
    return fault("I4: the decision is not of the plan");
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    if (decision.sequences[i].sequence_id != plan.sequences[i].sequence_id)
      return fault("I4: the decision is not in the plan's order");
    see_outcome(plan.sequences[i], decision.sequences[i]);
  }
}

void Witness::see_outcome(const SequencePlan& rows, const SequenceDecision& made) {
  const auto found = known_.find(rows.sequence_id);
  if (found == known_.end()) return;
  Known& known = found->second;
  note(static_cast<uint64_t>(made.next_token + 1) << 8 | static_cast<uint64_t>(made.num_accepted));
  if (made.failed) {
    known.is_over = true;
    if (made.num_accepted > 0 || made.next_token >= 0)
      fault(fmt::format("I13: sequence {} failed and commits", rows.sequence_id));
    return;
  }
  const int32_t end = rows.first_position + rows.num_committed_rows;
  const bool samples = end == static_cast<int32_t>(known.tokens.size());
  if (samples != (made.next_token >= 0))
    return fault(fmt::format("sequence {} samples, or not, against its plan", rows.sequence_id));
  if (!samples) {
    known.num_computed = end;
    return;
  }
  if (made.num_accepted < 0 || made.num_accepted > std::ssize(rows.draft))
    return fault(fmt::format("sequence {} accepts more than it had", rows.sequence_id));
  commit(rows, made, known);
}

void Witness::commit(const SequencePlan& rows, const SequenceDecision& made, Known& known) {
  known.num_computed = static_cast<int32_t>(known.tokens.size()) + made.num_accepted;
  go_on_to(known.round + 1, known);
  if (known.params.max_tokens == 0) {
    known.is_over = true;
    return;
  }
  uint64_t state = 0;
  for (const int32_t token : known.tokens) state = setting_.law.next(state, token);
  for (int32_t i = 0; i <= made.num_accepted && !known.is_over; ++i) {
    const int32_t token =
        i < made.num_accepted ? rows.draft[static_cast<size_t>(i)].token : made.next_token;
    const ToyLaw::Words words = setting_.law.words(state);
    const auto num_output = static_cast<int32_t>(known.tokens.size()) - known.num_prompt;
    const bool is_masked = num_output < known.params.min_tokens;  // may leave none of its words
    if (!is_masked && std::ranges::find(words.kept, token) == words.kept.end())
      fault(fmt::format("sequence {} says what the target never says", rows.sequence_id));
    state = setting_.law.next(state, token);
    if (num_output >= known.params.min_tokens && is_stop(known.params, token)) {
      known.is_over = true;
      break;
    }
    known.tokens.push_back(token);
    known.is_over = num_output + 1 >= known.params.max_tokens ||
                    std::ssize(known.tokens) >= setting_.planner.max_model_len;
  }
}

}  // namespace outrider::test
