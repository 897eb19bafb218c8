// See step.h.
#include "runtime/ranks/draft/step.h"

#include <algorithm>
#include <tuple>

#include "scheduler/pacing/constants.h"

namespace outrider {
void DraftStep::plan(const StepTimes& costs) {
  batch_.clear();
  chunks_.clear();
  proposing_.clear();
  num_planned_ = 0;
  num_urgent_ = 0;
  most_rows_ = 0;
  num_planned_logits_ = 0;
  largest_chunk_ = 0;
  // All room is found before a row is written: finding it may take blocks from other chains.
  plan_main_chains(costs);
  plan_branches(costs);
  num_steps_ = steps_together();
  for (const Chunk& chunk : chunks_) add_rows(chunk);
}

// Where somebody waits for every chain of the step and the model can choose their tokens, it makes
// as many steps as all of them want tokens.
int32_t DraftStep::steps_together() {
  int32_t num_steps = is_plain_ ? model_.most_chained_steps() : 1;
  if (num_planned_ > model_.most_chained_rows() || chunks_.empty()) return 1;
  for (const Chunk& chunk : chunks_) {
    const DraftSequence& sequence = *chunk.sequence;
    if (num_steps == 1 || chunk.branch >= 0 || !chunk.has_logits || !sequence.urgent()) return 1;
    if (!is_plain_(sequence)) return 1;
    const int32_t end = chunk.first + chunk.num_rows;
    const auto room = static_cast<int32_t>(model_.config().max_positions) - end + 1;
    const int32_t wanted = sequence.wanted() - sequence.main_chain.num_drafted();
    num_steps = std::min({num_steps, room, wanted});
  }
  if (num_steps < 2) return 1;
  for (const Chunk& chunk : chunks_) {
    const int32_t end = chunk.first + chunk.num_rows;
    if (!sequences_.make_room(chunk.sequence_id, *chunk.sequence, end + num_steps - 1)) return 1;
  }
  return num_steps;
}

// Sequences that are nearly there go first: a long prompt must not hold up the others' blocks.
void DraftStep::plan_main_chains(const StepTimes& costs) {
  std::vector<std::tuple<bool, int32_t, uint64_t, DraftSequence*>> order;
  bool branches_grow = false;
  for (auto& [id, sequence] : sequences_.all()) {
    const bool can_wait = sequence.mode != AsyncDrafting::kOff && !sequence.urgent();
    if (sequences_.main_chain_wants_step(sequence))
      order.emplace_back(can_wait, sequences_.num_missing(sequence), id, &sequence);
    branches_grow = branches_grow || !sequence.branches.empty();
  }
  std::sort(order.begin(), order.end());
  for (const auto& [can_wait, num_missing, id, sequence] : order) {
    if (!can_wait) {
      plan_main_chain(id, *sequence, room_left());
      num_urgent_ = num_planned_;
      continue;
    }
    // A prompt that nobody waits for is read in the time that the others leave.
    const int32_t most = num_missing > 2 && branches_grow
                             ? static_cast<int32_t>(pacing.prompt_rows_beside_branches)
                             : room_left();
    plan_main_chain(id, *sequence, std::min(most, optional_rows(costs)));
  }
}

int32_t DraftStep::room_left() const { return model_.options().max_rows - num_planned_; }

// Rows that may be added without slowing those that are waited for.
int32_t DraftStep::optional_rows(const StepTimes& costs) {
  if (num_urgent_ == 0) return room_left();
  if (most_rows_ == 0) {
    const double limit = pacing.optional_slowdown * costs.at({.num_rows = num_urgent_});
    most_rows_ = num_urgent_;
    while (most_rows_ < model_.options().max_rows) {
      const int32_t next = most_rows_ + std::max(1, most_rows_ / 8);
      if (costs.at({.num_rows = next}) > limit) break;
      most_rows_ = next;
    }
  }
  return std::min(room_left(), most_rows_ - num_planned_);
}

void DraftStep::plan_branches(const StepTimes& costs) {
  struct Wanting {
    double chance = 0;
    uint64_t sequence_id = 0;
    DraftSequence* sequence = nullptr;
    int32_t branch = 0;
  };
  std::vector<Wanting> order;
  for (auto& [id, sequence] : sequences_.all()) {
    for (size_t i = 0; i < sequence.branches.size(); ++i) {
      const DraftBranch& branch = sequence.branches[i];
      if (sequences_.branch_wants_step(sequence, branch))
        order.push_back({branch.chance, id, &sequence, static_cast<int32_t>(i)});
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const Wanting& a, const Wanting& b) {
    return a.chance > b.chance;
  });
  int32_t room = order.empty() ? 0 : optional_rows(costs);
  room = std::min(room, model_.options().max_logit_rows - num_planned_logits_);
  for (const Wanting& wanting : order) {
    if (room <= 0) break;
    if (plan_branch(wanting.sequence_id, *wanting.sequence, wanting.branch)) --room;
  }
}

void DraftStep::plan_main_chain(uint64_t sequence_id, DraftSequence& sequence, int32_t most_rows) {
  const auto first = static_cast<int32_t>(sequence.kv_tokens.size());
  const int32_t num_missing = sequences_.num_missing(sequence);
  const bool wants_token = sequence.wanted() > sequence.main_chain.num_drafted();
  // Reading ahead stops before the token whose logits will be asked for.
  const int32_t num_rows = std::min(wants_token ? num_missing : num_missing - 1, most_rows);
  if (num_rows <= 0) return;
  const bool has_logits = num_rows == num_missing && wants_token;
  if (has_logits && num_planned_logits_ == model_.options().max_logit_rows) return;
  if (first + num_rows > model_.config().max_positions ||
      !sequences_.make_room(sequence_id, sequence, first + num_rows)) {
    sequence.main_chain.ended = true;  // what there is must do
    return;
  }
  chunks_.push_back({.sequence_id = sequence_id,
                     .sequence = &sequence,
                     .first = first,
                     .num_rows = num_rows,
                     .has_logits = has_logits});
  num_planned_ += num_rows;
  num_planned_logits_ += has_logits ? 1 : 0;
  largest_chunk_ = std::max(largest_chunk_, num_rows);
}

bool DraftStep::plan_branch(uint64_t sequence_id, DraftSequence& sequence, int32_t index) {
  DraftBranch& branch = sequence.branches[static_cast<size_t>(index)];
  if (branch.chain.ended) return false;  // a likelier one took its blocks just now
  DraftSequences::BlockCopy copied;
  if (!sequences_.make_room(sequence, branch, &copied)) {
    sequences_.release(branch);
    return false;
  }
  if (copied.from >= 0) model_.copy_block(copied.from, copied.to);
  const auto fork = static_cast<int32_t>(sequence.tokens.size()) + branch.num_accepted;
  chunks_.push_back({.sequence_id = sequence_id,
                     .sequence = &sequence,
                     .branch = index,
                     .first = fork + branch.num_in_kv,
                     .num_rows = 1,
                     .has_logits = true});
  ++num_planned_;
  ++num_planned_logits_;
  return true;
}

// In the draft's ids.
int32_t DraftStep::token_at(const Chunk& chunk, int32_t position) const {
  const DraftSequence& sequence = *chunk.sequence;
  if (chunk.branch >= 0) {
    const DraftBranch& branch = sequence.branches[static_cast<size_t>(chunk.branch)];
    if (branch.num_in_kv == 0) return branch.guess;
    return branch.chain.drafted[static_cast<size_t>(branch.num_in_kv) - 1].token;
  }
  const std::vector<int32_t>& committed = sequences_.context(sequence);
  const auto at = static_cast<size_t>(position);
  if (at < committed.size()) return committed[at];
  return sequences_.draft_id(sequence.main_chain.drafted[at - committed.size()].token);
}

void DraftStep::add_rows(const Chunk& chunk) {
  DraftSequence& sequence = *chunk.sequence;
  const auto sequence_index = static_cast<int32_t>(batch_.block_tables.size());
  DraftBranch* branch =
      chunk.branch < 0 ? nullptr : &sequence.branches[static_cast<size_t>(chunk.branch)];
  batch_.block_tables.emplace_back(branch == nullptr ? sequence.main_chain.blocks
                                                     : branch->chain.blocks);
  for (int32_t position = chunk.first; position < chunk.first + chunk.num_rows; ++position) {
    const int32_t token = token_at(chunk, position);
    if (branch == nullptr) sequence.kv_tokens.push_back(token);
    batch_.tokens.push_back(token);
    batch_.positions.push_back(position);
    batch_.sequence_of_row.push_back(sequence_index);
  }
  if (branch != nullptr) ++branch->num_in_kv;
  if (!chunk.has_logits) return;
  batch_.logit_rows.push_back(static_cast<int32_t>(batch_.tokens.size()) - 1);
  proposing_.push_back({chunk.sequence_id, &sequence, chunk.branch});
}

}  // namespace outrider
