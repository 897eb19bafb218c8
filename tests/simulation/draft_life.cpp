// See draft_life.h.
#include "tests/simulation/draft_life.h"

#include <algorithm>
#include <limits>

#include "runtime/ranks/draft/engine.h"

namespace outrider::test {
namespace {

constexpr int64_t kAliveIntervalNs = 50'000'000;

void lie(DraftBlock& block, Dice& dice) {
  DraftToken token{dice.below(ToyLaw::kVocabSize), {}};
  const int32_t other = (token.token + 1) % ToyLaw::kVocabSize;
  switch (dice.below(14)) {
    case 0:
      block.sequence_id += static_cast<uint64_t>(dice.between(1, 3));
      break;
    case 1:
      block.round += static_cast<uint32_t>(dice.between(-1, 1));
      break;
    case 2:
      block.base_len += dice.between(-2, 2);
      break;
    case 3:
      block.guess = dice.between(-2, ToyLaw::kVocabSize);
      break;
    case 4:
      block.first += dice.between(-2, 2);
      break;
    case 5:
      block.tokens.resize(static_cast<size_t>(dice.between(0, 300)), token);
      break;
    case 6:
      block.tokens.assign(1, {dice.chance(500) ? -1 : ToyLaw::kVocabSize, {}});
      break;
    case 7:
      token.candidates = {{token.token, 0.7f}, {other, 0.7f}};
      break;
    case 8:
      token.candidates = {{other, 1.0f}};
      break;
    case 9:
      token.candidates = {{token.token, std::numeric_limits<float>::quiet_NaN()}};
      break;
    case 10:
      token.candidates = {{token.token, 0.5f}, {token.token, 0.5f}};
      break;
    case 11:
      token.candidates = {{other, 1.0f - 1e-7f}, {token.token, 1e-7f}};
      break;
    case 12:
      token.candidates = {{token.token, 1.5f}, {other, -0.5f}};
      break;
    default:
      block.tokens.assign(static_cast<size_t>(dice.between(1, 4)), token);
      break;
  }
  const auto size = static_cast<size_t>(block.tokens.size());
  if (!token.candidates.empty() && size > 0) block.tokens[dice.bits() % size] = token;
}

}  // namespace

DraftWorker::Options worker_options(const Setting& setting) {
  return {.target_vocab_size = ToyLaw::kVocabSize,
          .num_candidates = kNumCandidates,
          .max_branches = 24,
          .checks = {.books = false, .poison = setting.poisons}};
}

uint64_t tell_lies(DraftReply& reply, int32_t permille, Dice& dice) {
  uint64_t num_lies = 0;
  // And of itself: anything from nothing to what no clock can hold.
  const auto any = [&] { return dice.bits() >> dice.below(64); };
  if (dice.chance(permille / 8)) reply.serial = any();
  if (dice.chance(permille / 8)) reply.step_time_us = any();
  if (dice.chance(permille / 8)) reply.idle_us = any();
  if (dice.chance(permille / 8)) reply.num_steps = static_cast<uint32_t>(any());
  if (dice.chance(permille / 8)) reply.num_rows = static_cast<uint32_t>(any());
  for (DraftBlock& block : reply.blocks) {
    if (!dice.chance(permille)) continue;
    lie(block, dice);
    ++num_lies;
  }
  return num_lies;
}

DraftReply unpacked(const PackedReply& reply) {
  DraftReply made{.serial = reply.serial,
                  .step_time_us = reply.step_time_us,
                  .num_steps = reply.num_steps,
                  .num_rows = reply.num_rows,
                  .idle_us = reply.idle_us};
  for (const PackedBlock& block : reply.blocks) {
    DraftBlock& one = made.blocks.emplace_back();
    one = {block.sequence_id, block.round, block.base_len, {}, block.guess, block.first};
    if (!block.tokens.unpack(one.tokens)) one.tokens.clear();
  }
  return made;
}

DraftLife::DraftLife(const Setting& setting, Witness& witness)
    : setting_(setting),
      witness_(witness),
      epoch_(kFirstDraftEpoch),
      dice_(mix_seed(setting.seed, 0xD8AF)),
      inbox_(setting.to_draft, mix_seed(setting.seed, 1)),
      outbox_(setting.from_draft, mix_seed(setting.seed, 2)),
      free_at_ns_(JobClock::now_ns() + 1000 * int64_t{setting.draft_faults.joins_after_us}) {}

DraftLife::~DraftLife() { check_books(); }

void DraftLife::check_books() {
  if (worker_ == nullptr) return;
  if (const std::string wrong = worker_->fault(); !wrong.empty())
    witness_.fault("the draft's books: " + wrong);
  if (!model_->fault().empty()) witness_.fault("the draft: " + model_->fault());
}

void DraftLife::begin_life(int64_t now_ns) {
  if (num_lives_++ > 0) ++epoch_;
  ToyModel::Options costless = setting_.draft;  // this thread is the coordinator's
  costless.step_ns = costless.row_ns = costless.jitter_ns = 0;
  model_ = std::make_unique<ToyModel>(costless, 0, 1, setting_.draft_sizes());
  worker_ = std::make_unique<DraftWorker>(*model_, worker_options(setting_));
  say(FrameKind::kHello, {}, now_ns);
}

// What is on its way to it may still reach the next life.
void DraftLife::die(int64_t now_ns) {
  check_books();
  worker_.reset();
  model_.reset();
  if (dice_.chance(500)) say(FrameKind::kGone, {}, now_ns);
  if (dice_.chance(700)) inbox_.clear();
  free_at_ns_ = now_ns + 1000 * int64_t{dice_.below(setting_.draft_faults.longest_away_us)};
}

void DraftLife::live_until(int64_t now_ns) {
  while (free_at_ns_ <= now_ns) {
    if (worker_ == nullptr) begin_life(free_at_ns_);
    int64_t time_ns = free_at_ns_;
    if (!worker_->has_work()) {
      const auto next_ns = inbox_.next_ns();
      if (!next_ns || *next_ns > now_ns) return;
      time_ns = std::max(time_ns, *next_ns);
    }
    free_at_ns_ = time_ns;
    if (!take_frames(time_ns)) return;
    work(time_ns);
  }
}

// As run_draft_loop. False after shutdown.
bool DraftLife::take_frames(int64_t now_ns) {
  while (auto bytes = inbox_.receive(now_ns)) {
    Frame frame;
    if (!decode_frame(*bytes, &frame)) continue;
    if (frame.kind == FrameKind::kShutdown) {  // to whichever life that it knows of
      outbox_.send_whole(encode_frame(frame), now_ns);
      free_at_ns_ = std::numeric_limits<int64_t>::max();
      return false;
    }
    if (frame.epoch != epoch_) continue;
    if (frame.kind == FrameKind::kAlive) say(FrameKind::kAlive, {}, now_ns);
    if (frame.kind == FrameKind::kForget) worker_->forget_all();
    if (frame.kind == FrameKind::kRequest) worker_->take(decode_draft_request(frame.payload));
  }
  send_reply(now_ns);
  return true;
}

void DraftLife::work(int64_t now_ns) {
  if (!worker_->has_work()) return;
  const int64_t step_ns = std::max<int64_t>(1000, setting_.draft.step_ns);
  worker_->step();
  free_at_ns_ = now_ns + step_ns;
  if (dice_.chance(setting_.draft_faults.stalls))
    free_at_ns_ += 1000 * int64_t{dice_.below(setting_.draft_faults.longest_away_us)};
  if (dice_.chance(setting_.draft_faults.deaths)) return die(free_at_ns_);
  send_reply(free_at_ns_);
  if (free_at_ns_ - last_sent_ns_ >= kAliveIntervalNs) say(FrameKind::kAlive, {}, free_at_ns_);
}

void DraftLife::say(FrameKind kind, Bytes payload, int64_t now_ns) {
  outbox_.send(encode_frame({.kind = kind, .epoch = epoch_, .payload = std::move(payload)}),
               now_ns);
  last_sent_ns_ = now_ns;
}

void DraftLife::send_reply(int64_t now_ns) {
  auto reply = worker_->take_reply();
  if (!reply) return;
  reply->step_time_us = static_cast<uint64_t>(setting_.draft.step_ns / 1000) * reply->num_steps;
  num_lies_ += tell_lies(*reply, setting_.draft_faults.lies, dice_);
  say(FrameKind::kReply, encode(*reply), now_ns);
}

}  // namespace outrider::test
