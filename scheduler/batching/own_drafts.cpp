// See own_drafts.h.
#include "scheduler/batching/own_drafts.h"

#include <algorithm>

#include "runtime/base/numbers/exact_math.h"
#include "scheduler/drafting/ngram.h"

namespace outrider {
namespace {

bool counts(DraftMethod method) {
  return method == DraftMethod::kUnigram || method == DraftMethod::kBigram;
}

}  // namespace

OwnDrafts::OwnDrafts(const PlannerConfig& config)
    : config_(config),
      method_(config.draft_method == DraftMethod::kDraftModel ? config.backup_method
                                                              : config.draft_method) {
  if (!counts(method_) || config.draft_corpus != nullptr) return;
  served_.emplace(
      method_ == DraftMethod::kBigram ? CountingOrder::kBigram : CountingOrder::kUnigram,
      config.vocab_size > 0 ? config.vocab_size : kMaxVocabSize);
}

BlockSource OwnDrafts::source() const {
  for (const OwnDraftMethod& own : kOwnDraftMethods) {
    if (own.method == method_) return own.source;
  }
  return BlockSource::kNone;
}

DraftProposal OwnDrafts::propose(const Sequence& sequence,
                                 int32_t draft_len,
                                 int32_t longest) const {
  DraftProposal proposal = unshaped(sequence, draft_len);
  if (sequence.grammar) shape_by_grammar(sequence, longest, proposal);
  return proposal;
}

DraftProposal OwnDrafts::unshaped(const Sequence& sequence, int32_t draft_len) const {
  DraftProposal proposal{.source = source()};
  if (method_ == DraftMethod::kNgram) {
    const NgramConfig ngram = {config_.prompt_lookup_max, config_.prompt_lookup_min};
    const NgramProposal found = propose_ngram(sequence.tokens(), ngram, draft_len);
    proposal.match_len = found.match_len;
    for (int32_t token : found.tokens) proposal.tokens.push_back({token, {}});
  } else if (counts(method_)) {
    proposal.tokens = propose_bigram(served_ ? *served_ : *config_.draft_corpus,
                                     {.params = &sequence.params(),
                                      .tokens = sequence.tokens(),
                                      .round = sequence.round(),
                                      .draft_len = draft_len,
                                      .num_candidates = config_.num_draft_candidates});
  }
  return proposal;
}

// Cuts the draft where the grammar forbids it, and adds what the grammar forces behind it. The text
// is certain, not how the target cuts it into tokens. A draft model needs neither: it masks its
// rows, and then proposes a token that is forced with certainty.
void OwnDrafts::shape_by_grammar(const Sequence& sequence,
                                 int32_t longest,
                                 DraftProposal& proposal) const {
  std::vector<DraftToken>& draft = proposal.tokens;
  std::vector<int32_t> tokens;
  for (const DraftToken& token : draft) tokens.push_back(token.token);
  TokenHistory history{.committed = sequence.tokens(),
                       .num_prompt_tokens = sequence.num_prompt_tokens(),
                       .drafted = {}};
  const size_t num_allowed = sequence.grammar->num_allowed(history, tokens);
  // A token that was drawn is judged whatever it is: without it the row would be the target's own
  // law, and what comes must be what its rejection leaves.
  const bool was_drawn = num_allowed < draft.size() && !draft[num_allowed].candidates.empty();
  draft.resize(num_allowed + (was_drawn ? 1 : 0));
  if (was_drawn || std::ssize(draft) >= longest) return;
  tokens.resize(num_allowed);
  history.drafted = tokens;
  if (draft.empty()) proposal.source = BlockSource::kGrammar;
  const size_t room = static_cast<size_t>(longest) - draft.size();
  for (int32_t token : sequence.grammar->forced_tokens(history, room)) draft.push_back({token, {}});
}

void OwnDrafts::learn(Sequence& sequence, int32_t num_drafted, int32_t num_accepted) {
  if (sequence.grammar) shaped_.count(num_drafted, num_accepted);
  if (!served_) return;
  served_->learn(sequence.tokens(), static_cast<size_t>(sequence.num_learned_tokens));
  sequence.num_learned_tokens = sequence.num_tokens();
}

void OwnDrafts::ShapedDrafts::count(int64_t num_drafted, int64_t num_accepted) {
  num_judged_ += std::min(num_drafted, num_accepted + 1);
  num_accepted_ += num_accepted;
  if (num_judged_ < kMostJudged) return;
  num_judged_ /= 2;
  num_accepted_ /= 2;
}

}  // namespace outrider
