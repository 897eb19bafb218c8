// See sequences.h.
#include "runtime/ranks/draft/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/error.h"

namespace outrider {

DraftSequences::DraftSequences(const Model& model,
                               const VocabularyMap* vocabulary,
                               const GrammarEngine* grammars)
    : vocabulary_(vocabulary),
      grammars_(grammars),
      num_vocab_rows_(model.config().vocab_size),
      max_positions_(static_cast<int32_t>(model.config().max_positions)),
      num_blocks_(model.options().num_blocks),
      pool_(model.options().num_blocks, model.options().block_size) {}

DraftSequence* DraftSequences::find(uint64_t sequence_id) {
  const auto found = sequences_.find(sequence_id);
  return found == sequences_.end() ? nullptr : &found->second;
}

const std::vector<int32_t>& DraftSequences::context(const DraftSequence& sequence) const {
  return vocabulary_ == nullptr ? sequence.tokens : sequence.translated.ids();
}

int32_t DraftSequences::draft_id(int32_t token) const {
  return vocabulary_ == nullptr ? token : vocabulary_->draft_id(token);
}

int32_t DraftSequences::num_missing(const DraftSequence& sequence) const {
  return static_cast<int32_t>(context(sequence).size() + sequence.main_chain.drafted.size()) -
         static_cast<int32_t>(sequence.kv_tokens.size());
}

bool DraftSequences::main_chain_wants_step(const DraftSequence& sequence) const {
  if (sequence.broken) return false;
  const int32_t wanted = sequence.wanted();
  if (wanted > sequence.main_chain.num_drafted()) return !sequence.main_chain.ended;
  // Reading ahead: a prompt that was announced, all but the token whose logits nobody asked for
  // yet.
  return wanted == 0 && !sequence.main_chain.ended && num_missing(sequence) > 1;
}

bool DraftSequences::branch_wants_step(const DraftSequence& sequence,
                                       const DraftBranch& branch) const {
  return !sequence.broken && sequence.drafts_async() && !branch.complete();
}

void DraftSequences::open(const SequenceStart& opening) {
  DraftSequence& sequence = sequences_[opening.sequence_id];  // an open of a known sequence keeps
                                                              // what its KV still agrees with
  sequence.params = opening.params;
  sequence.mode = opening.params.async_drafting;
  if (vocabulary_ != nullptr || sequence.mode == AsyncDrafting::kAuto)
    sequence.mode = AsyncDrafting::kOff;
  sequence.num_prompt_tokens =
      static_cast<int32_t>(opening.tokens.size()) - opening.num_output_tokens;
  sequence.tokens.clear();
  sequence.main_chain.processed = {};
  sequence.translated.clear();
  sequence.round = 0;
  sequence.draft_len = 0;
  sequence.in_flight = -1;
  sequence.broken = false;
  drop_branches(sequence);
  take_tokens(sequence, opening.tokens, 0);
  try {
    sequence.mask = make_token_mask(opening.params, grammars_);
  } catch (const Error&) {  // a grammar, and this draft is built without them
    sequence.mask.reset();
    sequence.broken = true;
  }
}

void DraftSequences::close(uint64_t sequence_id) {
  const auto found = sequences_.find(sequence_id);
  if (found == sequences_.end()) return;
  drop_branches(found->second);
  pool_.take_back(found->second.main_chain.blocks, 0);
  sequences_.erase(found);
}

void DraftSequences::advance(DraftSequence& sequence,
                             std::span<const int32_t> tokens,
                             uint32_t round) {
  const bool next = round == sequence.round + 1 && sequence.drafts_async();
  const size_t branch = next ? find_branch(sequence, tokens) : sequence.branches.size();
  if (branch < sequence.branches.size()) return adopt(sequence, branch);
  drop_branches(sequence);
  take_tokens(sequence, tokens, sequence.tokens.size());
}

bool DraftSequences::knows_rows_of(std::span<const int32_t> tokens) const {
  // A prompt may hold ids that only the target's larger embedding has.
  return vocabulary_ != nullptr || std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) {
           return token >= 0 && token < num_vocab_rows_;
         });
}

// Appends committed tokens; what was drafted is over. Rollback: the KV of a rejected draft token is
// simply not counted any more. The last committed token is always read again, for the logits after
// it. num_agreeing: so many of the text's tokens the KV is known to agree with, as far as it goes.
void DraftSequences::take_tokens(DraftSequence& sequence,
                                 std::span<const int32_t> tokens,
                                 size_t num_agreeing) {
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
  sequence.main_chain.drafted.clear();
  sequence.main_chain.others.clear();
  sequence.main_chain.num_sent = 0;
  sequence.main_chain.ended = false;
  sequence.guess = -1;
  if (vocabulary_ != nullptr) {
    sequence.translated.extend(*vocabulary_, sequence.tokens);
    num_agreeing = 0;  // more text may be other tokens
  }
  sequence.broken = !knows_rows_of(tokens);
  const std::vector<int32_t>& text = context(sequence);
  const size_t last = text.empty() ? 0 : text.size() - 1;
  size_t kept = std::min({num_agreeing, sequence.kv_tokens.size(), last});
  while (kept < std::min(sequence.kv_tokens.size(), last) && sequence.kv_tokens[kept] == text[kept])
    ++kept;
  sequence.kv_tokens.resize(kept);
}

size_t DraftSequences::find_branch(const DraftSequence& sequence,
                                   std::span<const int32_t> tokens) const {
  const std::vector<DraftToken>& drafted = sequence.main_chain.drafted;
  if (tokens.empty() || tokens.size() - 1 > drafted.size()) return sequence.branches.size();
  const auto num_accepted = static_cast<int32_t>(tokens.size()) - 1;
  for (int32_t i = 0; i < num_accepted; ++i) {
    const auto at = static_cast<size_t>(i);
    if (drafted[at].token != tokens[at]) return sequence.branches.size();
  }
  const auto found = std::find_if(
      sequence.branches.begin(), sequence.branches.end(), [&](const DraftBranch& branch) {
        return branch.num_accepted == num_accepted && branch.guess == tokens.back();
      });
  return static_cast<size_t>(found - sequence.branches.begin());
}

// The branch becomes the main chain: its text is committed now, and its table is the main chain's.
void DraftSequences::adopt(DraftSequence& sequence, size_t index) {
  DraftBranch branch = std::move(sequence.branches[index]);
  sequence.branches.erase(sequence.branches.begin() + static_cast<std::ptrdiff_t>(index));
  drop_branches(sequence);
  for (int32_t i = 0; i < branch.num_accepted; ++i)
    sequence.tokens.push_back(sequence.main_chain.drafted[static_cast<size_t>(i)].token);
  sequence.kv_tokens.resize(std::min(sequence.kv_tokens.size(), sequence.tokens.size()));
  sequence.tokens.push_back(branch.guess);
  if (branch.num_in_kv > 0) {
    pool_.take_back(sequence.main_chain.blocks, branch.num_shared);
    sequence.main_chain.blocks = std::move(branch.chain.blocks);
    sequence.kv_tokens.push_back(branch.guess);
    for (int32_t i = 0; i + 1 < branch.num_in_kv; ++i)
      sequence.kv_tokens.push_back(branch.chain.drafted[static_cast<size_t>(i)].token);
  }
  sequence.main_chain.drafted = std::move(branch.chain.drafted);
  sequence.main_chain.others = std::move(branch.chain.others);
  sequence.main_chain.num_sent = branch.chain.num_sent;
  sequence.main_chain.ended = false;  // there may be room now
  sequence.guess = branch.guess;
}

void DraftSequences::drop_branches(DraftSequence& sequence) {
  for (DraftBranch& branch : sequence.branches) release(branch);
  sequence.branches.clear();
  sequence.pending.clear();
}

void DraftSequences::release(DraftBranch& branch) {
  pool_.take_back(branch.chain.blocks, branch.num_shared);
  branch.chain.blocks.clear();
  branch.num_shared = 0;
  branch.num_in_kv = 0;
  branch.chain.ended = true;
}

bool DraftSequences::release_least_likely(double below) {
  DraftBranch* least = nullptr;
  for (auto& [id, sequence] : sequences_) {
    for (DraftBranch& branch : sequence.branches) {
      const bool holds = branch.chain.blocks.size() > branch.num_shared;
      if (!holds || !(branch.chance < below)) continue;
      least = &branch;
      below = branch.chance;
    }
  }
  if (least == nullptr) return false;
  release(*least);
  return true;
}

bool DraftSequences::make_room(uint64_t sequence_id,
                               DraftSequence& sequence,
                               int32_t num_positions) {
  const size_t num_needed = pool_.blocks_for(num_positions);
  const auto too_few = [&] {
    return sequence.main_chain.blocks.size() + pool_.num_free() < num_needed;
  };
  while (too_few() && release_least_likely(std::numeric_limits<double>::infinity())) {
  }
  for (auto& [id, other] : sequences_) {
    if (!too_few()) break;
    if (id == sequence_id || main_chain_wants_step(other)) continue;
    for (DraftBranch& branch : other.branches) release(branch);  // those that hold nothing yet
    pool_.take_back(other.main_chain.blocks, 0);
    other.kv_tokens.clear();
  }
  return pool_.grow(sequence.main_chain.blocks, num_needed);
}

bool DraftSequences::make_room(DraftSequence& sequence, DraftBranch& branch, BlockCopy* copied) {
  *copied = {};
  const auto fork = static_cast<int32_t>(sequence.tokens.size()) + branch.num_accepted;
  const int32_t num_positions = fork + branch.num_in_kv + 1;
  // The main chain's KV may have been taken from it.
  if (num_positions > max_positions_ || sequence.kv_tokens.size() < static_cast<size_t>(fork))
    return false;
  const size_t num_needed = pool_.blocks_for(num_positions);
  std::vector<int32_t>& table = branch.chain.blocks;
  const bool begins = table.empty();
  const auto num_shared = static_cast<size_t>(fork / pool_.block_size());
  const size_t num_held = begins ? num_shared : table.size();
  while (num_held + pool_.num_free() < num_needed && release_least_likely(branch.chance)) {
  }
  if (num_held + pool_.num_free() < num_needed) return false;
  if (begins) {
    const std::vector<int32_t>& main_chain = sequence.main_chain.blocks;
    table.assign(main_chain.begin(), main_chain.begin() + static_cast<std::ptrdiff_t>(num_shared));
    branch.num_shared = num_shared;
  }
  pool_.grow(table, num_needed);
  if (begins && fork % pool_.block_size() != 0)
    *copied = {sequence.main_chain.blocks[num_shared], table[num_shared]};
  return true;
}

std::string DraftSequences::fault() const {
  std::vector<int32_t> num_holders(static_cast<size_t>(num_blocks_), 0);
  const auto hold = [&](std::span<const int32_t> blocks) {
    for (const int32_t block : blocks) ++num_holders[static_cast<size_t>(block)];
  };
  hold(pool_.free_blocks());
  for (const auto& [id, sequence] : sequences_) {
    hold(sequence.main_chain.blocks);
    if (pool_.blocks_for(static_cast<int32_t>(sequence.kv_tokens.size())) >
        sequence.main_chain.blocks.size())
      return fmt::format("sequence {} has more KV than blocks", id);
    for (const DraftBranch& branch : sequence.branches) {
      const std::span<const int32_t> table = branch.chain.blocks;
      hold(table.subspan(branch.num_shared));
      const bool shares = branch.num_shared <= sequence.main_chain.blocks.size() &&
                          std::equal(table.begin(),
                                     table.begin() + static_cast<std::ptrdiff_t>(branch.num_shared),
                                     sequence.main_chain.blocks.begin());
      if (!shares) return fmt::format("a branch of sequence {} shares blocks of nobody", id);
    }
  }
  for (size_t block = 0; block < num_holders.size(); ++block) {
    if (num_holders[block] != 1)
      return fmt::format("block {} is held {} times", block, num_holders[block]);
  }
  return {};
}

}  // namespace outrider
