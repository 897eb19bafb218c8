// See worker.h.
#include "runtime/ranks/draft/worker.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/trace.h"
#include "runtime/ranks/target/logit_scanner.h"
#include "scheduler/rows/row_sums.h"

namespace outrider {
namespace {

// Of target tokens the draft has no token for: finite, so that it is no sign of a broken model, and
// so low that no bias brings it back.
constexpr float kNeverProposed = -0.01f * kLargestLogit;

// A branch's tokens are sent when there are so many new ones, or no more to come; those of a likely
// one at once.
constexpr int32_t kSentTogether = 4;
constexpr double kLikely = 0.05;

std::vector<DraftToken> tokens_from(const DraftLine& line, int32_t first, int32_t end) {
  return {line.drafted.begin() + first, line.drafted.begin() + end};
}

}  // namespace

DraftWorker::DraftWorker(Model& model, const Options& options)
    : model_(model),
      options_(options),
      copies_(model, options.vocabulary, options.ride_ahead),
      step_(model, copies_),
      scanner_(make_logit_scanner(model, options.checks.poison || options.vocabulary != nullptr)) {
  if (options_.vocabulary != nullptr)
    target_logits_.assign(static_cast<size_t>(options_.target_vocab_size), kNeverProposed);
  if (options_.checks.poison) poison_freed_blocks();
}

// Free blocks are full of NaN and taken ones begin as zeros: NaN spreads even through positions
// that are masked.
void DraftWorker::poison_freed_blocks() {
  copies_.watch_blocks(
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
  for (uint64_t id : request.closes) copies_.close(id);
  for (const DraftOpen& opening : request.opens) copies_.open(opening);
  std::vector<uint64_t> begun;
  for (const DraftCommit& committed : request.commits) {
    if (commit(committed)) begun.push_back(committed.sequence_id);
  }
  if (!begun.empty()) begin_rides(std::move(begun));
  check_books(copies_.all().empty());
}

// True when the sequence's round is in flight from now on, and is to be ridden ahead of.
bool DraftWorker::commit(const DraftCommit& committed) {
  DraftCopy* copy = copies_.find(committed.sequence_id);
  if (copy != nullptr && !copy->broken) {
    if (committed.round < copy->round) {
      ++num_stale_;
      return false;
    }
    copy->broken = committed.num_tokens_before != static_cast<int32_t>(copy->tokens.size());
  }
  if (copy != nullptr && copy->broken) copies_.drop_branches(*copy);
  if (copy != nullptr && !copy->broken) {
    if (copy->rides() && !committed.tokens.empty()) {
      const auto time = JobClock::now() - copy->ride_began;
      rides_.note_ride(std::chrono::duration<double>(time).count());
    }
    rides_.learn(*copy, committed.tokens);
    if (!committed.tokens.empty() || copy->mode == RideAhead::kOff) {
      copies_.advance(*copy, committed.tokens, committed.round);
    } else if (committed.round != copy->round) {
      copies_.advance(*copy, {}, committed.round);
    } else {
      copies_.drop_branches(*copy);
    }
  }
  if (copy == nullptr || copy->broken || copies_.context(*copy).empty()) {
    // An empty block says at once that there is nothing to wait for.
    const int32_t base_len =
        committed.num_tokens_before + static_cast<int32_t>(committed.tokens.size());
    if (committed.draft_len > 0) {
      reply_.blocks.push_back({committed.sequence_id, committed.round, base_len, {}});
    }
    return false;
  }
  copy->round = committed.round;
  copy->draft_len = committed.draft_len;
  copy->in_flight = committed.in_flight;
  copy->answered = false;
  copy->spine.ended = false;
  copy->ride_began = JobClock::now();
  owes_answer_ = owes_answer_ || (copy->mode != RideAhead::kOff && copy->draft_len > 0);
  return copy->rides();
}

// The likeliest outcomes of all rounds that begin with this request.
void DraftWorker::begin_rides(std::vector<uint64_t> begun) {
  std::sort(begun.begin(), begun.end());
  begun.erase(std::unique(begun.begin(), begun.end()), begun.end());
  std::vector<DraftCopy*> riding;
  for (const uint64_t id : begun) {
    DraftCopy* copy = copies_.find(id);
    if (copy != nullptr && !copy->broken && copy->rides()) riding.push_back(copy);
  }
  int32_t num_growing = 0;
  for (const auto& [id, copy] : copies_.all()) {
    num_growing += static_cast<int32_t>(copy.pending.size());
    for (const DraftBranch& branch : copy.branches)
      num_growing += copies_.branch_wants_step(copy, branch) ? 1 : 0;
  }
  rides_.begin(riding, options_.max_branches - num_growing, costs_);
}

bool DraftWorker::has_work() const {
  return std::any_of(copies_.all().begin(), copies_.all().end(), [&](const auto& entry) {
    const DraftCopy& copy = entry.second;
    return copies_.spine_wants_step(copy) ||
           std::any_of(copy.branches.begin(), copy.branches.end(), [&](const DraftBranch& branch) {
             return copies_.branch_wants_step(copy, branch);
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
  propose_all(model_.forward(step_.batch()).data());
  // Steps that read a prompt say nothing about the cost of drafting.
  if (step_.reads_prompts()) return;
  const auto time = JobClock::now() - begin;
  reply_.step_time_us +=
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  ++reply_.num_steps;
  reply_.num_rows += static_cast<uint32_t>(step_.num_rows());
  costs_.add(step_.num_rows(), std::chrono::duration<double>(time).count());
}

// One more token of every line, from the logits after what stands and is drafted.
void DraftWorker::propose_all(const float* logits) {
  const std::vector<DraftStep::Proposing>& lines = step_.proposing();
  const int32_t vocab_size = model_.config().vocab_size;
  std::vector<DraftInput> inputs;
  branch_texts_.resize(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const float* row = logits + static_cast<int64_t>(i) * vocab_size;
    check_logits(row);
    inputs.push_back(input_of(lines[i], &branch_texts_[i]));
    inputs.back().logits = row;
    inputs.back().vocab_size = vocab_size;
  }
  if (options_.vocabulary == nullptr) {
    std::vector<RankedProposal> proposals = propose_ranked(inputs, *scanner_);
    for (size_t i = 0; i < lines.size(); ++i) take_proposal(lines[i], std::move(proposals[i]));
    return;
  }
  // One by one, through the one row in the target's ids.
  for (size_t i = 0; i < lines.size(); ++i) {
    inputs[i].logits = by_target_id(logits + static_cast<int64_t>(i) * vocab_size);
    inputs[i].vocab_size = options_.target_vocab_size;
    take_proposal(lines[i], std::move(propose_ranked(std::span(&inputs[i], 1), *scanner_).front()));
  }
}

// All but the logits. text: where a branch's tokens after the committed ones are kept.
DraftInput DraftWorker::input_of(const DraftStep::Proposing& line,
                                 std::vector<DraftToken>* text) const {
  const DraftCopy& copy = *line.copy;
  DraftInput input{.params = &copy.params,
                   .tokens = copy.tokens,
                   .num_prompt_tokens = copy.num_prompt_tokens,
                   .drafted = copy.spine.drafted,
                   .round = copy.round,
                   .target_vocab_size = options_.target_vocab_size,
                   .num_candidates = options_.num_candidates,
                   .mask = copy.mask.get(),
                   .num_guesses = copy.mode == RideAhead::kCache ? kMaxGuesses : 0};
  if (line.branch < 0) return input;
  // The branch's text, as it would be committed: drafted tokens count as output, too.
  const DraftBranch& branch = copy.branches[static_cast<size_t>(line.branch)];
  text->clear();
  for (int32_t i = 0; i < branch.num_accepted; ++i)
    text->push_back({.token = copy.spine.drafted[static_cast<size_t>(i)].token});
  text->push_back({.token = branch.guess});
  for (const DraftToken& drafted : branch.line.drafted) text->push_back({.token = drafted.token});
  input.drafted = *text;
  input.round = copy.round + 1;
  return input;
}

void DraftWorker::take_proposal(const DraftStep::Proposing& line, RankedProposal proposal) {
  DraftCopy& copy = *line.copy;
  DraftLine& grown =
      line.branch < 0 ? copy.spine : copy.branches[static_cast<size_t>(line.branch)].line;
  if (proposal.drawn.token < 0 || copies_.draft_id(proposal.drawn.token) < 0) {
    grown.ended = true;  // unusable logits: what there is must do
    return;
  }
  grown.drafted.push_back(std::move(proposal.drawn));
  grown.others.push_back(proposal.others);
  if (line.branch < 0 && copy.rides()) DraftRides::grow_pending(copy);
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

void DraftWorker::collect_spine(uint64_t sequence_id, DraftCopy& copy) {
  DraftLine& spine = copy.spine;
  const int32_t wanted = copy.wanted();
  if (wanted == 0 || copy.answered) return;
  const int32_t end = std::min(spine.num_drafted(), wanted);
  copy.answered = spine.ended || end == wanted;
  if (copy.mode == RideAhead::kOff && !copy.answered) return;
  // A block that ends early says so: nobody need wait for the rest.
  const bool says_end = spine.ended && end < wanted && copy.urgent();
  if (end <= spine.num_sent && !says_end) return;
  const int32_t first = std::min(spine.num_sent, end);
  reply_.blocks.push_back({.sequence_id = sequence_id,
                           .round = copy.round,
                           .base_len = static_cast<int32_t>(copy.tokens.size()),
                           .tokens = tokens_from(spine, first, end),
                           .guess = copy.guess,
                           .first = first});
  spine.num_sent = end;
}

void DraftWorker::collect_branch(uint64_t sequence_id, const DraftCopy& copy, DraftBranch& branch) {
  DraftLine& line = branch.line;
  const int32_t end = line.num_drafted();
  const int32_t num_new = end - line.num_sent;
  const int32_t least = branch.chance >= kLikely || branch.complete() ? 1 : kSentTogether;
  if (num_new < least) return;
  reply_.blocks.push_back(
      {.sequence_id = sequence_id,
       .round = copy.round + 1,
       .base_len = static_cast<int32_t>(copy.tokens.size()) + branch.num_accepted + 1,
       .tokens = tokens_from(line, line.num_sent, end),
       .guess = branch.guess,
       .first = line.num_sent});
  line.num_sent = end;
}

std::optional<DraftReply> DraftWorker::take_reply() {
  for (auto& [id, copy] : copies_.all()) {
    if (copy.broken) continue;
    collect_spine(id, copy);
    for (DraftBranch& branch : copy.branches) collect_branch(id, copy, branch);
  }
  if (reply_.blocks.empty() && !(owes_answer_ && !has_work())) return std::nullopt;
  owes_answer_ = false;
  reply_.serial = last_serial_;
  return std::exchange(reply_, DraftReply{});
}

}  // namespace outrider
