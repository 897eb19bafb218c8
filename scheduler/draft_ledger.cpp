// See draft_ledger.h.
#include "scheduler/draft_ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/exact_math.h"
#include "scheduler/ngram.h"
#include "scheduler/verify.h"

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

int32_t DraftLedger::limit(const Sequence& sequence) const {
  return sequence.draft_len_limit(sequence.num_tokens(), draft_len_, config_.max_model_len);
}

DraftRequest DraftLedger::take_request(const SequencePool& pool) {
  DraftRequest request;
  if (!uses_model()) return request;
  request.closes = std::exchange(closes_, {});
  if (draft_len_ > 0) {
    for (const auto& [order, sequence] : pool.running()) describe(*sequence, request);
    for (const auto& [order, sequence] : pool.waiting()) {
      if (sequence->started) describe(*sequence, request);
    }
  }
  if (!request.closes.empty() || !request.opens.empty() || !request.commits.empty()) {
    request.serial = ++serial_;
  }
  return request;
}

// A sequence is opened when it first runs, so that the draft reads the prompt while the target
// does, unless it is too short ever to take a draft after its first token.
void DraftLedger::describe(Sequence& sequence, DraftRequest& request) const {
  DraftView& view = sequence.draft_view;
  if (view.num_known_tokens == 0) {
    const int32_t limit_after_first = sequence.draft_len_limit(
        sequence.num_prompt_tokens() + 1, config_.num_speculative_tokens, config_.max_model_len);
    if (limit_after_first == 0) return;
    request.opens.push_back({sequence.id(), sequence.params(), sequence.tokens()});
    view.num_known_tokens = sequence.num_tokens();
  }
  if (view.asked_round == sequence.round()) return;
  DraftCommit commit;
  commit.sequence_id = sequence.id();
  commit.round = sequence.round();
  commit.num_tokens_before = view.num_known_tokens;
  commit.tokens.assign(sequence.tokens().begin() + view.num_known_tokens, sequence.tokens().end());
  commit.draft_len = limit(sequence);
  request.commits.push_back(std::move(commit));
  view.num_known_tokens = sequence.num_tokens();
  view.asked_round = sequence.round();
}

// The worker's word is not trusted: the accept rule divides by its numbers.
bool DraftLedger::well_formed(const Sequence& sequence, const DraftBlock& block) const {
  // Asked for when the length was another, maybe.
  const int32_t most = sequence.draft_len_limit(
      sequence.num_tokens(), config_.num_speculative_tokens, config_.max_model_len);
  if (static_cast<int64_t>(block.tokens.size()) > most) return false;
  const int32_t vocab_size =
      config_.vocab_size > 0 ? config_.vocab_size : std::numeric_limits<int32_t>::max();
  return std::all_of(block.tokens.begin(), block.tokens.end(), [&](const DraftToken& token) {
    return valid_draft(token, vocab_size);
  });
}

bool DraftLedger::offer(const SequencePool& pool, const DraftBlock& block) {
  if (!uses_model()) return false;
  Sequence* sequence = pool.find(block.sequence_id);
  if (sequence == nullptr || sequence->draft_view.has_block) return false;
  if (block.round != sequence->round() || block.base_len != sequence->num_tokens()) return false;
  if (!well_formed(*sequence, block)) return false;
  sequence->draft_view.block = block.tokens;
  sequence->draft_view.has_block = true;
  return true;
}

bool DraftLedger::wants(const SequencePool& pool) const {
  if (!uses_model()) return false;
  return std::any_of(pool.running().begin(), pool.running().end(), [&](const auto& entry) {
    const Sequence& sequence = *entry.second;
    return sequence.num_uncomputed() == 1 && sequence.round() > 0 &&
           !sequence.draft_view.has_block && limit(sequence) > 0;
  });
}

std::vector<DraftToken> DraftLedger::draft_for(const Sequence& sequence) const {
  const int32_t draft_len = limit(sequence);
  std::vector<DraftToken> draft;
  if (config_.draft_method == DraftMethod::kDraftModel) {
    if (sequence.draft_view.has_block) draft = sequence.draft_view.block;
  } else if (config_.draft_method == DraftMethod::kNgram) {
    const NgramConfig ngram = {config_.prompt_lookup_max, config_.prompt_lookup_min};
    for (int32_t token : propose_ngram(sequence.tokens(), ngram, draft_len))
      draft.push_back({token, {}});
  } else if (config_.draft_method != DraftMethod::kNone) {
    draft = counted_draft(sequence, draft_len);
  }
  if (static_cast<int64_t>(draft.size()) > draft_len) draft.resize(static_cast<size_t>(draft_len));
  return draft;
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

void DraftLedger::sequence_committed(Sequence& sequence) {
  if (served_) {
    served_->learn(sequence.tokens(), static_cast<size_t>(sequence.num_learned_tokens));
    sequence.num_learned_tokens = sequence.num_tokens();
  }
  sequence.draft_view.has_block = false;
  sequence.draft_view.block.clear();
}

void DraftLedger::sequence_ended(const Sequence& sequence) {
  if (sequence.draft_view.num_known_tokens > 0) closes_.push_back(sequence.id());
}

void DraftLedger::set_available(const SequencePool& pool, bool available) {
  if (available == available_) return;
  available_ = available;
  closes_.clear();
  for (const auto& [order, sequence] : pool.running()) sequence->draft_view = {};
  for (const auto& [order, sequence] : pool.waiting()) sequence->draft_view = {};
}

}  // namespace outrider
