// See fake_ranks.h.
#include "tests/scheduler/fake_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace outrider::testing {
namespace {

bool is_stop(const SamplingParams& params, int32_t token) {
  return std::binary_search(params.stop_token_ids.begin(), params.stop_token_ids.end(), token);
}

}  // namespace

uint64_t FakeModel::next_state(uint64_t state, int32_t token) const {
  const uint64_t history = short_memory ? state & 0xFF : state >> 8;
  uint64_t x =
      (history + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull + static_cast<uint64_t>(token);
  x = (x ^ (x >> 31)) * 0x94D049BB133111EBull;
  x ^= x >> 29;
  return (x << 8) | static_cast<uint64_t>(token & 0xFF);
}

int32_t FakeModel::choose(uint64_t state, const SamplingParams& params, int32_t num_output) const {
  int32_t token = static_cast<int32_t>((state >> 20) % static_cast<uint64_t>(vocab_size));
  while (num_output < params.min_tokens && is_stop(params, token)) token = (token + 1) % vocab_size;
  return token;
}

uint64_t FakeModel::state_of(const std::vector<int32_t>& tokens) const {
  uint64_t state = 0;
  for (int32_t token : tokens) state = next_state(state, token);
  return state;
}

ExpectedText expected_text(const FakeModel& model, const Request& request) {
  ExpectedText text;
  uint64_t state = model.state_of(request.prompt);
  text.reason = FinishReason::kLength;
  while (static_cast<int32_t>(text.tokens.size()) < request.params.max_tokens) {
    const int32_t num_output = static_cast<int32_t>(text.tokens.size());
    const int32_t token = model.choose(state, request.params, num_output);
    if (is_stop(request.params, token)) {
      text.reason = FinishReason::kStop;
      text.stop_token = token;
      break;
    }
    text.tokens.push_back(token);
    state = model.next_state(state, token);
  }
  return text;
}

FakeTarget::FakeTarget(FakeModel model, const PlannerConfig& config, Sabotage sabotage)
    : model_(model),
      config_(config),
      sabotage_(sabotage),
      slots_(static_cast<size_t>(config.num_blocks) * static_cast<size_t>(config.block_size)),
      block_owner_(static_cast<size_t>(config.num_blocks), 0) {}

void FakeTarget::fault(const RoundPlan& plan, uint64_t sequence_id, const std::string& what) {
  faults_.push_back(fmt::format("round {} sequence {}: {}", plan.round, sequence_id, what));
}

void FakeTarget::empty_blocks(const RoundPlan& plan) {
  const size_t size = static_cast<size_t>(config_.block_size);
  for (int32_t block : plan.freed) {
    ++num_emptied_;
    const size_t index = static_cast<size_t>(block);
    const Slot poison{.nan = true};
    std::fill_n(slots_.begin() + static_cast<std::ptrdiff_t>(index * size), size, poison);
    block_owner_[index] = 0;
  }
}

void FakeTarget::take_blocks(const SequencePlan& plan, Known& known) {
  if (plan.replace_blocks) known.table.clear();
  if (sabotage_ == Sabotage::kForgetNewBlocks && plan.first_position > 0) return;
  for (int32_t block : plan.new_blocks) {
    const int32_t position = static_cast<int32_t>(known.table.size()) * config_.block_size;
    known.table.push_back(block);
    // KV before first_position is used as it is, whoever computed it.
    const bool is_used = position < plan.first_position;
    if (is_used && sabotage_ != Sabotage::kClearReusedBlocks) continue;
    const size_t index = static_cast<size_t>(block);
    block_owner_[index] = plan.sequence_id;
    const size_t size = static_cast<size_t>(config_.block_size);
    std::fill_n(slots_.begin() + static_cast<std::ptrdiff_t>(index * size), size, Slot{});
  }
}

const FakeTarget::Slot* FakeTarget::slot_to_read(const Known& known, int32_t position) const {
  const size_t index = static_cast<size_t>(position / config_.block_size);
  if (index >= known.table.size()) return nullptr;
  const size_t block = static_cast<size_t>(known.table[index]);
  return &slots_[block * static_cast<size_t>(config_.block_size) +
                 static_cast<size_t>(position % config_.block_size)];
}

FakeTarget::Slot* FakeTarget::slot_to_write(uint64_t sequence_id,
                                            const Known& known,
                                            int32_t position) {
  const Slot* slot = slot_to_read(known, position);
  if (slot == nullptr) return nullptr;
  const size_t index = static_cast<size_t>(slot - slots_.data());
  const size_t block = index / static_cast<size_t>(config_.block_size);
  return block_owner_[block] == sequence_id ? &slots_[index] : nullptr;
}

bool FakeTarget::history_is_valid(const SequencePlan& rows, const Known& known) const {
  uint64_t state = 0;
  for (int32_t position = 0; position < rows.first_position; ++position) {
    const Slot* slot = slot_to_read(known, position);
    const int32_t token = known.tokens[static_cast<size_t>(position)];
    state = model_.next_state(state, token);
    if (slot == nullptr || slot->position != position || slot->token != token ||
        slot->state != state) {
      return false;
    }
  }
  return true;
}

bool FakeTarget::reads_nan(const SequencePlan& rows, const Known& known) const {
  for (int32_t position = 0; position < rows.first_position; ++position) {
    if (slot_to_read(known, position)->nan) return true;
  }
  return false;
}

bool FakeTarget::rows_make_sense(const RoundPlan& plan,
                                 const SequencePlan& rows,
                                 const Known& known) {
  const int32_t num_tokens = static_cast<int32_t>(known.tokens.size());
  const int32_t end = rows.first_position + rows.num_committed_rows;
  std::string what;
  if (end < num_tokens && !rows.draft.empty()) what = "draft without sampling";
  if (rows.round != known.round) what = "wrong sampling round";
  if (rows.num_committed_rows < 1 || rows.first_position < 0 || end > num_tokens) {
    what = "rows outside the text";
  } else if (!history_is_valid(rows, known)) {
    what = "reads KV that was not computed for it";
  }
  if (!what.empty()) fault(plan, rows.sequence_id, what);
  return what.empty();
}

SequenceDecision FakeTarget::run(const RoundPlan& plan,
                                 const SequencePlan& rows,
                                 Known& known,
                                 bool poisoned) {
  SequenceDecision decision;
  decision.sequence_id = rows.sequence_id;
  if (!rows_make_sense(plan, rows, known)) return decision;
  const int32_t num_tokens = static_cast<int32_t>(known.tokens.size());
  std::vector<int32_t> text = known.tokens;
  for (const DraftToken& draft : rows.draft) text.push_back(draft.token);
  const int32_t end =
      rows.first_position + rows.num_committed_rows + static_cast<int32_t>(rows.draft.size());
  const bool nan = poisoned || reads_nan(rows, known);
  uint64_t state = 0;
  if (rows.first_position > 0) state = slot_to_read(known, rows.first_position - 1)->state;
  bool standing = true;
  for (int32_t position = rows.first_position; position < end; ++position) {
    const int32_t token = text[static_cast<size_t>(position)];
    Slot* slot = slot_to_write(rows.sequence_id, known, position);
    if (slot == nullptr) {
      fault(plan, rows.sequence_id, "writes outside its blocks");
      return decision;
    }
    state = model_.next_state(state, token);
    *slot = {position, token, state, nan};
    if (known.params.prompt_logprobs && position + 1 < known.num_prompt) {
      decision.prompt_logprobs.push_back({-1.0f, position + 1, {}});
    }
    if (!standing || position + 1 < num_tokens) continue;
    const int32_t chosen = model_.choose(state, known.params, position + 1 - known.num_prompt);
    if (known.params.num_logprobs >= 0) decision.logprobs.push_back({-1.0f, chosen, {}});
    standing = position + 1 < end && text[static_cast<size_t>(position) + 1] == chosen;
    if (standing) {
      ++decision.num_accepted;
    } else {
      decision.next_token = chosen;
    }
  }
  if (nan && (decision.next_token >= 0 || !decision.prompt_logprobs.empty())) {
    decision = {};
    decision.sequence_id = rows.sequence_id;
    decision.failed = true;
  }
  return decision;
}

RoundDecision FakeTarget::execute(const RoundPlan& plan, const std::vector<uint64_t>& poisoned) {
  for (uint64_t id : plan.ends) {
    if (sequences_.erase(id) != 1) fault(plan, id, "ends a sequence that is not known");
  }
  for (const SequenceStart& start : plan.starts) {
    Known known{start.params, static_cast<int32_t>(start.tokens.size()), start.tokens, {}, 0};
    if (!sequences_.emplace(start.sequence_id, known).second) {
      fault(plan, start.sequence_id, "starts twice");
    }
  }
  int64_t num_rows = 0;
  RoundDecision decision;
  std::map<uint64_t, int> seen;
  empty_blocks(plan);
  // All tables first: a block given to two sequences of one round is then seen by the first of
  // them.
  for (const SequencePlan& rows : plan.sequences) {
    const std::vector<int32_t>& table = sequences_[rows.sequence_id].table;
    take_blocks(rows, sequences_[rows.sequence_id]);
    for (int32_t block : plan.freed) {
      if (std::find(table.begin(), table.end(), block) != table.end())
        fault(plan, rows.sequence_id, "holds a block that is said to be empty");
    }
  }
  for (const SequencePlan& rows : plan.sequences) {
    num_rows += rows.num_committed_rows + static_cast<int32_t>(rows.draft.size());
    if (++seen[rows.sequence_id] > 1) fault(plan, rows.sequence_id, "twice in a round");
    Known& known = sequences_[rows.sequence_id];
    const bool is_poisoned =
        std::find(poisoned.begin(), poisoned.end(), rows.sequence_id) != poisoned.end();
    SequenceDecision made = run(plan, rows, known, is_poisoned);
    if (sabotage_ == Sabotage::kKeepRejectedRow && made.next_token >= 0 &&
        made.num_accepted < static_cast<int32_t>(rows.draft.size())) {
      ++made.num_accepted;
    }
    for (int32_t i = 0; i < made.num_accepted; ++i) {
      known.tokens.push_back(rows.draft[static_cast<size_t>(i)].token);
    }
    if (made.next_token >= 0) {
      known.tokens.push_back(made.next_token);
      ++known.round;
    }
    decision.sequences.push_back(std::move(made));
  }
  if (num_rows > config_.max_num_batched_tokens) fault(plan, 0, "more rows than the budget");
  if (static_cast<int32_t>(plan.sequences.size()) > config_.max_num_seqs) {
    fault(plan, 0, "more sequences than max_num_seqs");
  }
  return decision;
}

void FakeDraft::corrupt(DraftBlock& block) {
  const int kind = static_cast<int>(random_() % 10);
  DraftToken token{1, {{1, 0.5f}, {2, 0.5f}}};
  if (kind == 0) block.sequence_id += 1000;
  if (kind == 1) block.round += 1;
  if (kind == 2) block.base_len -= 1;
  if (kind == 3) token.token = -1;
  if (kind == 4) token.token = model_.vocab_size;
  if (kind == 5) token.candidates[0].draft_prob = std::numeric_limits<float>::quiet_NaN();
  if (kind == 6) token.candidates[0].draft_prob = 0.7f;
  if (kind == 7) token.candidates[1].token = 1;
  if (kind == 8) token.token = 3;
  if (kind == 9) block.tokens.resize(200, DraftToken{1, {}});
  if (kind >= 3 && kind <= 8) block.tokens.assign(1, token);
}

std::vector<DraftToken> FakeDraft::some_tokens(uint64_t state, int32_t count) {
  std::vector<DraftToken> tokens;
  const bool right = mood_ == DraftMood::kRight || (mood_ == DraftMood::kMixed && chance(60));
  for (int32_t i = 0; i < count; ++i) {
    int32_t token = model_.choose(state, {}, 0);
    if (!right && chance(50)) token = (token + 1) % model_.vocab_size;
    tokens.push_back({token, {}});
    if (chance(30))
      tokens.back().candidates = {{token, 0.75f},
                                  {token + 1 == model_.vocab_size ? 0 : token + 1, 0.25f}};
    state = model_.next_state(state, token);
    if (mood_ == DraftMood::kMixed && chance(10)) break;
  }
  return tokens;
}

DraftBlock FakeDraft::propose(const DraftCommit& commit, const Known& known) {
  return {.sequence_id = commit.sequence_id,
          .round = commit.round,
          .base_len = static_cast<int32_t>(known.tokens.size()),
          .tokens = some_tokens(model_.state_of(known.tokens), commit.draft_len)};
}

void FakeDraft::async_drafting(const DraftCommit& commit,
                               const Known& known,
                               std::vector<DraftBlock>& blocks) {
  const auto base_len = static_cast<int32_t>(known.tokens.size());
  uint64_t state = model_.state_of(known.tokens);
  for (int32_t k = 0; k <= commit.in_flight; ++k) {
    const int32_t right = model_.choose(state, {}, 0);
    if (k == commit.in_flight && chance(70)) {
      blocks.push_back({.sequence_id = commit.sequence_id,
                        .round = commit.round,
                        .base_len = base_len,
                        .tokens = some_tokens(state, 1 + static_cast<int32_t>(random_() % 2)),
                        .first = commit.in_flight});
    }
    for (const int32_t guess : {right, (right + 1) % model_.vocab_size}) {
      if (!chance(60)) continue;
      DraftBlock block{.sequence_id = commit.sequence_id,
                       .round = commit.round + 1,
                       .base_len = base_len + k + 1,
                       .tokens = some_tokens(model_.next_state(state, guess), commit.draft_len),
                       .guess = guess};
      const size_t cut = block.tokens.empty() ? 0 : random_() % block.tokens.size();
      if (cut > 0) {  // as it comes, in two pieces
        DraftBlock rest = block;
        const auto middle = static_cast<std::ptrdiff_t>(cut);
        rest.tokens.erase(rest.tokens.begin(), rest.tokens.begin() + middle);
        rest.first = static_cast<int32_t>(cut);
        block.tokens.resize(cut);
        blocks.push_back(std::move(block));
        block = std::move(rest);
      }
      blocks.push_back(std::move(block));
    }
    state = model_.next_state(state, right);
  }
}

std::vector<DraftBlock> FakeDraft::answer(const DraftRequest& request) {
  for (uint64_t id : request.closes) {
    if (sequences_.erase(id) != 1) faults_.push_back(fmt::format("closes {}, not open", id));
  }
  for (const SequenceStart& open : request.opens) {
    if (!sequences_.emplace(open.sequence_id, Known{open.params, open.tokens}).second) {
      faults_.push_back(fmt::format("opens {} twice", open.sequence_id));
    }
  }
  std::vector<DraftBlock> blocks = std::exchange(late_, {});
  for (const DraftCommit& commit : request.commits) {
    const auto known = sequences_.find(commit.sequence_id);
    if (known == sequences_.end()) {
      faults_.push_back(fmt::format("commit for {}, not open", commit.sequence_id));
      continue;
    }
    std::vector<int32_t>& tokens = known->second.tokens;
    if (commit.num_tokens_before != static_cast<int32_t>(tokens.size())) {
      faults_.push_back(fmt::format("gap in the commits of {}", commit.sequence_id));
    }
    tokens.insert(tokens.end(), commit.tokens.begin(), commit.tokens.end());
    if (mood_ == DraftMood::kSilent || commit.draft_len == 0) continue;
    std::vector<DraftBlock> made;
    if (commit.in_flight >= 0) {
      async_drafting(commit, known->second, made);
    } else {
      made.push_back(propose(commit, known->second));
    }
    for (DraftBlock& block : made) {
      if (mood_ == DraftMood::kHostile && chance(70)) corrupt(block);
      const bool is_late = mood_ != DraftMood::kRight && chance(20);
      (is_late ? late_ : blocks).push_back(std::move(block));
    }
  }
  return blocks;
}

}  // namespace outrider::testing
