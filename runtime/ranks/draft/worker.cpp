// See worker.h.
#include "runtime/ranks/draft/worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers/exact_math.h"
#include "runtime/base/telemetry/trace.h"
#include "runtime/ranks/target/logit_scanner.h"
#include "scheduler/pacing/constants.h"
#include "scheduler/sampling/logits_processor.h"

namespace outrider {
namespace {

// Of target tokens the draft has no token for: finite, so that it is no sign of a broken model, and
// so low that no bias brings it back.
constexpr float kNeverProposed = -0.01f * kLargestLogit;

std::vector<DraftToken> tokens_from(const DraftChain& chain, int32_t first, int32_t end) {
  return {chain.drafted.begin() + first, chain.drafted.begin() + end};
}

DraftChain& chain_of(const DraftStep::Proposing& proposing) {
  DraftSequence& sequence = *proposing.sequence;
  return proposing.branch < 0 ? sequence.main_chain
                              : sequence.branches[static_cast<size_t>(proposing.branch)].chain;
}

}  // namespace

DraftWorker::DraftWorker(Model& model, const Options& options)
    : model_(model),
      options_(options),
      sequences_(model, options.vocabulary, options.grammars),
      step_(model,
            sequences_,
            options.chains_steps && options.vocabulary == nullptr
                ? std::function([this](const DraftSequence& s) { return is_plain(s); })
                : nullptr),
      scanner_(make_logit_scanner(model, options.checks.poison || options.vocabulary != nullptr)) {
  if (options_.vocabulary != nullptr)
    target_logits_.assign(static_cast<size_t>(options_.target_vocab_size), kNeverProposed);
  if (options_.checks.poison) poison_freed_blocks();
}

// Free blocks are full of NaN and taken ones begin as zeros: NaN spreads even through positions
// that are masked.
void DraftWorker::poison_freed_blocks() {
  sequences_.watch_blocks(
      {.freed = [this](std::span<const int32_t> blocks) { model_.poison_blocks(blocks); },
       .taken =
           [this](int32_t block) {
             model_.clear_blocks({&block, 1});
           }});
}

// Looked at when it has no sequence left, and with Checks::books after all it does. A draft with
// wrong books is still only a hint: it is said, and ends nothing unless that was asked for.
void DraftWorker::check_books(bool is_idle) const {
  if (!is_idle && !options_.checks.books) return;
  const std::string wrong = fault();
  if (!wrong.empty()) log_error("internal error: the draft's KV accounting is wrong: {}", wrong);
  OUTRIDER_CHECK(wrong.empty() || !options_.checks.books);
}

// A draft may be wrong about anything, so NaN would only cost acceptance: here it is a defect.
void DraftWorker::check_logits(const float* logits) const {
  if (!options_.checks.poison) return;
  const bool has_nan = std::any_of(
      logits, logits + model_.config().vocab_size, [](float logit) { return std::isnan(logit); });
  if (has_nan) log_error("internal error: the draft has read KV of a block that nobody holds");
  OUTRIDER_CHECK(!has_nan);
}

void DraftWorker::take(const DraftRequest& request) {
  last_serial_ = request.serial;
  const TraceSpan span(TraceKind::kTakeRequest,
                       {std::ssize(request.commits), std::ssize(request.opens)});
  trace_flow_in(request_arrow(request.serial));
  for (uint64_t id : request.closes) sequences_.close(id);
  for (const SequenceStart& opening : request.opens) sequences_.open(opening);
  std::vector<uint64_t> begun;
  for (const DraftCommit& committed : request.commits) {
    if (commit(committed)) begun.push_back(committed.sequence_id);
  }
  if (!begun.empty()) begin_branches(std::move(begun));
  check_books(sequences_.all().empty());
}

void DraftWorker::forget_all() {
  while (!sequences_.all().empty()) sequences_.close(sequences_.all().begin()->first);
  reply_ = {};
  owes_answer_ = false;
  check_books(true);
}

// True when the sequence's round is in flight from now on, and is to be ridden ahead of.
bool DraftWorker::commit(const DraftCommit& committed) {
  DraftSequence* sequence = sequences_.find(committed.sequence_id);
  if (sequence != nullptr && !sequence->broken) {
    if (committed.round < sequence->round) return false;
    sequence->broken = committed.num_tokens_before != static_cast<int32_t>(sequence->tokens.size());
  }
  if (sequence != nullptr && sequence->broken) sequences_.drop_branches(*sequence);
  if (sequence != nullptr && !sequence->broken) {
    if (sequence->drafts_async() && !committed.tokens.empty()) {
      const auto time = JobClock::now() - sequence->verify_began;
      branch_chooser_.record_verify_time(std::chrono::duration<double>(time).count());
    }
    branch_chooser_.learn(*sequence, committed.tokens);
    if (!committed.tokens.empty() || sequence->mode == AsyncDrafting::kOff) {
      sequences_.advance(*sequence, committed.tokens, committed.round);
    } else if (committed.round != sequence->round) {
      sequences_.advance(*sequence, {}, committed.round);
    } else {
      sequences_.drop_branches(*sequence);
    }
  }
  if (sequence == nullptr || sequence->broken || sequences_.context(*sequence).empty()) {
    // An empty block says at once that there is nothing to wait for.
    const int32_t base_len =
        committed.num_tokens_before + static_cast<int32_t>(committed.tokens.size());
    if (committed.draft_len > 0) {
      reply_.blocks.push_back({committed.sequence_id, committed.round, base_len, {}});
    }
    return false;
  }
  sequence->round = committed.round;
  sequence->draft_len = committed.draft_len;
  sequence->in_flight = committed.in_flight;
  sequence->answered = false;
  sequence->main_chain.ended = false;
  sequence->verify_began = JobClock::now();
  owes_answer_ = owes_answer_ || (sequence->mode != AsyncDrafting::kOff && sequence->draft_len > 0);
  return sequence->drafts_async();
}

// The likeliest outcomes of all rounds that begin with this request.
void DraftWorker::begin_branches(std::vector<uint64_t> begun) {
  std::sort(begun.begin(), begun.end());
  begun.erase(std::unique(begun.begin(), begun.end()), begun.end());
  std::vector<DraftSequence*> verifying;
  for (const uint64_t id : begun) {
    DraftSequence* sequence = sequences_.find(id);
    if (sequence != nullptr && !sequence->broken && sequence->drafts_async())
      verifying.push_back(sequence);
  }
  int32_t num_growing = 0;
  for (const auto& [id, sequence] : sequences_.all()) {
    num_growing += static_cast<int32_t>(sequence.pending.size());
    for (const DraftBranch& branch : sequence.branches)
      num_growing += sequences_.branch_wants_step(sequence, branch) ? 1 : 0;
  }
  branch_chooser_.begin(verifying, options_.max_branches - num_growing, costs_);
}

bool DraftWorker::has_work() const {
  return std::any_of(sequences_.all().begin(), sequences_.all().end(), [&](const auto& entry) {
    const DraftSequence& sequence = entry.second;
    return sequences_.main_chain_wants_step(sequence) ||
           std::any_of(
               sequence.branches.begin(), sequence.branches.end(), [&](const DraftBranch& branch) {
                 return sequences_.branch_wants_step(sequence, branch);
               });
  });
}

void DraftWorker::step() {
  step_.plan(costs_);
  check_books(false);
  if (step_.batch().tokens.empty()) return;
  const TraceSpan span(TraceKind::kDraftStep,
                       {std::ssize(step_.batch().tokens), std::ssize(step_.batch().block_tables)});
  const auto begin = JobClock::now();
  if (step_.num_steps() > 1) {
    propose_chained();
  } else {
    model_.begin(step_.batch());
    propose_all(model_.finish().data());  // on a GPU what it asks is queued behind the step
  }
  // Steps that read a prompt say nothing about the cost of drafting.
  if (step_.reads_prompts()) return;
  const auto time = JobClock::now() - begin;
  reply_.step_time_us +=
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  const int32_t num_steps = step_.num_steps();
  const int32_t num_rows = step_.num_rows();
  const auto num_chains = static_cast<int32_t>(step_.proposing().size());
  reply_.num_steps += static_cast<uint32_t>(num_steps);
  reply_.num_rows += static_cast<uint32_t>(num_rows + (num_steps - 1) * num_chains);
  costs_.add({.num_rows = num_steps > 1 ? num_chains : num_rows},
             std::chrono::duration<double>(time).count() / num_steps);
}

int32_t DraftWorker::num_tokens() const {
  return std::min(model_.config().vocab_size, options_.target_vocab_size);
}

bool DraftWorker::is_plain(const DraftSequence& sequence) const {
  return is_plain_choice(sequence.params, sequence.mask.get(), num_tokens());
}

// Several tokens of every chain; the model has read all but the last of them.
void DraftWorker::propose_chained() {
  const std::vector<DraftStep::Proposing>& chains = step_.proposing();
  std::vector<TokenChoice> choices;
  for (const DraftStep::Proposing& chain : chains) {
    const SamplingParams& params = chain.sequence->params;
    const DraftInput input = input_of(chain, nullptr);
    choices.push_back({.draws = !is_greedy(params),
                       .noise = coupled_noise(input),
                       .inverse_temperature = inverse_temperature(params),
                       .num_likeliest = num_likeliest_wanted(input)});
  }
  const std::vector<ChosenToken> tokens = model_.run_chain({.first = &step_.batch(),
                                                            .choices = choices,
                                                            .num_steps = step_.num_steps(),
                                                            .num_tokens = num_tokens()});
  for (size_t at = 0; at < tokens.size(); ++at) {
    const DraftStep::Proposing& chain = chains[at % chains.size()];
    DraftSequence& sequence = *chain.sequence;
    if (sequence.main_chain.ended) continue;
    sequence.main_chain.ended = tokens[at].is_bad;  // unusable logits: what there is must do
    if (tokens[at].is_bad) continue;
    RankedDraftToken proposal =
        propose_plain(input_of(chain, nullptr), tokens[at].key, tokens[at].likeliest);
    const int32_t token = proposal.drawn.token;
    OUTRIDER_CHECK(token == key_token(tokens[at].key));  // which is what the next step has read
    take_bonus_draft(chain, std::move(proposal));
    const bool was_read = at + chains.size() < tokens.size();
    if (was_read) sequence.kv_tokens.push_back(token);
  }
}

// One more token of every chain, from the logits after what stands and is drafted.
void DraftWorker::propose_all(const float* logits) {
  const std::vector<DraftStep::Proposing>& chains = step_.proposing();
  const int32_t vocab_size = model_.config().vocab_size;
  std::vector<DraftInput> inputs;
  branch_texts_.resize(chains.size());
  for (size_t i = 0; i < chains.size(); ++i) {
    const float* row = logits + static_cast<int64_t>(i) * vocab_size;
    check_logits(row);
    inputs.push_back(input_of(chains[i], &branch_texts_[i]));
    inputs.back().logits = row;
    inputs.back().vocab_size = vocab_size;
  }
  if (options_.vocabulary == nullptr) {
    std::vector<RankedDraftToken> proposals = propose_ranked(inputs, *scanner_);
    for (size_t i = 0; i < chains.size(); ++i) take_bonus_draft(chains[i], std::move(proposals[i]));
    return;
  }
  // One by one, through the one row in the target's ids.
  for (size_t i = 0; i < chains.size(); ++i) {
    inputs[i].logits = by_target_id(logits + static_cast<int64_t>(i) * vocab_size);
    inputs[i].vocab_size = options_.target_vocab_size;
    take_bonus_draft(chains[i],
                     std::move(propose_ranked(std::span(&inputs[i], 1), *scanner_).front()));
  }
}

// All but the logits. text: where a branch's tokens after the committed ones are kept.
DraftInput DraftWorker::input_of(const DraftStep::Proposing& chain,
                                 std::vector<DraftToken>* text) const {
  const DraftSequence& sequence = *chain.sequence;
  DraftInput input{.params = &sequence.params,
                   .tokens = sequence.tokens,
                   .num_prompt_tokens = sequence.num_prompt_tokens,
                   .drafted = sequence.main_chain.drafted,
                   .round = sequence.round,
                   .target_vocab_size = options_.target_vocab_size,
                   .num_candidates = options_.num_candidates,
                   .mask = sequence.mask.get(),
                   .processed = &chain_of(chain).processed,
                   .num_guesses = sequence.mode == AsyncDrafting::kCache ? kMaxGuesses : 0};
  if (chain.branch < 0) return input;
  // The branch's text, as it would be committed: drafted tokens count as output, too.
  const DraftBranch& branch = sequence.branches[static_cast<size_t>(chain.branch)];
  text->clear();
  for (int32_t i = 0; i < branch.num_accepted; ++i)
    text->push_back({.token = sequence.main_chain.drafted[static_cast<size_t>(i)].token});
  text->push_back({.token = branch.guess});
  for (const DraftToken& drafted : branch.chain.drafted) text->push_back({.token = drafted.token});
  input.drafted = *text;
  input.round = sequence.round + 1;
  return input;
}

void DraftWorker::take_bonus_draft(const DraftStep::Proposing& chain, RankedDraftToken proposal) {
  DraftSequence& sequence = *chain.sequence;
  DraftChain& grown = chain_of(chain);
  if (proposal.drawn.token < 0 || sequences_.draft_id(proposal.drawn.token) < 0) {
    grown.ended = true;  // unusable logits: what there is must do
    return;
  }
  grown.drafted.push_back(std::move(proposal.drawn));
  grown.others.push_back(proposal.others);
  if (chain.branch < 0 && sequence.drafts_async()) BranchChooser::grow_pending(sequence);
}

// The draft's logits as the logits of the target's tokens (token-level intersection, Timor et al.,
// arXiv 2502.05202, Algorithm 4). From here on penalties, filters, noise and the candidates sent
// are those of the target's ids, and the rules are as exact as with any other draft.
const float* DraftWorker::by_target_id(const float* logits) {
  for (const VocabularyMap::Pair& pair : options_.vocabulary->pairs()) {
    if (pair.target_id >= options_.target_vocab_size) break;
    target_logits_[static_cast<size_t>(pair.target_id)] = logits[pair.draft_id];
  }
  return target_logits_.data();
}

void DraftWorker::collect_main_chain(uint64_t sequence_id, DraftSequence& sequence) {
  DraftChain& main_chain = sequence.main_chain;
  const int32_t wanted = sequence.wanted();
  if (wanted == 0 || sequence.answered) return;
  const int32_t end = std::min(main_chain.num_drafted(), wanted);
  sequence.answered = main_chain.ended || end == wanted;
  if (sequence.mode == AsyncDrafting::kOff && !sequence.answered) return;
  const auto tell = [&](int32_t first) {
    reply_.blocks.push_back({.sequence_id = sequence_id,
                             .round = sequence.round,
                             .base_len = static_cast<int32_t>(sequence.tokens.size()),
                             .tokens = tokens_from(main_chain, first, end),
                             .guess = sequence.guess,
                             .first = first});
  };
  const bool has_new = end > main_chain.num_sent;
  if (has_new) tell(std::exchange(main_chain.num_sent, end));
  // A block that ends early says so by an empty part, so that nobody waits for the rest. Without
  // asynchronous drafting its one part says it.
  const bool ends_early = main_chain.ended && end < wanted && sequence.urgent();
  if (ends_early && !(has_new && sequence.mode == AsyncDrafting::kOff)) tell(end);
}

void DraftWorker::collect_branch(uint64_t sequence_id,
                                 const DraftSequence& sequence,
                                 DraftBranch& branch) {
  DraftChain& chain = branch.chain;
  const int32_t end = chain.num_drafted();
  const int32_t num_new = end - chain.num_sent;
  const int32_t least = branch.chance >= pacing.likely_branch || branch.complete()
                            ? 1
                            : static_cast<int32_t>(pacing.tokens_sent_together);
  if (num_new < least) return;
  reply_.blocks.push_back(
      {.sequence_id = sequence_id,
       .round = sequence.round + 1,
       .base_len = static_cast<int32_t>(sequence.tokens.size()) + branch.num_accepted + 1,
       .tokens = tokens_from(chain, chain.num_sent, end),
       .guess = branch.guess,
       .first = chain.num_sent});
  chain.num_sent = end;
}

std::optional<DraftReply> DraftWorker::take_reply() {
  for (auto& [id, sequence] : sequences_.all()) {
    if (sequence.broken) continue;
    collect_main_chain(id, sequence);
    for (DraftBranch& branch : sequence.branches) collect_branch(id, sequence, branch);
  }
  if (reply_.blocks.empty() && !(owes_answer_ && !has_work())) return std::nullopt;
  owes_answer_ = false;
  reply_.serial = last_serial_;
  return std::exchange(reply_, DraftReply{});
}

}  // namespace outrider
