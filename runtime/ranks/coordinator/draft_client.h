// The coordinator's client of the draft: sends requests, takes blocks, and knows how long an
// answer is worth waiting for and when the draft counts as down. Nothing here waits; a draft that
// hangs, dies or is slow costs at most the round's deadline, and soon not even that.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/ranks/coordinator/draft_link.h"
#include "runtime/ranks/messages/round_wire.h"
#include "scheduler/drafting/packed_block.h"
#include "scheduler/round.h"

namespace outrider {

class DraftClient {
 public:
  using Clock = JobClock;

  // kIdle: no round waits for blocks; left by send() of an urgent request.
  // kAsked: the next round's are asked for, none is here; left by record_tokens() and end_wait().
  // kAnswering: some of them are here; left by end_wait() and the next urgent request.
  // kDown: an answer is overdue, or the draft is gone; left by any frame, back to what it was, and
  // by a hello: a new life, kIdle.
  enum class State : uint8_t { kIdle, kAsked, kAnswering, kDown };
  // What a round may wait for a draft that is not known to be slow. A stream is held up for 50 ms
  // at most: the rest is for what wakes late on a busy machine.
  static constexpr double kMaxWaitS = 0.040;

  // patience_s: every round may wait so long at least, and a silent draft counts as down only after
  // it; 0 = none.
  // link: null = there is none yet, and the draft is down; outlives this, or the next attach().
  DraftClient(DraftLink* link, uint32_t epoch, double patience_s = 0);
  // From now on this draft is meant, in a life of it that knows nothing; null: none.
  void attach(DraftLink* link, uint32_t epoch);
  DraftLink* link() const { return link_; }
  uint32_t epoch() const { return epoch_; }
  bool is_gone() const { return is_gone_; }  // it has said so, and no hello since

  // Fills in the serial and sends; a request that carries nothing is not sent. Urgent is one that
  // asks for a block which continues nothing in flight: the next round is to verify it.
  void send(DraftRequest request, Clock::time_point now);
  // So much is unsent that nothing more is sent: what it would carry must wait.
  bool is_congested() const;
  // Before the next request the draft forgets what it was told: it may still know sequences that
  // have ended since.
  void forget_all();
  // All replies that have arrived. Damaged and stale frames are dropped and counted.
  std::vector<PackedReply> receive(Clock::time_point now);
  // Tells the draft that the job is over and waits a few seconds for its goodbye; false when none
  // came.
  bool shut_down();

  // Until when this round may wait for blocks: clamp(2 x the usual time to the first tokens, 2 ms,
  // max(40 ms, worth_s)) after the request went out, where worth_s is the time a block usually
  // saves the target. While tokens come: clamp(2 x the usual time between them, 2 ms, ...) after
  // the last ones, within max(40 ms, worth_s) after the request. Of who took over: 40 ms at most,
  // until it answers and was late three times in a row. After misses in a row the wait is skipped
  // for a while, longer each time.
  Clock::time_point deadline(double worth_s) const;
  bool skips_wait() const { return num_rounds_to_skip_ > 0 && patience_s_ == 0; }
  // Tells how the round's wait ended.
  void record_wait(bool complete);

  // Looks whether an answer is overdue and nothing was heard meanwhile. One that is down is asked
  // once a second whether it lives.
  State update(Clock::time_point now);
  State state() const;
  bool is_waited_for() const { return asked_at_.has_value(); }
  // Of the blocks that were asked for, tokens were taken.
  void record_tokens(Clock::time_point now) { tokens_at_ = now; }
  // A round has begun with what there was.
  void end_wait() {
    asked_at_.reset();
    tokens_at_.reset();
  }
  bool has_tokens() const { return tokens_at_.has_value(); }
  // While it is waited for: since it was asked, and since the last tokens or else that.
  double asked_s(Clock::time_point now) const;
  double silent_s(Clock::time_point now) const;

  // Grows with each hello and attach(): whoever drafts now knows nothing of what was told before.
  uint64_t num_lives() const { return num_lives_; }
  uint64_t num_deadline_misses() const { return num_deadline_misses_; }
  uint64_t num_dropped_frames() const { return num_dropped_frames_; }
  // Whole frames, header included.
  uint64_t num_sent_bytes() const { return num_sent_bytes_; }
  uint64_t num_received_bytes() const { return num_received_bytes_; }
  double draft_step_s() const { return draft_step_s_; }  // moving average; 0 = not known

 private:
  void take_frame(Frame& frame, Clock::time_point now, std::vector<PackedReply>* replies);
  void record_answer(const PackedReply& reply, Clock::time_point now);
  void begin_life(uint32_t epoch);
  void post(FrameKind kind);
  double first_down_after_s() const;

  DraftLink* link_;
  uint32_t epoch_;
  const double patience_s_;
  uint64_t next_serial_ = 1;
  // A request that must be answered.
  struct Asked {
    uint64_t serial = 0;
    Clock::time_point sent_at{};
    bool is_urgent = false;              // the round waits for it
    std::vector<uint64_t> sequence_ids;  // for which something was asked
  };
  void forget(const std::vector<uint64_t>& closed);

  std::deque<Asked> unanswered_;                // oldest first
  std::optional<Clock::time_point> asked_at_;   // while a round waits
  std::optional<Clock::time_point> tokens_at_;  // of the last that were taken since
  uint64_t urgent_serial_ = 0;                  // of the last urgent request
  Clock::time_point urgent_at_{};
  std::optional<Clock::time_point> part_at_;  // of its answer's last part so far
  double part_gap_s_ = 0;                     // moving average of the time between parts
  std::optional<Clock::time_point>
      waiting_since_;    // oldest moment from which nothing was heard though asked
  double answer_s_ = 0;  // moving average of the time from request to answer
  double draft_step_s_ = 0;
  double down_after_s_;  // grows when a draft that counted as down turns out to be slow
  int num_misses_in_row_ = 0;
  bool answered_since_miss_ = false;  // late: slow, not dead
  int num_rounds_to_skip_ = 0;
  bool is_down_;
  bool is_gone_ = false;
  bool owes_forget_ = false;
  Clock::time_point look_again_at_{};  // while it is down
  // Has all texts to read first, and perhaps a process that starts beside it: a stream that goes on
  // is held up for kMaxWaitS at most, until it answers and was late three times in a row.
  bool takes_over_ = false;
  uint64_t num_lives_ = 0;
  uint64_t num_deadline_misses_ = 0;
  uint64_t num_dropped_frames_ = 0;
  uint64_t num_sent_bytes_ = 0;
  uint64_t num_received_bytes_ = 0;
};

}  // namespace outrider
