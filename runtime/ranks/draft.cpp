// See draft.h.
#include "runtime/ranks/draft.h"

#include <algorithm>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/comm/waiting.h"
#include "runtime/ranks/round_wire.h"
#include "scheduler/statistics.h"
#include "scheduler/verify.h"

namespace outrider {
namespace {

// Of target tokens the draft has no token for: finite, so that it is no sign of a broken model, and
// so low that no bias brings it back.
constexpr float kNeverProposed = -0.01f * kLargestLogit;

}  // namespace

const std::vector<int32_t>& DraftWorker::context(const Copy& copy) const {
  return options_.vocabulary == nullptr ? copy.tokens : copy.translated.ids();
}

int32_t DraftWorker::draft_id(int32_t token) const {
  return options_.vocabulary == nullptr ? token : options_.vocabulary->draft_id(token);
}

int32_t DraftWorker::num_missing(const Copy& copy) const {
  return static_cast<int32_t>(context(copy).size() + copy.drafted.size()) -
         static_cast<int32_t>(copy.kv_tokens.size());
}

DraftWorker::DraftWorker(Model& model, const Options& options) : model_(model), options_(options) {
  if (options_.vocabulary != nullptr)
    target_logits_.assign(static_cast<size_t>(options_.target_vocab_size), kNeverProposed);
  for (int32_t block = model.options().num_blocks - 1; block >= 0; --block)
    free_blocks_.push_back(block);
}

void DraftWorker::take(const DraftRequest& request) {
  last_serial_ = request.serial;
  for (uint64_t id : request.closes) close(id);
  for (const DraftOpen& opening : request.opens) open(opening);
  for (const DraftCommit& committed : request.commits) commit(committed);
}

void DraftWorker::open(const DraftOpen& opening) {
  Copy& copy = copies_[opening.sequence_id];  // an open of a known sequence keeps what its KV still
                                              // agrees with
  copy.params = opening.params;
  copy.mask = make_token_mask(opening.params);
  copy.num_prompt_tokens = static_cast<int32_t>(opening.tokens.size());
  copy.tokens.clear();
  copy.translated.clear();
  copy.draft_len = 0;
  copy.broken = false;
  take_tokens(copy, opening.tokens);
}

void DraftWorker::commit(const DraftCommit& committed) {
  const auto found = copies_.find(committed.sequence_id);
  const bool unknown = found == copies_.end();
  if (!unknown && !found->second.broken) {
    Copy& copy = found->second;
    copy.broken = committed.num_tokens_before != static_cast<int32_t>(copy.tokens.size());
    if (!copy.broken) take_tokens(copy, committed.tokens);
  }
  if (unknown || found->second.broken || context(found->second).empty()) {
    // An empty block says at once that there is nothing to wait for.
    const int32_t base_len =
        committed.num_tokens_before + static_cast<int32_t>(committed.tokens.size());
    if (committed.draft_len > 0) {
      reply_.blocks.push_back({committed.sequence_id, committed.round, base_len, {}});
    }
    return;
  }
  found->second.round = committed.round;
  found->second.draft_len = committed.draft_len;
}

// Appends committed tokens; what was drafted is over.
void DraftWorker::take_tokens(Copy& copy, std::span<const int32_t> tokens) {
  copy.tokens.insert(copy.tokens.end(), tokens.begin(), tokens.end());
  copy.drafted.clear();
  if (options_.vocabulary != nullptr) copy.translated.extend(*options_.vocabulary, copy.tokens);
  const int32_t num_rows = model_.config().vocab_size;
  // A prompt may hold ids that only the target's larger embedding has.
  copy.broken = options_.vocabulary == nullptr &&
                std::any_of(tokens.begin(), tokens.end(), [&](int32_t token) {
                  return token < 0 || token >= num_rows;
                });
  keep_agreeing_kv(copy);
}

void DraftWorker::close(uint64_t sequence_id) {
  const auto found = copies_.find(sequence_id);
  if (found == copies_.end()) return;
  const std::vector<int32_t>& blocks = found->second.blocks;
  free_blocks_.insert(free_blocks_.end(), blocks.begin(), blocks.end());
  copies_.erase(found);
}

// Rollback: the KV of a rejected draft token is simply not counted any more. The last committed
// token is always read again, for the logits after it.
void DraftWorker::keep_agreeing_kv(Copy& copy) {
  const std::vector<int32_t>& committed = context(copy);
  const auto last = committed.empty() ? committed.end() : committed.end() - 1;
  const auto [kept, unused] =
      std::mismatch(copy.kv_tokens.begin(), copy.kv_tokens.end(), committed.begin(), last);
  copy.kv_tokens.erase(kept, copy.kv_tokens.end());
}

bool DraftWorker::wants_step(const Copy& copy) const {
  if (copy.broken) return false;
  if (copy.draft_len > static_cast<int32_t>(copy.drafted.size())) return true;
  // Reading ahead: a prompt that was announced, all but the token whose logits nobody asked for
  // yet.
  return copy.draft_len == 0 && num_missing(copy) > 1;
}

bool DraftWorker::has_work() const {
  return std::any_of(
      copies_.begin(), copies_.end(), [&](const auto& entry) { return wants_step(entry.second); });
}

// Room for num_positions; takes blocks from sequences that want nothing now when the pool is empty.
bool DraftWorker::ensure_blocks(uint64_t sequence_id, Copy& copy, int32_t num_positions) {
  const int32_t block_size = model_.options().block_size;
  const auto num_needed = static_cast<size_t>((num_positions + block_size - 1) / block_size);
  for (auto& [id, other] : copies_) {
    if (copy.blocks.size() + free_blocks_.size() >= num_needed) break;
    if (id == sequence_id || wants_step(other)) continue;
    free_blocks_.insert(free_blocks_.end(), other.blocks.begin(), other.blocks.end());
    other.blocks.clear();
    other.kv_tokens.clear();
  }
  if (copy.blocks.size() + free_blocks_.size() < num_needed) return false;
  while (copy.blocks.size() < num_needed) {
    copy.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return true;
}

// Adds this sequence's next rows to the batch; returns how many.
int32_t DraftWorker::plan_rows(uint64_t sequence_id, Copy& copy, int32_t num_rows_left) {
  const auto num_in_kv = static_cast<int32_t>(copy.kv_tokens.size());
  const int32_t num_rows = std::min(num_missing(copy), num_rows_left);
  if (num_rows <= 0) return 0;
  if (num_in_kv + num_rows > model_.config().max_positions ||
      !ensure_blocks(sequence_id, copy, num_in_kv + num_rows)) {
    copy.broken =
        copy.draft_len == 0;  // nothing asked for yet: stop reading ahead until opened anew
    if (copy.draft_len > 0) finish_block(sequence_id, copy);
    copy.draft_len = static_cast<int32_t>(copy.drafted.size());  // what there is must do
    return 0;
  }
  const auto sequence_index = static_cast<int32_t>(batch_.block_tables.size());
  batch_.block_tables.emplace_back(copy.blocks);
  const std::vector<int32_t>& committed = context(copy);
  for (int32_t i = 0; i < num_rows; ++i) {
    const auto position = static_cast<size_t>(num_in_kv + i);
    const int32_t token = position < committed.size()
                              ? committed[position]
                              : draft_id(copy.drafted[position - committed.size()].token);
    copy.kv_tokens.push_back(token);
    batch_.tokens.push_back(token);
    batch_.positions.push_back(static_cast<int32_t>(position));
    batch_.sequence_of_row.push_back(sequence_index);
  }
  return num_rows;
}

void DraftWorker::step() {
  batch_ = Batch{};
  std::vector<Copy*> proposing;
  std::vector<uint64_t> proposing_ids;
  // Sequences that are nearly there go first: a long prompt must not hold up the others' blocks.
  std::vector<std::pair<int32_t, uint64_t>> order;
  for (const auto& [id, copy] : copies_) {
    if (wants_step(copy)) order.emplace_back(num_missing(copy), id);
  }
  std::sort(order.begin(), order.end());
  int32_t num_rows_left = model_.options().max_rows;
  int32_t largest_chunk = 0;
  for (const auto& [num_left, id] : order) {
    Copy& copy = copies_.at(id);
    const int32_t num_rows = plan_rows(id, copy, num_rows_left);
    num_rows_left -= num_rows;
    largest_chunk = std::max(largest_chunk, num_rows);
    if (num_rows == 0 || num_missing(copy) > 0 || copy.draft_len == 0) continue;
    batch_.logit_rows.push_back(static_cast<int32_t>(batch_.tokens.size()) - 1);
    proposing.push_back(&copy);
    proposing_ids.push_back(id);
  }
  if (batch_.tokens.empty()) return;

  const auto begin = JobClock::now();
  const float* logits = model_.forward(batch_).data();
  const int32_t vocab_size = model_.config().vocab_size;
  for (size_t i = 0; i < proposing.size(); ++i) {
    propose_next(proposing_ids[i], *proposing[i], logits + static_cast<int64_t>(i) * vocab_size);
  }
  // Steps that read a prompt say nothing about the cost of drafting.
  if (largest_chunk <= 2) {
    const auto time = JobClock::now() - begin;
    reply_.step_time_us +=
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
    ++reply_.num_steps;
  }
}

// One more token of the block, from the logits after what stands and is drafted.
void DraftWorker::propose_next(uint64_t sequence_id, Copy& copy, const float* logits) {
  const bool translates = options_.vocabulary != nullptr;
  const int32_t vocab_size = translates ? options_.target_vocab_size : model_.config().vocab_size;
  const DraftToken proposed = propose({.params = &copy.params,
                                       .tokens = copy.tokens,
                                       .num_prompt_tokens = copy.num_prompt_tokens,
                                       .drafted = copy.drafted,
                                       .round = copy.round,
                                       .logits = translates ? by_target_id(logits) : logits,
                                       .vocab_size = vocab_size,
                                       .target_vocab_size = options_.target_vocab_size,
                                       .num_candidates = options_.num_candidates,
                                       .mask = copy.mask.get()});
  if (proposed.token < 0 || draft_id(proposed.token) < 0) {
    copy.draft_len =
        static_cast<int32_t>(copy.drafted.size());  // unusable logits: what there is must do
  } else {
    copy.drafted.push_back(proposed);
  }
  if (static_cast<int32_t>(copy.drafted.size()) == copy.draft_len) finish_block(sequence_id, copy);
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

void DraftWorker::finish_block(uint64_t sequence_id, Copy& copy) {
  reply_.blocks.push_back({.sequence_id = sequence_id,
                           .round = copy.round,
                           .base_len = static_cast<int32_t>(copy.tokens.size()),
                           .tokens = copy.drafted});
}

std::optional<DraftReply> DraftWorker::take_reply() {
  if (reply_.blocks.empty()) return std::nullopt;
  reply_.serial = last_serial_;
  return std::exchange(reply_, DraftReply{});
}

namespace {

constexpr auto kAliveInterval = std::chrono::milliseconds(50);

// The draft's end of the link.
class DraftPort {
 public:
  DraftPort(World& world, uint32_t epoch) : world_(world), epoch_(epoch) {}

  // Takes all that has arrived; false after shutdown.
  bool receive_into(DraftWorker& worker) {
    while (auto bytes = world_.poll(0)) {
      Frame frame;
      if (!decode_frame(*bytes, epoch_, &frame)) continue;
      if (frame.kind == FrameKind::kShutdown) {
        post(FrameKind::kShutdown, {});  // goodbye
        return false;
      }
      if (frame.kind == FrameKind::kRequest) worker.take(decode_draft_request(frame.payload));
    }
    return true;
  }
  void wait_for_shutdown() {
    Backoff backoff;
    while (true) {
      while (auto bytes = world_.poll(0)) {
        Frame frame;
        if (!decode_frame(*bytes, epoch_, &frame) || frame.kind != FrameKind::kShutdown) continue;
        post(FrameKind::kShutdown, {});
        return;
      }
      if (backoff.should_check()) world_.check_alive(1);
      world_.pause(backoff);
    }
  }
  void send(const DraftReply& reply) { post(FrameKind::kReply, encode(reply)); }
  void say_alive() {
    if (JobClock::now() - last_sent_ >= kAliveInterval) post(FrameKind::kAlive, {});
  }

 private:
  void post(FrameKind kind, Bytes payload) {
    world_.post(0, encode_frame({.kind = kind, .epoch = epoch_, .payload = std::move(payload)}));
    last_sent_ = JobClock::now();
  }

  World& world_;
  const uint32_t epoch_;
  JobClock::time_point last_sent_{};
};

}  // namespace

namespace {

void serve_until_shutdown(World& world, DraftPort& port, DraftWorker& worker) {
  while (true) {
    Backoff backoff;
    while (true) {
      if (!port.receive_into(worker)) return;
      if (auto reply = worker.take_reply()) port.send(*reply);
      if (worker.has_work()) break;
      if (backoff.should_check()) world.check_alive(1);
      world.pause(backoff);
    }
    worker.step();
    if (auto reply = worker.take_reply()) port.send(*reply);
    port.say_alive();
  }
}

}  // namespace

void run_draft_loop(World& world, uint32_t epoch, DraftWorker& worker) {
  DraftPort port(world, epoch);
  try {
    serve_until_shutdown(world, port, worker);
  } catch (const std::exception& error) {
    // The targets go on without a draft; this rank stays only to take part in the end of the job.
    log_error("the draft worker stopped: {}", error.what());
    port.wait_for_shutdown();
  }
}

}  // namespace outrider
