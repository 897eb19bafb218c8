// See copies.h.
#include "runtime/ranks/draft/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace outrider {

DraftCopies::DraftCopies(const Model& model, const VocabularyMap* vocabulary, RideAhead mode)
    : vocabulary_(vocabulary),
      mode_(mode),
      num_vocab_rows_(model.config().vocab_size),
      max_positions_(static_cast<int32_t>(model.config().max_positions)),
      num_blocks_(model.options().num_blocks),
      pool_(model.options().num_blocks, model.options().block_size) {}

DraftCopy* DraftCopies::find(uint64_t sequence_id) {
  const auto found = copies_.find(sequence_id);
  return found == copies_.end() ? nullptr : &found->second;
}

const std::vector<int32_t>& DraftCopies::context(const DraftCopy& copy) const {
  return vocabulary_ == nullptr ? copy.tokens : copy.translated.ids();
}

int32_t DraftCopies::draft_id(int32_t token) const {
  return vocabulary_ == nullptr ? token : vocabulary_->draft_id(token);
}

int32_t DraftCopies::num_missing(const DraftCopy& copy) const {
  return static_cast<int32_t>(context(copy).size() + copy.spine.drafted.size()) -
         static_cast<int32_t>(copy.kv_tokens.size());
}

bool DraftCopies::spine_wants_step(const DraftCopy& copy) const {
  if (copy.broken) return false;
  const int32_t wanted = copy.wanted();
  if (wanted > copy.spine.num_drafted()) return !copy.spine.ended;
  // Reading ahead: a prompt that was announced, all but the token whose logits nobody asked for
  // yet.
  return wanted == 0 && !copy.spine.ended && num_missing(copy) > 1;
}

bool DraftCopies::branch_wants_step(const DraftCopy& copy, const DraftBranch& branch) const {
  return !copy.broken && copy.rides() && !branch.complete();
}

void DraftCopies::open(const DraftOpen& opening) {
  DraftCopy& copy = copies_[opening.sequence_id];  // an open of a known sequence keeps what its KV
                                                   // still agrees with
  copy.params = opening.params;
  copy.mask = make_token_mask(opening.params);
  copy.mode = opening.params.ride_ahead == RideAhead::kAuto ? mode_ : opening.params.ride_ahead;
  if (vocabulary_ != nullptr || copy.mode == RideAhead::kAuto) copy.mode = RideAhead::kOff;
  copy.num_prompt_tokens = static_cast<int32_t>(opening.tokens.size());
  copy.tokens.clear();
  copy.translated.clear();
  copy.round = 0;
  copy.draft_len = 0;
  copy.in_flight = -1;
  copy.broken = false;
  drop_branches(copy);
  take_tokens(copy, opening.tokens, 0);
}

void DraftCopies::close(uint64_t sequence_id) {
  const auto found = copies_.find(sequence_id);
  if (found == copies_.end()) return;
  drop_branches(found->second);
  pool_.take_back(found->second.spine.blocks, 0);
  copies_.erase(found);
}

void DraftCopies::advance(DraftCopy& copy, std::span<const int32_t> tokens, uint32_t round) {
  const bool next = round == copy.round + 1 && copy.rides();
  const size_t branch = next ? find_branch(copy, tokens) : copy.branches.size();
  if (branch < copy.branches.size()) return adopt(copy, branch);
  drop_branches(copy);
  take_tokens(copy, tokens, copy.tokens.size());
}

bool DraftCopies::knows_rows_of(std::span<const int32_t> tokens) const {
  // A prompt may hold ids that only the target's larger embedding has.
  return vocabulary_ != nullptr || std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) {
           return token >= 0 && token < num_vocab_rows_;
         });
}

// Appends committed tokens; what was drafted is over. Rollback: the KV of a rejected draft token is
// simply not counted any more. The last committed token is always read again, for the logits after
// it. num_agreeing: so many of the text's tokens the KV is known to agree with, as far as it goes.
void DraftCopies::take_tokens(DraftCopy& copy,
                              std::span<const int32_t> tokens,
                              size_t num_agreeing) {
  copy.tokens.insert(copy.tokens.end(), tokens.begin(), tokens.end());
  copy.spine.drafted.clear();
  copy.spine.others.clear();
  copy.spine.num_sent = 0;
  copy.spine.ended = false;
  copy.guess = -1;
  if (vocabulary_ != nullptr) {
    copy.translated.extend(*vocabulary_, copy.tokens);
    num_agreeing = 0;  // more text may be other tokens
  }
  copy.broken = !knows_rows_of(tokens);
  const std::vector<int32_t>& text = context(copy);
  const size_t last = text.empty() ? 0 : text.size() - 1;
  size_t kept = std::min({num_agreeing, copy.kv_tokens.size(), last});
  while (kept < std::min(copy.kv_tokens.size(), last) && copy.kv_tokens[kept] == text[kept]) ++kept;
  copy.kv_tokens.resize(kept);
}

size_t DraftCopies::find_branch(const DraftCopy& copy, std::span<const int32_t> tokens) const {
  const std::vector<DraftToken>& drafted = copy.spine.drafted;
  if (tokens.empty() || tokens.size() - 1 > drafted.size()) return copy.branches.size();
  const auto num_accepted = static_cast<int32_t>(tokens.size()) - 1;
  for (int32_t i = 0; i < num_accepted; ++i) {
    const auto at = static_cast<size_t>(i);
    if (drafted[at].token != tokens[at]) return copy.branches.size();
  }
  const auto found =
      std::find_if(copy.branches.begin(), copy.branches.end(), [&](const DraftBranch& branch) {
        return branch.num_accepted == num_accepted && branch.guess == tokens.back();
      });
  return static_cast<size_t>(found - copy.branches.begin());
}

// The branch becomes the spine: its text is committed now, and its table is the spine's.
void DraftCopies::adopt(DraftCopy& copy, size_t index) {
  DraftBranch branch = std::move(copy.branches[index]);
  copy.branches.erase(copy.branches.begin() + static_cast<std::ptrdiff_t>(index));
  drop_branches(copy);
  for (int32_t i = 0; i < branch.num_accepted; ++i)
    copy.tokens.push_back(copy.spine.drafted[static_cast<size_t>(i)].token);
  copy.kv_tokens.resize(std::min(copy.kv_tokens.size(), copy.tokens.size()));
  copy.tokens.push_back(branch.guess);
  if (branch.num_in_kv > 0) {
    pool_.take_back(copy.spine.blocks, branch.num_shared);
    copy.spine.blocks = std::move(branch.line.blocks);
    copy.kv_tokens.push_back(branch.guess);
    for (int32_t i = 0; i + 1 < branch.num_in_kv; ++i)
      copy.kv_tokens.push_back(branch.line.drafted[static_cast<size_t>(i)].token);
  }
  copy.spine.drafted = std::move(branch.line.drafted);
  copy.spine.others = std::move(branch.line.others);
  copy.spine.num_sent = branch.line.num_sent;
  copy.spine.ended = false;  // there may be room now
  copy.guess = branch.guess;
}

void DraftCopies::drop_branches(DraftCopy& copy) {
  for (DraftBranch& branch : copy.branches) release(branch);
  copy.branches.clear();
  copy.pending.clear();
}

void DraftCopies::release(DraftBranch& branch) {
  pool_.take_back(branch.line.blocks, branch.num_shared);
  branch.line.blocks.clear();
  branch.num_shared = 0;
  branch.num_in_kv = 0;
  branch.line.ended = true;
}

bool DraftCopies::release_least_likely(double below) {
  DraftBranch* least = nullptr;
  for (auto& [id, copy] : copies_) {
    for (DraftBranch& branch : copy.branches) {
      const bool holds = branch.line.blocks.size() > branch.num_shared;
      if (!holds || !(branch.chance < below)) continue;
      least = &branch;
      below = branch.chance;
    }
  }
  if (least == nullptr) return false;
  release(*least);
  return true;
}

bool DraftCopies::make_room(uint64_t sequence_id, DraftCopy& copy, int32_t num_positions) {
  const size_t num_needed = pool_.blocks_for(num_positions);
  const auto too_few = [&] { return copy.spine.blocks.size() + pool_.num_free() < num_needed; };
  while (too_few() && release_least_likely(std::numeric_limits<double>::infinity())) {
  }
  for (auto& [id, other] : copies_) {
    if (!too_few()) break;
    if (id == sequence_id || spine_wants_step(other)) continue;
    for (DraftBranch& branch : other.branches) release(branch);  // those that hold nothing yet
    pool_.take_back(other.spine.blocks, 0);
    other.kv_tokens.clear();
  }
  return pool_.grow(copy.spine.blocks, num_needed);
}

bool DraftCopies::make_room(DraftCopy& copy, DraftBranch& branch, BlockCopy* copied) {
  *copied = {};
  const auto fork = static_cast<int32_t>(copy.tokens.size()) + branch.num_accepted;
  const int32_t num_positions = fork + branch.num_in_kv + 1;
  // The spine's KV may have been taken from it.
  if (num_positions > max_positions_ || copy.kv_tokens.size() < static_cast<size_t>(fork))
    return false;
  const size_t num_needed = pool_.blocks_for(num_positions);
  std::vector<int32_t>& table = branch.line.blocks;
  const bool begins = table.empty();
  const auto num_shared = static_cast<size_t>(fork / pool_.block_size());
  const size_t num_held = begins ? num_shared : table.size();
  while (num_held + pool_.num_free() < num_needed && release_least_likely(branch.chance)) {
  }
  if (num_held + pool_.num_free() < num_needed) return false;
  if (begins) {
    const std::vector<int32_t>& spine = copy.spine.blocks;
    table.assign(spine.begin(), spine.begin() + static_cast<std::ptrdiff_t>(num_shared));
    branch.num_shared = num_shared;
  }
  pool_.grow(table, num_needed);
  if (begins && fork % pool_.block_size() != 0)
    *copied = {copy.spine.blocks[num_shared], table[num_shared]};
  return true;
}

std::string DraftCopies::fault() const {
  std::vector<int32_t> num_holders(static_cast<size_t>(num_blocks_), 0);
  const auto hold = [&](std::span<const int32_t> blocks) {
    for (const int32_t block : blocks) ++num_holders[static_cast<size_t>(block)];
  };
  hold(pool_.free_blocks());
  for (const auto& [id, copy] : copies_) {
    hold(copy.spine.blocks);
    if (pool_.blocks_for(static_cast<int32_t>(copy.kv_tokens.size())) > copy.spine.blocks.size())
      return fmt::format("sequence {} has more KV than blocks", id);
    for (const DraftBranch& branch : copy.branches) {
      const std::span<const int32_t> table = branch.line.blocks;
      hold(table.subspan(branch.num_shared));
      const bool shares = branch.num_shared <= copy.spine.blocks.size() &&
                          std::equal(table.begin(),
                                     table.begin() + static_cast<std::ptrdiff_t>(branch.num_shared),
                                     copy.spine.blocks.begin());
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
